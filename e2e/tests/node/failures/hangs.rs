//! Processes of a pod that hang: the neighbours go on, what hangs is replaced, and conditions tell what it was.

use std::time::{Duration, Instant};

use serde_json::json;
use sluice_e2e::slowness::Slowness;

use super::{CHAT, CODE, Rows, SUMMARY};
use crate::installed::pod::uid;
use crate::installed::processes::{Stopped, container};
use crate::installed::{TENANTS, value};

/// Beyond three times what their answers take, neighbours wait this long at most: the floor of a deadline (2 s), the grace of a
/// takeover, and the time of a kill and of a hand-over.
const FLOOR: Duration = Duration::from_secs(3);
/// The engine's supervisor kills a sidecar after 12 s.
const SIDECAR_LIMIT: Duration = Duration::from_secs(12);

impl Rows<'_> {
    /// Other tests hold engines by stopping them, so the deadline is short for this row alone.
    pub async fn what_hangs_in_a_pod_is_replaced_and_its_neighbours_go_on(&self) {
        self.hang_timeout(2).await;
        self.an_engine_that_hangs_is_replaced().await;
        self.a_sidecar_that_hangs_is_replaced().await;
        self.hang_timeout(600).await;
    }

    async fn hang_timeout(&self, seconds: u32) {
        let before = TENANTS.map(|name| uid(&self.product.pod(name)).to_owned());
        for name in TENANTS {
            self.product.change("modeltenant", name, &json!({"engine": {"hangTimeoutSeconds": seconds}}));
        }
        for (name, before) in TENANTS.iter().zip(before) {
            self.product.ready_again(name, &|pod| *uid(pod) != before).await;
        }
    }

    /// How long the neighbours of `culprit` take to answer, against what they take when nothing hangs.
    async fn neighbours_go_on(&self, culprit: &str, usual: Duration) {
        let (begun, slowness) = (Instant::now(), Slowness::start());
        let others = TENANTS.iter().filter(|name| **name != culprit);
        let answers = others.map(|name| self.product.complete(name, 200));
        for answer in futures_util::future::join_all(answers).await {
            assert_eq!(answer, self.golden, "beside {culprit}, which hangs");
        }
        let (took, allowed) = (begun.elapsed(), slowness.allows(3 * usual + FLOOR));
        eprintln!(
            "beside {culprit}, which hangs, neighbours answered after {took:?}, usually after {usual:?}"
        );
        assert!(took <= allowed, "{took:?} beside {culprit}, {allowed:?} are allowed");
    }

    /// What the neighbours of a tenant take to answer while it streams.
    async fn usual(&self, beside: &str) -> Duration {
        let streams = self.product.streams(beside, 3, 200).await;
        let begun = Instant::now();
        let others = TENANTS.iter().filter(|name| **name != beside);
        futures_util::future::join_all(others.map(|name| self.product.complete(name, 200))).await;
        let took = begun.elapsed();
        streams.end_with(&self.golden).await;
        took
    }

    async fn told(&self, name: &str, reason: &str, words: &str) {
        let told = async || {
            let degraded = self.product.condition_of(name, "Degraded")?;
            let message = degraded["message"].as_str()?.to_owned();
            (degraded["status"] == "True" && degraded["reason"] == reason && message.contains(words))
                .then_some(())
        };
        self.product.wait(&format!("{name} is Degraded, {reason}"), told).await;
    }

    async fn an_engine_that_hangs_is_replaced(&self) {
        let usual = self.usual(CHAT).await;
        let pod = self.product.pod(CHAT);
        let (streams, stopped) = self.product.held_streams(CHAT, 5, 200).await;
        self.neighbours_go_on(CHAT, usual).await;
        streams.end_with(&self.golden).await;
        stopped.go_on();
        let metrics = self.product.metrics(&self.product.address(CHAT)).await;
        let sample = format!("sluice_engine_hangs_total{{model_name=\"{CHAT}\"}}");
        assert_eq!(value(&metrics, &sample), 1.0);
        self.told(CHAT, "EngineHung", "engine").await;
        self.product.condition(CHAT, "Ready", "True").await;
        let after = self.product.pod(CHAT);
        assert_eq!(uid(&after), uid(&pod), "the pod stays");
        for name in ["engine", "sidecar"] {
            assert_eq!(container(&after, name).restarts, 0, "{name}");
        }
    }

    async fn a_sidecar_that_hangs_is_replaced(&self) {
        let usual = self.usual(CODE).await;
        let sidecar = container(&self.product.pod(CODE), "sidecar");
        let first = sidecar.first().expect("it runs");
        // They are cut.
        let cut = self.load.part(3).sent(self.product, CODE);
        let stopped = Stopped::stop(first);
        let begun = Instant::now();
        self.neighbours_go_on(CODE, usual).await;
        let gone = async || (sidecar.first() != Some(first)).then_some(());
        self.product.wait("its engine's supervisor kills it", gone).await;
        assert!(begun.elapsed() >= SIDECAR_LIMIT / 2, "it was given its time: {:?}", begun.elapsed());
        drop((cut, stopped));
        let again = |pod: &serde_json::Value| container(pod, "sidecar").restarts == sidecar.restarts + 1;
        self.product.ready_again(CODE, &again).await;
        for name in [CODE, SUMMARY] {
            assert_eq!(self.product.complete(name, 200).await, self.golden, "{name}");
        }
    }
}
