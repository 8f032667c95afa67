//! Rows of the design's failure table on a real node: pods, processes and components of serving tenants fail, and
//! no token changes.

mod background_load;
mod cut;
mod device;
mod hangs;
mod hostile;
mod keys;
mod ledger;
mod link;

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};
use sluice_e2e::cluster::{on_node_exclusive, skipped, within};
use sluice_e2e::hub::WEIGHTS;

use crate::installed::admin::{Admin, Credential};
use crate::installed::pod::{name, ready_since};
use crate::installed::processes::{Container, container, kill};
use crate::installed::{Load, PROMPT, Product, SYSTEM, TENANTS, model, tenant, value};
use crate::rights::{self, Run};

/// Time within which an engine is killed ten times.
const MINUTE: Duration = Duration::from_secs(60);
/// Limit for an idle pod to end. Its grace period is three times as long.
const PROMPTLY: Duration = Duration::from_secs(15);
const CHAT: &str = TENANTS[0];
const CODE: &str = TENANTS[1];
const SUMMARY: &str = TENANTS[2];

/// Three serving tenants, and their expected output.
struct Rows<'a> {
    product: &'a Product<'a>,
    /// The 200 tokens after the prompt.
    golden: String,
    load: Load,
}

impl<'a> Rows<'a> {
    async fn of(product: &'a Product<'a>, golden: Option<&str>) -> Rows<'a> {
        let whole = product.complete(CHAT, 200).await;
        let said = format!("{PROMPT}{whole}");
        if let Some(golden) = golden {
            assert!(said.starts_with(golden) || golden.starts_with(&said), "{said:?} is not of {golden:?}");
        }
        let load = Load::new(product, CODE).await;
        Rows { product, golden: whole, load }
    }

    /// Deletes a pod with 20 open streams.
    async fn a_pod_that_is_deleted_finishes_its_streams_and_another_one_serves(&self) {
        let before = name(&self.product.pod(CHAT));
        let (streams, engine) = self.product.held_streams(CHAT, 20, 200).await;
        self.product.kubectl(&["delete", "pod", &before, "--wait=false"]);
        engine.go_on();
        streams.end_with(&self.golden).await;
        let finished = Instant::now();
        let gone = async || self.product.pods(CHAT).iter().all(|pod| name(pod) != before).then_some(());
        self.product.wait("the end of the old pod", gone).await;
        assert!(finished.elapsed() < PROMPTLY, "with nothing to do, it took {:?}", finished.elapsed());
        self.product.ready_again(CHAT, &|pod| name(pod) != before).await;
        let sidecar = container(&self.product.pod(CHAT), "sidecar");
        assert_eq!(sidecar.restarts, 0, "it waits for the end of the old one");
        assert_eq!(self.product.complete(CHAT, 200).await, self.golden);
    }

    /// Kills an engine repeatedly in the middle of requests.
    async fn an_engine_that_dies_ten_times_in_a_minute_restarts_no_container_and_costs_no_token(&self) {
        let pod = self.product.pod(CHAT);
        let (engine, address) = (container(&pod, "engine"), self.product.address(CHAT));
        let (load, begun) = (self.load.part(12), Instant::now());
        for time in 1..=10 {
            // The load is sent again if none of it has run when the engine is killed, as on a busy machine.
            let done = AtomicBool::new(false);
            let killed = async {
                self.kill_worker(&engine, &address, time).await;
                done.store(true, Ordering::Relaxed);
            };
            tokio::join!(load.answered_until(self.product, CHAT, &done), killed);
        }
        let took = begun.elapsed();
        assert!(took < MINUTE, "ten times in a minute: {took:?}");
        assert_eq!(self.product.complete(CHAT, 200).await, self.golden);
        let after = self.product.pod(CHAT);
        assert_eq!(ready_since(&after), ready_since(&pod), "the pod was ready all the time");
        for name in ["engine", "sidecar"] {
            assert_eq!(container(&after, name).restarts, 0, "{name}");
        }
    }

    /// Kills the engine's worker while it computes, and waits until its sidecar has counted the `time`th crash.
    async fn kill_worker(&self, engine: &Container, address: &str, time: u32) {
        let sample = |metrics: &str, name: &str| value(metrics, name, CHAT, &[]);
        let running = async || {
            let metrics = self.product.metrics(address).await;
            (sample(&metrics, "vllm:num_requests_running") > 0.0).then_some(())
        };
        // Polls without a pause: the requests may be short.
        within(MINUTE, "requests run", running).await;
        let worker = async || engine.worker();
        kill(self.product.wait("a worker", worker).await);
        let noticed = async || {
            let metrics = self.product.metrics(address).await;
            (sample(&metrics, "sluice_engine_losses_total") >= f64::from(time)).then_some(())
        };
        self.product.wait("its sidecar notices", noticed).await;
    }

    /// Stops the operator and then the API server. Sidecars restart, and lend by their stored directive.
    async fn without_operator_and_api_server_a_killed_sidecar_follows_its_stored_directive(&self) {
        let operator = Credential::of_operator(self.product);
        self.operators(0).await;
        self.product.change("modeltenant", CHAT, &json!({"priority": 7}));
        let address = self.product.address(CODE);
        let admin = Admin::of(self.product, CODE, &address);
        let directive = admin.directive(&operator).await;
        let sidecar = container(&self.product.pod(CODE), "sidecar");
        kill(sidecar.first().expect("it runs"));
        self.product
            .ready_again(CODE, &|pod| container(pod, "sidecar").restarts == sidecar.restarts + 1)
            .await;
        assert_eq!(admin.directive(&operator).await, directive, "it was stored");
        self.product.borrows(CODE, &address, &self.load).await;
        if self.product.node.api().is_own() {
            self.without_api_server(&operator).await;
        } else {
            skipped("an API server of another owner is not stopped");
        }

        let seen =
            |tenant: &Value| tenant["status"]["observedGeneration"] == tenant["metadata"]["generation"];
        assert!(!seen(&self.product.tenant(CHAT)), "no operator has seen the change");
        self.operators(1).await;
        let written = async || seen(&self.product.tenant(CHAT)).then_some(());
        self.product.wait("the operator writes the status", written).await;
        self.product.condition(CHAT, "Ready", "True").await;
    }

    /// The same for another sidecar, while the API server is stopped.
    async fn without_api_server(&self, operator: &Credential) {
        let address = self.product.address(SUMMARY);
        let admin = Admin::of(self.product, SUMMARY, &address);
        let (directive, sidecar) =
            (admin.directive(operator).await, container(&self.product.pod(SUMMARY), "sidecar"));
        self.product.reached(SUMMARY).await;
        self.product.node.signal("kube-apiserver", Signal::STOP);
        kill(sidecar.first().expect("it runs"));
        self.serves_anew(SUMMARY, &address).await;
        assert_eq!(admin.directive(operator).await, directive, "it was stored");
        self.product.borrows(SUMMARY, &address, &self.load).await;
        self.product.node.signal("kube-apiserver", Signal::CONT);
    }

    /// Kills the leader's process with open streams: another replica takes over and sends its directives to all
    /// sidecars.
    async fn a_leader_that_is_killed_is_followed_and_no_stream_notices(&self) {
        let (lives, operator) = (self.product.lives(), Credential::of_operator(self.product));
        let admin = Admin::of(self.product, CODE, &self.product.address(CODE));
        let before = admin.directive(&operator).await["epoch"].as_u64();
        let (streams, engine) = self.product.held_streams(CHAT, 5, 200).await;
        let holder = ["get", "lease", "sluice-operator", "-o", "jsonpath={.spec.holderIdentity}"];
        let leader = self.product.kubectl(&[&["-n", SYSTEM], &holder[..]].concat());
        let pod = self.product.kubectl(&["-n", SYSTEM, "get", "pod", &leader, "-o", "json"]);
        let pod: Value = serde_json::from_str(&pod).unwrap();
        kill(container(&pod, "operator").first().expect("it leads"));
        let follows = async || (admin.directive(&operator).await["epoch"].as_u64() > before).then_some(());
        self.product.wait("sidecars follow the next leader", follows).await;
        engine.go_on();
        streams.end_with(&self.golden).await;
        assert_eq!(self.product.lives(), lives, "no pod was replaced, and nothing in one was started again");
    }

    /// Waits until the sidecar at this address answers again. Polls only its own port.
    async fn serves_anew(&self, tenant: &str, address: &str) {
        let restarts = async || {
            let metrics = self.product.http.get(format!("http://{address}:8002/ready")).send().await;
            metrics.is_err().then_some(())
        };
        self.product.wait(&format!("{tenant} is away"), restarts).await;
        let url = format!("http://{address}:8002/ready");
        let ready = async || {
            let answer = self.product.http.get(&url).send().await.ok()?;
            answer.status().is_success().then_some(())
        };
        self.product.wait(&format!("{tenant} is back"), ready).await;
    }

    /// Scales the operator to `count` replicas and waits.
    async fn operators(&self, count: usize) {
        let replicas = format!("--replicas={count}");
        self.product.kubectl(&["-n", SYSTEM, "scale", "deployment/sluice-operator", &replicas]);
        let there = async || {
            let pods = ["-n", SYSTEM, "get", "pods", "-l", "app.kubernetes.io/name=sluice-operator"];
            let names = self.product.kubectl(&[&pods[..], &["-o", "name"]].concat());
            (names.lines().count() == count).then_some(())
        };
        self.product.wait(&format!("{count} operators"), there).await;
    }

    /// Peers can read a sidecar's state. Only the operator can send directives.
    async fn peers_can_read_and_only_operator_can_direct(&self) {
        let admin = Admin::of(self.product, CHAT, &self.product.address(CHAT));
        let operator = Credential::of_operator(self.product);
        let peer = Credential::of_slot(self.product, CODE);
        let directive = admin.directive(&operator).await;
        let mut stolen = directive.clone();
        (stolen["sequence"], stolen["policy"]) = (json!(u64::MAX), json!("Recompute"));
        let put = async |who: &Credential, what: &Value| {
            admin.ask(who, Method::PUT, "/v1/directive", Some(what)).await
        };
        let (status, words) = put(&peer, &stolen).await.unwrap();
        assert_eq!(status, 403, "{words}");
        assert!(words.contains("the role Peer may not use this path"), "{words}");
        let (status, state) = admin.ask(&peer, Method::GET, "/v1/state", None).await.unwrap();
        assert_eq!(status, 200, "{state}");
        let nobody = Credential::none(self.product, CHAT);
        assert!(put(&nobody, &stolen).await.is_err(), "without a certificate there is no connection");
        let mut older = stolen;
        older["sequence"] = json!(directive["sequence"].as_u64().unwrap() - 1);
        let (status, words) = put(&operator, &older).await.unwrap();
        assert_eq!(status, 409, "the operator is heard, and what is older changes nothing: {words}");
        assert_eq!(admin.directive(&operator).await, directive);
    }

    /// An engine with a custom image has the same user id as its sidecar and sees its processes. It cannot read its
    /// files.
    fn an_engine_cannot_read_its_sidecars_keys(&self) {
        let pod = self.product.pod(CHAT);
        let lists = |name: &str, path: &str| {
            let process = container(&pod, name).first().expect("it runs").as_raw_nonzero();
            let mut list = Command::new("ls");
            // The user of the images, and no capabilities, as in the images.
            list.arg(format!("/proc/{process}/root{path}")).uid(65532).gid(65532);
            String::from_utf8(list.output().unwrap().stdout).unwrap()
        };
        assert!(lists("engine", "/").contains("etc"), "one process of a user may look at another one");
        let sidecar = container(&pod, "sidecar").first().expect("it runs").as_raw_nonzero();
        let program = std::fs::metadata(format!("/proc/{sidecar}/root/usr/bin/sluice-sidecar")).unwrap();
        let from_its_start = (program.uid(), program.mode() & 0o777);
        assert_eq!(from_its_start, (0, 0o711), "who may not read a program cannot look into it");
        assert_eq!(lists("sidecar", "/etc/sluice-tls"), "");
        assert_eq!(lists("sidecar", "/"), "");
    }

    /// A model whose weights do not match their description is refused before its pod is created. The message names
    /// the file.
    async fn unreadable_model_is_reported_in_status(&self, folder: &Path) {
        let broken = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            std::fs::copy(entry.path(), broken.path().join(entry.file_name())).unwrap();
        }
        std::fs::write(broken.path().join(WEIGHTS), [0xff; 64]).unwrap();
        let hub = self.product.hub(broken.path()).await;
        self.product.apply(&[tenant("broken", hub.endpoint())]);
        self.product.condition("broken", "Accepted", "False").await;
        let accepted = self.product.condition_of("broken", "Accepted").unwrap();
        assert!(accepted["message"].as_str().unwrap().contains(WEIGHTS), "{accepted}");
        self.product.kubectl(&["delete", "modeltenant", "broken"]);
    }
}

/// Starts the tenants and runs `rows` with the folder of their model, where engines can be stopped.
async fn with_rows(product: &Product<'_>, rows: impl AsyncFnOnce(&Rows<'_>, &Path)) {
    let (folder, golden) = model();
    let hub = product.hub(&folder).await;
    product.start_tenants(&hub).await;
    if product.may_stop_engines() {
        rows(&Rows::of(product, golden.as_deref()).await, &folder).await;
    }
}

#[test]
fn what_fails_on_a_node_costs_no_token() {
    on_node_exclusive(async |node| {
        let Some(product) = Product::install(node).await else { return };
        with_rows(&product, async |rows, folder| {
            rows.a_pod_that_is_deleted_finishes_its_streams_and_another_one_serves().await;
            rows.an_engine_that_dies_ten_times_in_a_minute_restarts_no_container_and_costs_no_token().await;
            rows.unreadable_model_is_reported_in_status(folder).await;
            rows.peers_can_read_and_only_operator_can_direct().await;
            rows.an_engine_cannot_read_its_sidecars_keys();
            rows.a_leader_that_is_killed_is_followed_and_no_stream_notices().await;
            rows.hostile_clients_are_refused_and_no_token_is_lost().await;
            rows.of_ten_thousand_streams_each_is_answered_whole_or_refused().await;
            rows.unknown_link_peers_are_refused().await;
            rows.sidecars_that_stand_still_half_of_the_time_cost_time_and_no_token().await;
            rows.a_revoked_key_is_refused_within_a_minute().await;
            rows.weights_that_find_no_pages_come_home_later().await;
            rows.ledger_balances_after_kills_during_loans().await;
            rows.a_borrower_that_is_cut_off_gives_back_by_itself().await;
            rows.frozen_peer_memory_returns_on_process_exit().await;
            rows.without_operator_and_api_server_a_killed_sidecar_follows_its_stored_directive().await;
            rights::end_of(Run::Failures, &product);
        })
        .await;
        product.end();
    });
}

#[test]
fn hung_process_on_node_is_replaced_and_peers_continue() {
    on_node_exclusive(async |node| {
        let Some(product) = Product::install_for_users(node).await else { return };
        with_rows(&product, async |rows, _| {
            rows.hung_process_in_pod_is_replaced_and_peers_continue(&hangs::ROWS).await;
            rows.stuck_slice_is_reported().await;
        })
        .await;
        product.end();
    });
}

#[test]
#[ignore = "cargo xtask nightly: ten minutes"]
fn process_that_hangs_in_any_other_state_is_replaced() {
    on_node_exclusive(async |node| {
        let Some(product) = Product::install_for_users(node).await else { return };
        with_rows(&product, async |rows, _| {
            rows.hung_process_in_pod_is_replaced_and_peers_continue(&hangs::NIGHTLY_ROWS).await;
        })
        .await;
        product.end();
    });
}
