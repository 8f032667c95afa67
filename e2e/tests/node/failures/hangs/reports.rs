//! Reports of a hang: conditions and events of tenants, `explain`, `top`, the live page and alerts.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::Instant;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use sluice_e2e::cluster::within;
use sluice_wire::state::Takeover;

use super::super::MINUTE;
use super::hang_state::Views;
use crate::installed::alerts::{Labels, Scrapes, expression};
use crate::installed::pod::name;
use crate::installed::{Product, SYSTEM, TENANTS};

/// Texts of `SluiceEngineHung` about a peer of a hung tenant.
const TOOK: &str = "it took over the time slice of a peer that held it too long";
const SKIPPED: &str = "it skipped a peer that did not take its time slice";
/// Scrapes during a held time slice, at least a second apart.
const POLLS: usize = 5;

/// Observes the tenants from its creation on. Earlier events and samples do not count.
pub struct Observers<'a, 'p> {
    product: &'a Product<'p>,
    begun: Instant,
    scrapes: Scrapes,
}

impl<'a, 'p> Observers<'a, 'p> {
    pub async fn of(product: &'a Product<'p>) -> Observers<'a, 'p> {
        let (begun, scrapes) = (Instant::now(), Scrapes::default());
        let mut people = Observers { product, begun, scrapes };
        people.scrape_all().await;
        people
    }

    /// Scrapes all pods, as Prometheus does. Returns the number of pods that answered: a stopped or starting pod
    /// does not.
    async fn scrape(&mut self) -> usize {
        let mut answered = 0;
        for tenant in TENANTS {
            let pod = self.product.pod(tenant);
            let address = pod["status"]["podIP"].as_str().expect("it runs").to_owned();
            let url = format!("http://{address}:8002/metrics");
            let Ok(answer) = self.product.http.get(url).timeout(MINUTE / 30).send().await else { continue };
            let Ok(metrics) = answer.text().await else { continue };
            self.scrapes.add(self.begun.elapsed(), &self.product.namespace, &name(&pod), &metrics);
            answered += 1;
        }
        answered
    }

    /// Scrapes until all pods have answered.
    async fn scrape_all(&mut self) {
        let all = async || (self.scrape().await == TENANTS.len()).then_some(());
        within(MINUTE, "all pods are scraped", all).await;
    }

    /// Checks that `SluiceEngineHung` fires with each text for its tenant, by the growth of counters since this
    /// value was created.
    pub async fn are_alerted(&mut self, expected: &[(&str, &str)]) {
        self.scrape_all().await;
        let holds = self.scrapes.evaluate(&expression("SluiceEngineHung"));
        for (tenant, what) in expected {
            let is = |labels: &Labels| {
                let of = |name: &str| labels.get(name).map(String::as_str);
                of("what") == Some(what) && of("gpu").is_some() && of("tenant") == Some(tenant)
            };
            assert!(holds.iter().any(|(labels, _)| is(labels)), "{tenant}: {what}: {holds:?}");
        }
    }

    /// Checks that a tenant is `Degraded` for this reason by a hang after `since` (milliseconds since 1970), and
    /// that an event exists. A peer that took over the time slice or skipped the tenant since then names the
    /// tenant. Returns that peer, if any, and the text of its alert.
    pub async fn are_events_reported(
        &self,
        culprit: &str,
        reason: Option<&str>,
        since: u64,
        views: &Views,
    ) -> Option<(&'static str, &'static str)> {
        let title = format!("{}/{culprit}", self.product.namespace);
        let (mut takers, mut skippers) = (Vec::new(), Vec::new());
        for name in TENANTS.into_iter().filter(|name| *name != culprit) {
            let slice = views.state(name).await.peers.and_then(|place| place.time_slice);
            let slice = slice.expect("the GPU has time slices");
            takers.extend(slice.last_takeover.map(|taken| (name, taken)));
            skippers.extend(slice.last_skip.map(|skip| (name, skip)));
        }
        takers.retain(|(_, taken)| taken.from == title && taken.at_unix_ms >= since);
        skippers.retain(|(_, skip)| skip.of == title && skip.at_unix_ms >= since);
        let taken = takers.into_iter().max_by_key(|(_, taken)| taken.at_unix_ms);
        let skipped = skippers.into_iter().max_by_key(|(_, skip)| skip.at_unix_ms);
        if let Some(reason) = reason {
            let own = self.own_hang(culprit, reason, since, views).await;
            let took = taken.as_ref().map(|(_, taken)| taken.at_unix_ms);
            if let Some(at) = own.or(took) {
                assert!(at >= since, "{culprit}: {reason} is of {at}, and it was stopped at {since}");
                self.degraded(culprit, "True", reason, &second(at)).await;
                self.event(culprit, reason, since).await;
            }
            assert!(own.or(took).is_some() || skipped.is_some(), "{culprit}: a peer names it");
        }
        if let Some((skipper, _)) = &skipped {
            self.explained(skipper, &[&format!("skipped {title}, which was first in the time-slice queue")])
                .await;
            if taken.is_none()
                && let Some(reason) = reason
            {
                self.event(culprit, reason, since).await;
            }
        }
        let Some((taker, taken)) = taken else { return skipped.map(|(skipper, _)| (skipper, SKIPPED)) };
        // It reports only its last takeover.
        let words = [
            format!("took over the time slice of {title} "),
            format!(" {} ms past its deadline", taken.overdue_ms),
        ];
        self.explained(taker, &words.each_ref().map(String::as_str)).await;
        self.product
            .wait("the page names the culprit", async || {
                let page = serde_json::from_str(&self.page().await).ok()?;
                has(&page, &taken).then_some(())
            })
            .await;
        Some((taker, TOOK))
    }

    /// Returns when the culprit's sidecar detected the hang of its engine, or was itself killed, milliseconds since
    /// 1970. Checks that `explain` reports it.
    async fn own_hang(&self, culprit: &str, reason: &str, since: u64, views: &Views) -> Option<u64> {
        let state = views.state(culprit).await;
        if reason == "EngineHung" {
            let hang = state.engine.last_hang.expect("it reports its hang");
            let waited = format!(": {} ms without progress", hang.waited_ms);
            self.explained(culprit, &["Its engine hung ", &waited, "it was killed"]).await;
            return Some(hang.at_unix_ms);
        }
        let hangs = state.sidecar_hangs.filter(|hangs| hangs.at_unix_ms >= since)?;
        let waited = format!("it did not run for {} ms", hangs.waited_ms);
        self.explained(culprit, &["Its sidecar hung and was killed ", &waited]).await;
        Some(hangs.at_unix_ms)
    }

    /// Checks that a peer reports a tenant that hangs while it waits for its time slice, as long as it hangs.
    pub async fn see_a_tenant_that_was_skipped(&self, culprit: &str) {
        self.degraded(culprit, "True", "SidecarHung", "skipped it at").await;
    }

    /// Checks that `victim` and the GPU name the tenant that they wait for while `culprit` holds the time slice.
    pub async fn held_slice_is_reported(&mut self, victim: &str, culprit: &str, since: u64) {
        let title = format!("{}/{culprit}", self.product.namespace);
        self.degraded(victim, "True", "PeerHung", &format!("which {title} has held past its deadline")).await;
        self.event(victim, "PeerHung", since).await;
        self.degraded(culprit, "True", "SidecarHung", "does not answer and has held the time slice").await;
        self.event(culprit, "SidecarHung", since).await;
        self.explained(victim, &[&format!("which {title} holds")]).await;
        let top = self.product.sluice(&["top", "--once"]);
        let late =
            |text: &str| text.contains(&format!("slice {title}, ")) && text.contains("past its deadline");
        assert!(late(&top.replace('\n', " ")), "{top}");
        let page: Value = serde_json::from_str(&self.page().await).unwrap();
        let text = page.to_string();
        assert!(text.contains(&format!("\"holder\":\"{title}\"")), "{text}");
        // Prometheus would have only such samples in the window of the rule.
        self.scrapes = Scrapes::default();
        for _ in 0..POLLS {
            self.scrape().await;
        }
        let holds = self.scrapes.evaluate(&expression("SluiceTimeSliceHeld"));
        let pod = name(&self.product.pod(victim));
        let of_victim = holds.iter().find(|(labels, _)| labels.get("pod") == Some(&pod));
        assert!(
            of_victim.is_some_and(|(_, seconds)| *seconds > 1.0),
            "SluiceTimeSliceHeld of {pod}: {holds:?}"
        );
    }

    async fn degraded(&self, tenant: &str, status: &str, reason: &str, words: &str) {
        let is_degraded = async || {
            let degraded = self.product.condition_of(tenant, "Degraded")?;
            let message = degraded["message"].as_str()?.to_owned();
            let is = degraded["status"] == status && degraded["reason"] == reason;
            (is && message.contains(words)).then_some(())
        };
        self.product.wait(&format!("{tenant} is Degraded={status}, {reason}: {words}"), is_degraded).await;
    }

    /// Waits for an event of this reason whose note has a time after `since`, milliseconds since 1970.
    async fn event(&self, tenant: &str, reason: &str, since: u64) {
        let since = i64::try_from(since / 1_000).unwrap();
        let is_new = |note: &str| {
            let words = note.split(' ').map(|word| word.trim_end_matches([':', ';', ',']));
            let moment = words.filter_map(|word| word.parse::<Timestamp>().ok()).next();
            moment.is_some_and(|moment| moment.as_second() >= since)
        };
        let there = async || Events::of(self.product).notes(tenant, reason).any(is_new).then_some(());
        self.product.wait(&format!("an event of {tenant} since {since}: {reason}"), there).await;
    }

    /// Waits until `sluice explain` of a tenant has these words in one line, once the operator has polled its
    /// sidecar.
    async fn explained(&self, tenant: &str, words: &[&str]) {
        let begun = Instant::now();
        let said = async || {
            let said = self.product.sluice(&["explain", tenant]);
            let is = said.lines().any(|line| words.iter().all(|part| line.contains(part)));
            assert!(begun.elapsed() < 2 * MINUTE || is, "without {words:?}: {said}");
            is.then_some(())
        };
        self.product.wait(&format!("explain {tenant} says: {words:?}"), said).await;
    }

    /// Reads the data of the live page from the leader.
    async fn page(&self) -> String {
        let forwarded = Forwarded::of_leader(self.product);
        let url = format!("http://{}/v1/overview", forwarded.address);
        let read = async || self.product.http.get(&url).send().await.ok();
        within(MINUTE, "the leader's read API", read).await.text().await.unwrap()
    }
}

/// Formats a time, milliseconds since 1970, as conditions do.
fn second(at_unix_ms: u64) -> String {
    Timestamp::from_second(i64::try_from(at_unix_ms / 1_000).unwrap()).unwrap().to_string()
}

/// Whether a takeover is anywhere in the data of the page.
fn has(page: &Value, taken: &Takeover) -> bool {
    match page {
        Value::Object(fields) => {
            (page["from"] == *taken.from && page["at_unix_ms"] == taken.at_unix_ms)
                || fields.values().any(|field| has(field, taken))
        }
        Value::Array(items) => items.iter().any(|item| has(item, taken)),
        _ => false,
    }
}

/// Events of tenants.
struct Events(Vec<Value>);

impl Events {
    fn of(product: &Product<'_>) -> Events {
        let of = "involvedObject.kind=ModelTenant";
        let mut list: Value =
            serde_json::from_str(&product.kubectl(&["get", "events", "--field-selector", of, "-o", "json"]))
                .unwrap();
        Events(serde_json::from_value(list["items"].take()).unwrap())
    }

    /// Returns the notes of a tenant's events of this reason.
    fn notes(&self, tenant: &str, reason: &str) -> impl Iterator<Item = &str> {
        let own =
            move |event: &&Value| event["involvedObject"]["name"] == tenant && event["reason"] == reason;
        self.0.iter().filter(own).filter_map(|event| event["message"].as_str())
    }
}

/// The read API of the leader, forwarded to a local port.
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
        // The forwarder prints each connection and would exit on a closed pipe.
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
