//! The node survives the restart of its components.

use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::ListParams;
use sluice_e2e::cluster::{eventually, on_node_exclusive};

#[test]
fn restarted_api_server_keeps_all_objects() {
    on_node_exclusive(async |node| {
        if !node.api().is_own_cluster() {
            return;
        }
        let namespace = node.api().namespace("survivor").await;
        let all = Api::<Namespace>::all(node.api().client().await);
        node.restart("kube-apiserver");
        let found = eventually("an answer", async || all.list(&ListParams::default()).await.ok()).await;
        assert!(found.items.iter().any(|one| one.metadata.name.as_ref() == Some(&namespace)));
    });
}
