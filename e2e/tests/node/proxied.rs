//! A tenant with a third-party server of OpenAI's API as engine, on its own GPU, and a tenant on an isolated GPU.

#[expect(dead_code, reason = "it runs as a program of its own")]
mod vllm;

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use sluice_e2e::cluster::on_node_exclusive;

use crate::installed::pod::{name, uid};
use crate::installed::processes::{container, kill};
use crate::installed::{COMPLETIONS, PROMPT, Product, TENANTS, completion, model, pool, tenant, value};
use crate::sources::image;

/// Name of the image with the engine.
const IMAGE: &str = "engines.example/vllm:1";
const CHAT: &str = TENANTS[0];
const PROXIED: &str = "proxied";

/// Answer of the engine to every request.
fn words(count: u32) -> String {
    (0..count).map(|at| format!(" w{at}")).collect()
}

/// Builds an image with the engine as `vllm` on its PATH.
fn engine(archive: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/node/proxied/vllm.rs");
    let mut compiler = Command::new("rustc");
    compiler.args(["--edition", "2024", "-O", "-C", "target-feature=+crt-static", "-o"]);
    let output = compiler.arg(folder.path().join("vllm")).arg(source).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    image::write(archive, IMAGE, folder.path(), "usr/bin");
}

fn pools() -> Value {
    let mut pool = pool(1);
    let isolated = json!({"mode": "Isolated", "isolated": {"profile": "7g.141gb"}});
    pool["spec"]["gpus"] =
        json!([{"name": "isolated", "count": 1, "sharing": isolated}, {"name": "own", "count": 1}]);
    pool
}

fn proxied(hub: &str) -> Value {
    let mut tenant = tenant(PROXIED, hub);
    tenant["spec"]["gpuGroup"] = "own".into();
    // Its memory is stated, so no model is inspected.
    let resources = json!({"requests": {"cpu": "20m"}, "limits": {"cpu": "1", "memory": "128Mi"}});
    tenant["spec"]["engine"] = json!({"kind": "Vllm", "image": IMAGE, "resources": resources});
    tenant["spec"]["slo"] = json!({"tbtMilliseconds": 30});
    tenant
}

impl Product<'_> {
    /// Checks answers, complete and streamed, as of a tenant with our engine.
    async fn proxies(&self) {
        assert_eq!(self.complete(PROXIED, 8).await, words(8));
        assert_eq!(self.stream(PROXIED, 8).await, words(8));
        assert_eq!(self.chat(PROXIED, 8).await, words(8));
        assert_eq!(self.chat_stream(PROXIED, 8).await, words(8));
        assert!(!self.complete(CHAT, 8).await.is_empty(), "another tenant of the pool, on another GPU");
        let gpu = &self.tenant(PROXIED)["status"]["slots"][0]["gpu"];
        assert_eq!(gpu, "trial-own-0");
    }

    /// The idle tenant sleeps, and a request wakes it.
    async fn proxied_engine_sleeps(&self) {
        let quick = json!({"idle": {"afterSeconds": 1, "hibernateAfterSeconds": 2}});
        self.change("modeltenant", PROXIED, &quick);
        let state = async || self.tenant(PROXIED)["status"]["slots"][0]["state"].clone();
        self.wait("it sleeps", async || (state().await == "Hibernated").then_some(())).await;
        assert_eq!(self.complete(PROXIED, 8).await, words(8), "it is woken first");
        let usual = json!({"idle": {"afterSeconds": 30, "hibernateAfterSeconds": 600}});
        self.change("modeltenant", PROXIED, &usual);
    }

    /// Kills its engine in the middle of a request, which is held until the next engine runs.
    async fn proxied_engine_dies(&self) {
        let pod = self.pod(PROXIED);
        // Two seconds of output.
        let mut said = std::pin::pin!(self.complete(PROXIED, 100));
        tokio::select! {
            biased;
            said = &mut said => panic!("it was over before the engine died: {said}"),
            () = self.engine_is_at_it() => kill(container(&pod, "engine").first().expect("it runs")),
        }
        let said = said.await;
        assert_eq!(said, words(100), "said again by the next engine");
        self.ready_again(PROXIED, &|pod| container(pod, "engine").restarts == 1).await;
        let after = self.pod(PROXIED);
        assert_eq!((uid(&after), container(&after, "sidecar").restarts), (uid(&pod), 0));
    }

    /// Kills the engine of the tenant with an isolated GPU during streams: its successor continues with the same
    /// memory.
    async fn isolated_engine_dies(&self) {
        let (before, whole) = (self.pod(CHAT), self.complete(CHAT, 200).await);
        let (streams, stopped) = self.held_streams(CHAT, 5, 200).await;
        kill(container(&before, "engine").worker().expect("it runs"));
        drop(stopped);
        streams.end_with(&whole).await;
        let after = self.pod(CHAT);
        assert_eq!((uid(&after), container(&after, "engine").restarts), (uid(&before), 0));
        let metrics = self.metrics(&self.address(CHAT)).await;
        assert_eq!(value(&metrics, "sluice_engine_losses_total", CHAT, &[]), 1.0);
    }

    /// Waits until its engine answers a stream that was sent after an open request: then it has both.
    async fn engine_is_at_it(&self) {
        let address = self.address(PROXIED);
        let open = |metrics: &str| value(metrics, "sluice_open_requests", PROXIED, &[]);
        let has = async || (open(&self.metrics(&address).await) > 0.0).then_some(());
        self.wait("the request is there", has).await;
        let stream = completion(PROXIED, PROMPT, 100, true);
        let mut answer = self.post(PROXIED, COMPLETIONS, &stream).send().await.unwrap();
        assert!(answer.chunk().await.unwrap().is_some(), "the stream speaks");
    }

    /// Deletes its pod during streams, which finish first.
    async fn proxied_streams_are_finished(&self) {
        let before = self.pod(PROXIED);
        let streams = self.streams(PROXIED, 5, 150).await;
        self.kubectl(&["delete", "pod", &name(&before), "--wait=false"]);
        assert_eq!(streams.ended(), 0, "they are open");
        streams.end_with(&words(150)).await;
        self.ready_again(PROXIED, &|pod| uid(pod) != uid(&before)).await;
        assert_eq!(self.complete(PROXIED, 8).await, words(8));
    }
}

#[test]
fn a_server_of_openais_api_is_a_tenant_beside_others() {
    on_node_exclusive(async |node| {
        let Some(product) = Product::install(node).await else { return };
        product.read_often();
        let archive = tempfile::tempdir().unwrap();
        engine(&archive.path().join("engine.tar"));
        let Some(()) = node.import(&archive.path().join("engine.tar")) else { return product.end() };
        let hub = product.hub(&model().0).await;
        let mut chat = tenant(CHAT, hub.endpoint());
        chat["spec"]["gpuGroup"] = "isolated".into();
        product.apply(&[pools(), chat, proxied(hub.endpoint())]);
        for name in [CHAT, PROXIED] {
            product.condition(name, "Ready", "True").await;
            product.reached(name).await;
        }
        product.proxies().await;
        product.proxied_engine_sleeps().await;
        if product.may_stop_engines() {
            product.proxied_engine_dies().await;
            product.isolated_engine_dies().await;
        }
        product.proxied_streams_are_finished().await;
        product.end();
    });
}
