//! An external cluster: CRDs are only replaced with permission, and objects of tests are deleted at exit.

use std::process::Command;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;

use super::{crds, exit_hooks};

/// Label of the namespaces and foreign CRDs of tests. Its value is unique to this run, since other runs may use the
/// same cluster.
pub fn mark() -> (String, String) {
    ("sluice.dev/e2e".to_owned(), std::process::id().to_string())
}

/// Environment variable that permits replacing CRDs of the product.
const OVERWRITE: &str = "SLUICE_KUBECONFIG_OVERWRITE";

/// Establishes the CRDs of this tree and registers the deletion of test namespaces at exit, by commands that `kubectl`
/// makes of arguments.
pub async fn take(client: &Client, kubectl: impl Fn(&[&str]) -> Command) {
    let all = kube::Api::<CustomResourceDefinition>::all(client.clone());
    for crd in crds::committed() {
        let name = crd.metadata.name.unwrap_or_default();
        let there = all.get_opt(&name).await.unwrap_or_else(|e| panic!("{name}: {e}")).is_some();
        let may = std::env::var(OVERWRITE).as_deref() == Ok("1");
        assert!(
            !there || may,
            "the cluster of SLUICE_KUBECONFIG has {name}: set {OVERWRITE}=1 to replace it"
        );
    }
    crds::establish(client).await;
    for kind in ["namespaces", "customresourcedefinitions"] {
        let (name, value) = mark();
        let label = format!("{name}={value}");
        let mut command = kubectl(&["delete", kind, "--wait=false", "--ignore-not-found", "-l", &label]);
        exit_hooks::at_exit(move || match command.output() {
            Ok(output) if output.status.success() => {}
            other => eprintln!("{kind} with the label {label} stay behind: {other:?}"),
        });
    }
}
