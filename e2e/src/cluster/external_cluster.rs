//! A cluster that somebody else runs: it is not ours to change without a word, and what tests make there goes again.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use super::{Api, crds, exit_hooks};

/// Label of what tests make, namespaces and CRDs of other groups, and its value: this run's own, since others may run on
/// the same cluster.
pub fn mark() -> (String, String) {
    ("sluice.dev/e2e".to_owned(), std::process::id().to_string())
}

/// Says that CRDs of the product may be replaced.
const OVERWRITE: &str = "SLUICE_KUBECONFIG_OVERWRITE";

/// Establishes the CRDs of this tree, and sees to it that the namespaces of tests go when this process exits.
pub async fn take(api: &Api) {
    let client = api.client().await;
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
    crds::establish(&client).await;
    for kind in ["namespaces", "customresourcedefinitions"] {
        let (name, value) = mark();
        let label = format!("{name}={value}");
        let mut command = api.kubectl(&["delete", kind, "--wait=false", "--ignore-not-found", "-l", &label]);
        exit_hooks::at_exit(move || match command.output() {
            Ok(output) if output.status.success() => {}
            other => eprintln!("{kind} with the label {label} stay behind: {other:?}"),
        });
    }
}
