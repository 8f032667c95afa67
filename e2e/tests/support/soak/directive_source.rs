//! The source of directives. From the first directive of the plan on, those of `sluice up` are refused because its
//! epoch is older.

use std::sync::Arc;
use std::time::Duration;

use reqwest::{Method, StatusCode};
use sluice_wire::config::SidecarRecord;
use sluice_wire::directive::{Directive, Fence, Sharing, SliceOrder};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::SoakRun;
use super::finding::Finding;
use super::load::SLOW_CLIENT;
use super::plan::directive::{PlannedDirective, Wrong};
use super::tenant::SoakTenant;

/// Limit for an answer: a stopped sidecar gets the directive later.
const WAIT_LIMIT: Duration = Duration::from_secs(2);

/// The directive in force.
struct DirectiveSource {
    stage: Arc<SoakRun>,
    /// Last directive of `sluice up` to each tenant.
    base: Vec<Directive>,
    change: PlannedDirective,
    fence: Fence,
    /// Records of the tenants at the start of the last round.
    records: Vec<SidecarRecord>,
    /// Instance of each tenant, and the fence that it received last.
    sent: Vec<Option<(u32, Fence)>>,
}

/// Sends directives, and sends all again when a tenant has another port. Never returns.
pub async fn lead(stage: &Arc<SoakRun>, planned: &[PlannedDirective], begun: Instant) {
    let mut reign: Option<DirectiveSource> = None;
    // A tenant without peers has no directive.
    for change in planned.iter().filter(|_| stage.trades) {
        while Instant::now() < begun + change.at {
            if let Some(reign) = &mut reign {
                reign.send_next().await;
            }
            tokio::time::sleep(super::PAUSE).await;
        }
        match &mut reign {
            None => reign = Some(DirectiveSource::begin(stage, change.clone()).await),
            Some(reign) => reign.change(change.clone()).await,
        }
    }
    loop {
        if let Some(reign) = &mut reign {
            reign.send_next().await;
        }
        tokio::time::sleep(super::PAUSE).await;
    }
}

impl DirectiveSource {
    async fn begin(stage: &Arc<SoakRun>, change: PlannedDirective) -> DirectiveSource {
        let mut base = Vec::new();
        for member in &stage.tenants {
            base.push(in_force(member).await);
        }
        let epoch = base.iter().map(|directive| directive.epoch).max().unwrap() + 1;
        let (fence, sent) = (Fence { epoch, sequence: 0 }, vec![None; base.len()]);
        DirectiveSource { stage: stage.clone(), base, change, fence, records: Vec::new(), sent }
    }

    async fn change(&mut self, change: PlannedDirective) {
        if let Some((tenant, wrong)) = change.wrong {
            self.try_wrong(tenant, wrong).await;
        }
        self.change = change;
        self.fence.sequence += 1;
        self.send_next().await;
    }

    /// Sends the directive to every tenant that does not have it yet.
    async fn send_next(&mut self) {
        let Some(records) = self.stage.tenants.iter().map(|m| Some(m.now()?.record)).collect() else {
            return;
        };
        if self.records != records {
            self.records = records;
            self.fence.sequence += 1;
        }
        let mut round = JoinSet::new();
        for (tenant, record) in self.records.iter().cloned().enumerate() {
            let news = Some((record.pid, self.fence));
            if self.sent[tenant] != news {
                let directive = self.directive(tenant);
                round.spawn(async move { (tenant, news, send_directive(&record, &directive).await) });
            }
        }
        for (tenant, news, answer) in round.join_all().await {
            match answer {
                Some((StatusCode::OK, _)) => {
                    self.sent[tenant] = news;
                    self.stage.stats.count(|tally| tally.directives += 1);
                }
                Some((status, text)) if status.is_client_error() => {
                    self.sent[tenant] = news;
                    self.add_finding(tenant, &format!("{status}: {text}"));
                }
                // It has exited, is stopped, or loads: the directive is sent again.
                _ => {}
            }
        }
    }

    fn add_finding(&self, tenant: usize, what: &str) {
        let name = &self.stage.tenants[tenant].name;
        self.stage
            .findings
            .add(Finding::Directive(format!("{name} {:?} {:?}: {what}", self.fence, self.change)));
    }

    fn directive(&self, tenant: usize) -> Directive {
        let (mut directive, change) = (self.base[tenant].clone(), &self.change);
        (directive.epoch, directive.sequence) = (self.fence.epoch, self.fence.sequence);
        (directive.victim, directive.min_residence_ms) = (change.victim, change.min_residence_ms);
        directive.revoke_bound_ms = change.revoke_bound_ms;
        directive.tenant.priority = change.priorities[tenant];
        directive.tenant.hibernate_after_seconds = change.hibernate_after[tenant];
        directive.tenant.max_remapped_percent = change.caps[tenant];
        directive.tenant.share_bytes = Some(self.share(tenant));
        for peer in &mut directive.peers {
            let index = self.records.iter().position(|record| record.name == peer.name).unwrap();
            (peer.admin, peer.priority) = (self.records[index].admin, change.priorities[index]);
        }
        directive
    }

    /// Returns the share of a tenant: shares move between tenants, and their sum is constant.
    fn share(&self, tenant: usize) -> u64 {
        let base = |tenant: usize| self.base[tenant].tenant.share_bytes.expect("it was dealt a share");
        let (from, to, permille) = self.change.moved;
        let moved = base(from) * permille / 1000;
        match tenant {
            own if from == to => base(own),
            own if own == from => base(own) - moved,
            own if own == to => base(own) + moved,
            own => base(own),
        }
    }

    /// Sends a tenant a directive that it must refuse, and checks that the one in force stays.
    async fn try_wrong(&mut self, tenant: usize, wrong: Wrong) {
        let (Some(record), Some((_, fence))) = (self.records.get(tenant), self.sent[tenant]) else { return };
        let mut directive = self.directive(tenant);
        let expected = corrupt(&mut directive, wrong);
        let (stage, record) = (self.stage.clone(), record.clone());
        let member = &stage.tenants[tenant];
        let Some((status, text)) = send_directive(&record, &directive).await else { return };
        let now = tokio::time::timeout(WAIT_LIMIT, in_force(member)).await;
        let kept = now.is_ok_and(|now| now.fence() == fence && now.sharing == self.base[tenant].sharing);
        if (status, kept) == (expected, true) {
            stage.stats.count(|tally| tally.refusals += 1);
        } else if member.now().is_some_and(|tenant| tenant.record == record)
            && status != StatusCode::SERVICE_UNAVAILABLE
        {
            self.add_finding(tenant, &format!("{wrong:?}: {status}, kept {kept}: {text}"));
        }
    }
}

/// Makes a directive invalid and returns the expected status.
fn corrupt(directive: &mut Directive, wrong: Wrong) -> StatusCode {
    directive.sequence += 1_000_000;
    match wrong {
        Wrong::Mode => {
            directive.sharing = match directive.sharing {
                Sharing::Spatial => {
                    Sharing::Temporal { order: SliceOrder::RoundRobin, min_quantum_ms: 5, max_quantum_ms: 50 }
                }
                Sharing::Temporal { .. } | Sharing::Isolated => Sharing::Spatial,
            }
        }
        Wrong::Policy => directive.policy = "Magic".into(),
        Wrong::Replayed => {
            (directive.sequence, directive.revoke_bound_ms) = (0, 7);
            return StatusCode::CONFLICT;
        }
    }
    StatusCode::UNPROCESSABLE_ENTITY
}

/// Returns status and text of the answer; `None` = no answer in time.
async fn send_directive(record: &SidecarRecord, directive: &Directive) -> Option<(StatusCode, String)> {
    let body = serde_json::to_vec(directive).unwrap();
    tokio::time::timeout(WAIT_LIMIT, ask(record, Method::PUT, body)).await.ok().flatten()
}

/// Returns the directive of a tenant; polls until it has one.
async fn in_force(member: &SoakTenant) -> Directive {
    loop {
        let record = member.locate().await.record;
        if let Some((StatusCode::OK, text)) = ask(&record, Method::GET, Vec::new()).await {
            return Directive::from_json(text.as_bytes()).unwrap();
        }
        tokio::time::sleep(super::PAUSE).await;
    }
}

async fn ask(record: &SidecarRecord, method: Method, body: Vec<u8>) -> Option<(StatusCode, String)> {
    let token = std::fs::read_to_string(&record.token_file).ok()?;
    let request =
        SLOW_CLIENT.request(method, format!("http://{}/v1/directive", record.admin)).bearer_auth(token);
    let response = request.header("content-type", "application/json").body(body).send().await.ok()?;
    Some((response.status(), response.text().await.ok()?))
}
