//! The way its users meet the product: `helm install`, `kubectl apply`, and an answer from a pod; then one idles and another
//! is loaded, and it all goes again.

use std::path::PathBuf;
use std::process::Command;

use sluice_e2e::cluster::on_node_alone;

use crate::installed::{Hub, Load, PROMPT, Product, TENANTS, model, pool};

impl Product<'_> {
    /// Three tenants on one GPU, and their answers, whole and as a stream.
    async fn serves(&self, hub: &Hub, golden: Option<&str>) {
        self.start_tenants(hub).await;
        for name in TENANTS {
            let whole = self.complete(name, 32).await;
            assert_eq!(self.stream(name, 32).await, whole, "{name}");
            if let Some(golden) = golden {
                let said = format!("{PROMPT}{whole}");
                assert!(golden.starts_with(&said), "{name}: {said:?} is not of {golden:?}");
            }
        }
    }

    /// One tenant gets more requests than its own memory has KV for, while its neighbours idle.
    async fn lends(&self) {
        let load = Load::new(self, TENANTS[1]).await;
        self.borrows(TENANTS[0], &self.address(TENANTS[0]), &load).await;
        let told = async || {
            let memory = &self.tenant(TENANTS[0])["status"]["memory"];
            memory["kv"].as_str().map(str::to_owned)
        };
        self.wait("the status tells the memory", told).await;
    }

    /// What people ask of a cluster.
    async fn is_explained(&self) {
        let explained = self.sluice(&["explain", "chat"]);
        assert!(explained.contains(&format!("{}/chat is ready.", self.namespace)), "{explained}");
        assert!(explained.contains("Its share of the GPU is"), "the leader was asked: {explained}");
        let all = async || {
            let top = self.sluice(&["top", "--once"]);
            TENANTS.iter().all(|name| top.contains(&format!("{}/{name}", self.namespace))).then_some(())
        };
        self.wait("top tells of all three", all).await;
    }

    /// What the CLI says in the cluster.
    fn sluice(&self, arguments: &[&str]) -> String {
        let folder =
            PathBuf::from(std::env::var_os("SLUICE_BIN_DIR").expect("images are there, so binaries are"));
        let mut command = Command::new(folder.join("kubectl-sluice"));
        command
            .args(arguments)
            .args(["-n", &self.namespace])
            .env("KUBECONFIG", self.node.api().kubeconfig_path());
        self.said(command.output().unwrap())
    }

    /// A second slot on a second GPU comes and goes, and no stream is cut.
    async fn scales(&self) {
        self.apply(&[pool(2)]);
        let before = self.complete("chat", 200).await;
        self.kubectl(&["scale", "modeltenant", "chat", "--replicas", "2"]);
        let two = async || (self.tenant("chat")["status"]["slots"].as_array()?.len() == 2).then_some(());
        self.wait("two slots", two).await;
        self.condition("chat", "Ready", "True").await;
        let streams = self.streams("chat", 20, 200).await;
        self.kubectl(&["scale", "modeltenant", "chat", "--replicas", "1"]);
        streams.end_with(&before).await;
        self.pods_of("chat", 1).await;
    }

    /// A tenant that is deleted takes its pods along.
    async fn goes(&self) {
        self.kubectl(&["delete", "modeltenant", "code"]);
        self.pods_of("code", 0).await;
        self.complete("summary", 8).await;
    }
}

#[test]
fn from_helm_install_to_answers_lent_memory_scaling_and_the_end() {
    on_node_alone(async |node| {
        let Some((folder, golden)) = model() else { return };
        let Some(product) = Product::install(node).await else { return };
        let hub = Hub::start("10.244.0.1", "tests/story", &folder);
        product.serves(&hub, golden.as_deref()).await;
        product.lends().await;
        product.is_explained().await;
        product.scales().await;
        product.goes().await;
        product.end();
    });
}
