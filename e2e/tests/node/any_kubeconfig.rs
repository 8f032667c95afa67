//! Runs tests of this suite on an external cluster: our node, given to another process by its kubeconfig.

use std::process::Command;

use sluice_e2e::cluster::{ClusterNode, on_node_exclusive};

use crate::installed::IMAGES;

/// Runs a test in another process that has only this node's kubeconfig, and returns its output. `None` without a
/// node or images of our own.
///
/// # Panics
/// If the test fails, or if no test has that name.
fn again(node: &ClusterNode, name: &str) -> Option<String> {
    if !node.api().is_own_cluster() || IMAGES.iter().any(|image| node.image(image).is_none()) {
        return None;
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", name, "--nocapture"]);
    again.env("SLUICE_KUBECONFIG", node.api().kubeconfig_path()).env("SLUICE_KUBECONFIG_OVERWRITE", "1");
    again.env("SLUICE_LOAD_IMAGE", node.load_command());
    let output = again.output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && said.contains("ok. 1 passed;"), "{said}");
    Some(said)
}

/// Returns the parts that the test skipped, apart from those that need an audit log, which an external cluster
/// lacks.
fn left_out(said: &str) -> Vec<&str> {
    let skipped = said.lines().filter(|line| line.contains("SKIPPED"));
    skipped.filter(|line| !line.contains("an audit log of ours")).collect()
}

/// Asserts that a test passes there and skips nothing.
fn passes_whole(name: &'static str) {
    on_node_exclusive(async move |node| {
        let said = again(node, name);
        assert_eq!(left_out(&said.unwrap_or_default()), [""; 0]);
    });
}

#[test]
#[ignore = "cargo xtask nightly: repeats the test of shares"]
fn a_tenant_that_comes_is_tested_on_any_kubeconfig() {
    passes_whole("shares::a_tenant_comes_to_a_gpu_that_is_dealt_out_and_a_cap_changes_and_every_pod_stays");
}

#[test]
#[ignore = "cargo xtask nightly: lasts as long as the product's own test"]
fn the_product_is_tested_on_any_kubeconfig() {
    passes_whole("product::from_helm_install_to_answers_lent_memory_scaling_and_the_end");
}

#[test]
#[ignore = "cargo xtask nightly: lasts as long as the proxied engine's own test"]
fn a_proxied_engine_is_tested_on_any_kubeconfig() {
    passes_whole("proxied::a_server_of_openais_api_is_a_tenant_beside_others");
}

#[test]
#[ignore = "cargo xtask nightly: lasts as long as the failures' own test"]
fn failures_are_tested_on_any_kubeconfig() {
    on_node_exclusive(async |node| {
        let Some(said) = again(node, "failures::what_fails_on_a_node_costs_no_token") else { return };
        let [stopped] = left_out(&said)[..] else { panic!("{said}") };
        assert!(stopped.contains("an API server of another owner is not stopped"), "{stopped}");
    });
}
