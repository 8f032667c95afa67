//! The product's own test on a cluster that somebody else runs: here our node, given to another process by its kubeconfig.

use std::process::Command;

use sluice_e2e::cluster::on_node_alone;

use crate::installed::IMAGES;

#[test]
#[ignore = "lasts as long as the product's own test; cargo test -p sluice-e2e --test node any_kubeconfig -- --ignored"]
fn the_product_is_tested_on_any_kubeconfig() {
    on_node_alone(async |node| {
        if !node.api().is_ours() || IMAGES.iter().any(|image| node.image(image).is_none()) {
            return;
        }
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["product::", "--nocapture"]);
        again.env("SLUICE_KUBECONFIG", node.api().kubeconfig_path()).env("SLUICE_KUBECONFIG_OVERWRITE", "1");
        let output = again.output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        assert!(!said.contains("engines are stopped by root"), "{said}");
    });
}
