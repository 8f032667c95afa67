//! Installs, upgrades, uninstalls and installs again, in one test because the chart has fixed names.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client};
use sluice_e2e::cluster;

use super::{Helm, INSTALLED, chart, output_text};
use crate::fixture::{api_of, create, pool};

/// Cluster-wide policies would affect other tests.
const VALUES: [&str; 2] = ["--set", "admission.enabled=false"];

async fn replicas(client: &Client, namespace: &str) -> Option<i32> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    deployments.get_opt("sluice-operator").await.unwrap()?.spec.unwrap().replicas
}

async fn release_of(client: &Client) -> String {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let crd = crds.get("gpupools.sluice.dev").await.unwrap();
    crd.metadata.annotations.unwrap()["meta.helm.sh/release-name"].clone()
}

#[tokio::test]
async fn pools_outlive_the_chart_and_the_next_release_takes_them_over() {
    let Some(helm) = Helm::find() else { return };
    let Some(server) = cluster::api().await.filter(|server| server.is_own_cluster()) else { return };
    let _installed = INSTALLED.lock().await;
    let (client, namespace) = (server.client().await, server.namespace("release").await);
    let (chart, at) = (chart(), ["--namespace", namespace.as_str()]);
    let call = |first: &[&str], last: &[&str]| {
        let arguments = [first, &at[..], last].concat();
        output_text(helm.on(server, &arguments))
    };
    let install =
        |name: &str, further: &[&str]| call(&["install", name, &chart], &[&VALUES[..], further].concat());

    // The CRDs exist already, as after another release.
    let refused = install("one", &[]).unwrap_err();
    assert!(refused.contains("invalid ownership metadata"), "{refused}");
    let notes = install("one", &["--take-ownership", "--force-conflicts"]).unwrap();
    assert!(notes.contains(&format!("helm test one -n {namespace}")), "{notes}");
    assert_eq!((replicas(&client, &namespace).await, release_of(&client).await), (Some(2), "one".into()));

    let pools = api_of(client.clone(), "GpuPool", &namespace);
    create(&pools, &pool()).await;
    call(&["upgrade", "one", &chart], &[&VALUES[..], &["--set", "operator.replicas=3"]].concat()).unwrap();
    assert_eq!(replicas(&client, &namespace).await, Some(3));
    let wrong = call(&["upgrade", "one", &chart], &["--set", "operator.replicas=9"]).unwrap_err();
    assert!(wrong.contains("at '/operator/replicas'"), "{wrong}");

    // No controller runs the hook's Job here; another test covers it.
    call(&["uninstall", "one"], &["--no-hooks"]).unwrap();
    assert_eq!(replicas(&client, &namespace).await, None);
    assert!(pools.get_opt("one").await.unwrap().is_some(), "a pool went with the chart");

    install("one", &[]).expect("the same release takes its CRDs over");
    call(&["uninstall", "one"], &["--no-hooks"]).unwrap();
    let refused = install("two", &[]).unwrap_err();
    assert!(refused.contains("must equal \"two\": current value is \"one\""), "{refused}");
    install("two", &["--take-ownership"]).unwrap();
    assert_eq!(release_of(&client).await, "two");
    assert!(pools.get_opt("one").await.unwrap().is_some());
    call(&["uninstall", "two"], &["--no-hooks"]).unwrap();
}
