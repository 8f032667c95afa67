//! The steps of a user: `helm install`, `kubectl apply`, and an answer from a pod; then one tenant idles, another
//! is loaded, and all is removed.

mod changes;
mod lending;
mod network_policies;

use serde_json::json;
use sluice_e2e::cluster::on_node_exclusive;
use sluice_e2e::hub::Hub;

use crate::installed::pod::is_terminating;
use crate::installed::processes::Stopped;
use crate::installed::{PROMPT, Product, SYSTEM, TENANTS, chart, model, value};
use crate::rights::{self, Run};

impl Product<'_> {
    /// Starts three tenants on one GPU and checks their answers, to prompts and to chats, complete and streamed.
    async fn serves(&self, hub: &Hub, golden: Option<&str>) {
        self.start_at_once(hub).await;
        for name in TENANTS {
            let whole = self.complete(name, 32).await;
            assert_eq!(self.stream(name, 32).await, whole, "{name}");
            let chat = self.chat(name, 32).await;
            assert_eq!(chat, whole, "{name} in a chat whose template adds nothing");
            assert_eq!(self.chat_stream(name, 32).await, chat, "{name} in a chat");
            if let Some(golden) = golden {
                let said = format!("{PROMPT}{whole}");
                assert!(golden.starts_with(&said), "{name}: {said:?} is not of {golden:?}");
            }
        }
    }

    /// Runs the chart's own test.
    fn is_well(&self) {
        let output = self.helm(&["test", "sluice", "--namespace", SYSTEM]);
        assert!(output.contains("Succeeded"), "{output}");
        self.the_operator_may_reach_slots();
    }

    /// Checks the output of the CLI.
    async fn is_explained(&self) {
        let explained = self.sluice(&["explain", "chat"]);
        assert!(explained.contains(&format!("{}/chat is ready.", self.namespace)), "{explained}");
        assert!(explained.contains("Its share of the GPU is"), "the leader was asked: {explained}");
        assert!(explained.contains("Events") && !explained.contains("cannot be read"), "{explained}");
        let all = async || {
            let top = self.sluice(&["top", "--once"]);
            TENANTS.iter().all(|name| top.contains(&format!("{}/{name}", self.namespace))).then_some(())
        };
        self.wait("top shows all three", all).await;
    }

    /// Adds and removes a second slot on a second GPU with open streams, also on the removed pod.
    async fn scales(&self) {
        let two = json!([{"name": "shared", "count": 2, "sharing": {"mode": "Spatial"}}]);
        self.change("gpupool", "trial", &json!({"gpus": two}));
        let before = self.complete("chat", 200).await;
        let (streams, engine) = self.held_streams("chat", 20, 200).await;
        self.kubectl(&["scale", "modeltenant", "chat", "--replicas", "2"]);
        let two = async || (self.tenant("chat")["status"]["slots"].as_array()?.len() == 2).then_some(());
        self.wait("two slots", two).await;
        self.condition("chat", "Ready", "True").await;
        engine.go_on();
        streams.end_with(&before).await;

        let (streams, engines) = self.held_streams_of_all("chat", 20, 200).await;
        self.kubectl(&["scale", "modeltenant", "chat", "--replicas", "1"]);
        let terminating = async || {
            let mut pods = self.pods("chat").into_iter();
            let terminating = pods.find(is_terminating)?;
            terminating["status"]["podIP"].as_str().map(str::to_owned)
        };
        let address = self.wait("one pod is ordered to end", terminating).await;
        let open = value(&self.metrics(&address).await, "sluice_open_requests", "chat", &[]);
        assert!(open > 0.0, "no stream is open where it matters");
        engines.into_iter().for_each(Stopped::go_on);
        streams.end_with(&before).await;
        self.pods_of("chat", 1).await;
    }

    /// The driver, which ends the pods, cannot be uninstalled while tenants exist.
    async fn is_kept(&self) {
        // helm prints the output of a hook as one quoted line.
        let output = self.refused_uninstall().replace("\\n", "\n");
        assert!(output.contains("ModelTenants exist"), "{output}");
        let command = output.lines().find_map(|line| line.trim_start().strip_prefix("helm rollback "));
        let words: Vec<_> = command.unwrap_or_else(|| panic!("no way back: {output}")).split(' ').collect();
        self.helm(&[&["rollback"][..], &words, &["--wait", "--timeout", "3m"]].concat());
        self.release("upgrade", &chart(), &[]);
        let kinds = ["-n", SYSTEM, "get", "deployments,daemonsets", "-o", "name"];
        assert_eq!(self.kubectl(&kinds).lines().count(), 2, "the operator and the driver");
        self.complete("summary", 8).await;
    }

    /// Deleting a tenant deletes its pods.
    async fn is_removed(&self) {
        self.kubectl(&["delete", "modeltenant", "code"]);
        self.pods_of("code", 0).await;
        self.complete("summary", 8).await;
    }
}

#[test]
fn from_helm_install_to_answers_lent_memory_scaling_and_the_end() {
    on_node_exclusive(async |node| {
        let Some(product) = Product::install_for_users(node).await else { return };
        product.read_often();
        let (folder, golden) = model();
        let hub = product.hub(&folder).await;
        product.serves(&hub, golden.as_deref()).await;
        product.is_well();
        let may_stop_engines = product.may_stop_engines();
        if may_stop_engines {
            product.lends().await;
            product.takes_back().await;
        }
        product.is_explained().await;
        if may_stop_engines {
            product.changes().await;
            product.scales().await;
        }
        product.is_kept().await;
        product.is_removed().await;
        rights::end_of(Run::Product, &product);
        product.end();
    });
}
