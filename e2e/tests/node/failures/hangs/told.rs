//! What people see of a hang: conditions and events of tenants, `explain`, `top`, the live page and alerts.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::Instant;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use sluice_e2e::cluster::within;

use super::super::MINUTE;
use super::when::Views;
use crate::installed::alerts::{Labels, Scrapes, expression};
use crate::installed::pod::name;
use crate::installed::{Product, SYSTEM, TENANTS};

/// Scrapes of a turn that is held, a second apart or more.
const LOOKS: usize = 5;

/// Whoever watches the tenants of a test.
pub struct People<'a, 'p> {
    product: &'a Product<'p>,
    begun: Instant,
    scrapes: Scrapes,
}

impl<'a, 'p> People<'a, 'p> {
    pub fn of(product: &'a Product<'p>) -> People<'a, 'p> {
        People { product, begun: Instant::now(), scrapes: Scrapes::default() }
    }

    /// Scrapes all pods, as Prometheus does.
    pub async fn scrape(&mut self) {
        for tenant in TENANTS {
            let pod = self.product.pod(tenant);
            let address = pod["status"]["podIP"].as_str().expect("it runs").to_owned();
            let url = format!("http://{address}:8002/metrics");
            // One that is stopped or starts tells nothing.
            let Ok(answer) = self.product.http.get(url).timeout(MINUTE / 30).send().await else { continue };
            let Ok(metrics) = answer.text().await else { continue };
            self.scrapes.add(self.begun.elapsed(), &self.product.namespace, &name(&pod), &metrics);
        }
    }

    /// `SluiceEngineHung` holds with these words, each for this tenant; `None` = for any.
    pub fn are_alerted(&self, expected: &[(Option<&str>, &str)]) {
        let holds = self.scrapes.evaluate(&expression("SluiceEngineHung"));
        for (tenant, what) in expected {
            let is = |labels: &Labels| {
                let of = |name: &str| labels.get(name).map(String::as_str);
                of("what") == Some(what)
                    && of("gpu").is_some()
                    && tenant.is_none_or(|own| of("tenant") == Some(own))
            };
            assert!(holds.iter().any(|(labels, _)| is(labels)), "{tenant:?}: {what}: {holds:?}");
        }
    }

    /// A tenant is `Degraded` for this reason, by the hang that was the last one; there is an event, and a neighbour that took the
    /// turn names it.
    pub async fn are_told(&self, culprit: &str, reason: &str, views: &Views) {
        let title = format!("{}/{culprit}", self.product.namespace);
        let mut takers = Vec::new();
        for name in TENANTS.iter().filter(|name| **name != culprit) {
            let turn = views.state(name).await.neighbourhood.and_then(|place| place.turn);
            let taken = turn.and_then(|turn| turn.last_takeover).filter(|taken| taken.from == title);
            takers.extend(taken.map(|taken| (*name, taken.at_unix_ms)));
        }
        let taken = takers.into_iter().max_by_key(|(_, at)| *at);
        let at = match reason {
            "EngineHung" => {
                views.state(culprit).await.engine.last_hang.expect("it tells its hang").at_unix_ms
            }
            _ => taken.expect("a neighbour took the turn").1,
        };
        let second = i64::try_from(at / 1_000).unwrap();
        let at = Timestamp::from_second(second).unwrap().to_string();
        self.degraded(culprit, "True", reason, &at).await;
        self.event(culprit, reason).await;
        let Some((taker, _)) = taken.filter(|_| reason == "SidecarHung") else { return };
        let words = format!("took the turn from {title}");
        self.explained(taker, &words).await;
        self.product
            .wait("the page names the culprit", async || {
                let page = self.page().await;
                page.contains(&format!("\"from\":\"{title}\"")).then_some(())
            })
            .await;
    }

    /// While nobody can take the turn that `culprit` holds, `victim` and the GPU tell whom they wait for.
    pub async fn see_a_turn_that_is_held(&mut self, victim: &str, culprit: &str) {
        let title = format!("{}/{culprit}", self.product.namespace);
        self.degraded(victim, "True", "NeighbourHung", &format!("which {title} holds past its deadline"))
            .await;
        self.event(victim, "NeighbourHung").await;
        self.degraded(culprit, "True", "SidecarHung", "does not answer and has held the turn").await;
        self.event(culprit, "SidecarHung").await;
        self.explained(victim, &format!("which {title} holds")).await;
        let top = self.product.sluice(&["top", "--once"]);
        let late =
            |text: &str| text.contains(&format!("turn {title}, ")) && text.contains("past its deadline");
        assert!(late(&top.replace('\n', " ")), "{top}");
        let page: Value = serde_json::from_str(&self.page().await).unwrap();
        let turns = page.to_string();
        assert!(turns.contains(&format!("\"holder\":\"{title}\"")), "{turns}");
        // Prometheus has seen nothing else for as long as the rule looks back.
        let mut held = People::of(self.product);
        for _ in 0..LOOKS {
            held.scrape().await;
        }
        let holds = held.scrapes.evaluate(&expression("SluiceTurnHeld"));
        let pod = name(&self.product.pod(victim));
        let of_victim = holds.iter().find(|(labels, _)| labels.get("pod") == Some(&pod));
        assert!(of_victim.is_some_and(|(_, seconds)| *seconds > 1.0), "SluiceTurnHeld of {pod}: {holds:?}");
    }

    async fn degraded(&self, tenant: &str, status: &str, reason: &str, words: &str) {
        let told = async || {
            let degraded = self.product.condition_of(tenant, "Degraded")?;
            let message = degraded["message"].as_str()?.to_owned();
            let is = degraded["status"] == status && degraded["reason"] == reason;
            (is && message.contains(words)).then_some(())
        };
        self.product.wait(&format!("{tenant} is Degraded={status}, {reason}: {words}"), told).await;
    }

    async fn event(&self, tenant: &str, reason: &str) {
        let of = format!("involvedObject.kind=ModelTenant,involvedObject.name={tenant},reason={reason}");
        let there = async || {
            let events = self.product.kubectl(&["get", "events", "--field-selector", &of, "-o", "name"]);
            (!events.is_empty()).then_some(())
        };
        self.product.wait(&format!("an event {reason} of {tenant}"), there).await;
    }

    /// `sluice explain` of a tenant says this, once the operator has asked its sidecar.
    async fn explained(&self, tenant: &str, words: &str) {
        let begun = Instant::now();
        let said = async || {
            let said = self.product.sluice(&["explain", tenant]);
            assert!(begun.elapsed() < 2 * MINUTE || said.contains(words), "without `{words}`: {said}");
            said.contains(words).then_some(())
        };
        self.product.wait(&format!("explain {tenant} says: {words}"), said).await;
    }

    /// What the live page shows, as it reads it from the leader.
    async fn page(&self) -> String {
        let forwarded = Forwarded::of_leader(self.product);
        let url = format!("http://{}/v1/overview", forwarded.address);
        let read = async || self.product.http.get(&url).send().await.ok();
        within(MINUTE, "the leader's read API", read).await.text().await.unwrap()
    }
}

/// The read API of the leader, at a port of this machine.
struct Forwarded {
    child: Child,
    address: String,
}

impl Forwarded {
    fn of_leader(product: &Product<'_>) -> Forwarded {
        let holder = ["get", "lease", "sluice-operator", "-o", "jsonpath={.spec.holderIdentity}"];
        let leader = product.kubectl_anywhere(&[&["-n", SYSTEM], &holder[..]].concat());
        let mut command =
            product.node.api().kubectl(&["-n", SYSTEM, "port-forward", &format!("pod/{leader}"), ":8003"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut lines = BufReader::new(child.stdout.take().expect("its words"));
        lines.read_line(&mut line).unwrap();
        let address = line.strip_prefix("Forwarding from ").and_then(|rest| rest.split(' ').next());
        let address = address.unwrap_or_else(|| panic!("kubectl port-forward says: {line}")).to_owned();
        // It tells of each connection, and would end where nobody listens.
        std::thread::spawn(move || lines.lines().for_each(drop));
        Forwarded { child, address }
    }
}

impl Drop for Forwarded {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
