//! Whoever gives the directives: from the first decree of the plan on it is not `sluice up` any more, whose directives are
//! refused from then on because its epoch is older.

use std::sync::Arc;
use std::time::Duration;

use reqwest::{Method, StatusCode};
use sluice_wire::config::SidecarRecord;
use sluice_wire::directive::{Directive, Fence, Sharing, TurnOrder};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Stage;
use super::finding::Finding;
use super::load::PATIENT;
use super::member::Member;
use super::plan::decree::{Decree, Wrong};

/// An answer is waited for so long: one that stands still gets it later.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is in force.
struct Reign {
    stage: Arc<Stage>,
    /// What `sluice up` had said to each.
    base: Vec<Directive>,
    decree: Decree,
    fence: Fence,
    /// Who the tenants were when the last round began.
    records: Vec<SidecarRecord>,
    /// Which life of each was told what.
    told: Vec<Option<(u32, Fence)>>,
}

/// Gives directives, and all of them again when somebody has another port. Ends never.
pub async fn lead(stage: &Arc<Stage>, decrees: &[Decree], begun: Instant) {
    let mut reign: Option<Reign> = None;
    // Who has no neighbours has no directive.
    for decree in decrees.iter().filter(|_| stage.trades) {
        while Instant::now() < begun + decree.at {
            if let Some(reign) = &mut reign {
                reign.go_on().await;
            }
            tokio::time::sleep(super::PAUSE).await;
        }
        match &mut reign {
            None => reign = Some(Reign::begin(stage, decree.clone()).await),
            Some(reign) => reign.change(decree.clone()).await,
        }
    }
    loop {
        if let Some(reign) = &mut reign {
            reign.go_on().await;
        }
        tokio::time::sleep(super::PAUSE).await;
    }
}

impl Reign {
    async fn begin(stage: &Arc<Stage>, decree: Decree) -> Reign {
        let mut base = Vec::new();
        for member in &stage.members {
            base.push(in_force(member).await);
        }
        let epoch = base.iter().map(|directive| directive.epoch).max().unwrap() + 1;
        let (fence, told) = (Fence { epoch, sequence: 0 }, vec![None; base.len()]);
        Reign { stage: stage.clone(), base, decree, fence, records: Vec::new(), told }
    }

    async fn change(&mut self, decree: Decree) {
        if let Some((tenant, wrong)) = decree.wrong {
            self.try_wrong(tenant, wrong).await;
        }
        self.decree = decree;
        self.fence.sequence += 1;
        self.go_on().await;
    }

    /// Tells everybody who does not know it yet.
    async fn go_on(&mut self) {
        let Some(records) = self.stage.members.iter().map(|m| Some(m.now()?.record)).collect() else {
            return;
        };
        if self.records != records {
            self.records = records;
            self.fence.sequence += 1;
        }
        let mut round = JoinSet::new();
        for (tenant, record) in self.records.iter().cloned().enumerate() {
            let news = Some((record.pid, self.fence));
            if self.told[tenant] != news {
                let directive = self.directive(tenant);
                round.spawn(async move { (tenant, news, tell(&record, &directive).await) });
            }
        }
        for (tenant, news, answer) in round.join_all().await {
            match answer {
                Some((StatusCode::OK, _)) => {
                    self.told[tenant] = news;
                    self.stage.tally.count(|tally| tally.directives += 1);
                }
                Some((status, text)) if status.is_client_error() => {
                    self.told[tenant] = news;
                    self.complain(tenant, &format!("{status}: {text}"));
                }
                // It has gone, stands still, or loads: it is told again.
                _ => {}
            }
        }
    }

    fn complain(&self, tenant: usize, what: &str) {
        let name = &self.stage.members[tenant].name;
        self.stage
            .findings
            .add(Finding::Directive(format!("{name} {:?} {:?}: {what}", self.fence, self.decree)));
    }

    fn directive(&self, tenant: usize) -> Directive {
        let (mut directive, decree) = (self.base[tenant].clone(), &self.decree);
        (directive.epoch, directive.sequence) = (self.fence.epoch, self.fence.sequence);
        (directive.victim, directive.min_residence_ms) = (decree.victim, decree.min_residence_ms);
        directive.revoke_bound_ms = decree.revoke_bound_ms;
        directive.tenant.priority = decree.priorities[tenant];
        directive.tenant.hibernate_after_seconds = decree.hibernate_after[tenant];
        directive.tenant.max_remapped_percent = decree.caps[tenant];
        directive.tenant.share_bytes = Some(self.share(tenant));
        for neighbour in &mut directive.neighbours {
            let index = self.records.iter().position(|record| record.name == neighbour.name).unwrap();
            (neighbour.admin, neighbour.priority) = (self.records[index].admin, decree.priorities[index]);
        }
        directive
    }

    /// What a tenant is dealt: shares move from one to another and sum to what they were.
    fn share(&self, tenant: usize) -> u64 {
        let base = |tenant: usize| self.base[tenant].tenant.share_bytes.expect("it was dealt a share");
        let (from, to, permille) = self.decree.moved;
        let moved = base(from) * permille / 1000;
        match tenant {
            own if from == to => base(own),
            own if own == from => base(own) - moved,
            own if own == to => base(own) + moved,
            own => base(own),
        }
    }

    /// Tells a tenant what it must refuse, and sees that what was in force is.
    async fn try_wrong(&mut self, tenant: usize, wrong: Wrong) {
        let (Some(record), Some((_, fence))) = (self.records.get(tenant), self.told[tenant]) else { return };
        let mut directive = self.directive(tenant);
        let expected = spoil(&mut directive, wrong);
        let (stage, record) = (self.stage.clone(), record.clone());
        let member = &stage.members[tenant];
        let Some((status, text)) = tell(&record, &directive).await else { return };
        let now = tokio::time::timeout(PATIENCE, in_force(member)).await;
        let kept = now.is_ok_and(|now| now.fence() == fence && now.sharing == self.base[tenant].sharing);
        if (status, kept) == (expected, true) {
            stage.tally.count(|tally| tally.refusals += 1);
        } else if member.now().is_some_and(|tenant| tenant.record == record)
            && status != StatusCode::SERVICE_UNAVAILABLE
        {
            self.complain(tenant, &format!("{wrong:?}: {status}, kept {kept}: {text}"));
        }
    }
}

/// Makes a directive that must be refused, and says how.
fn spoil(directive: &mut Directive, wrong: Wrong) -> StatusCode {
    directive.sequence += 1_000_000;
    match wrong {
        Wrong::Mode => {
            directive.sharing = match directive.sharing {
                Sharing::Spatial => {
                    Sharing::Temporal { order: TurnOrder::RoundRobin, min_quantum_ms: 5, max_quantum_ms: 50 }
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

/// Status and text of the answer; `None` = there was none in time.
async fn tell(record: &SidecarRecord, directive: &Directive) -> Option<(StatusCode, String)> {
    let body = serde_json::to_vec(directive).unwrap();
    tokio::time::timeout(PATIENCE, ask(record, Method::PUT, body)).await.ok().flatten()
}

/// The directive that a tenant has; asked until there is one.
async fn in_force(member: &Member) -> Directive {
    loop {
        let record = member.found().await.record;
        if let Some((StatusCode::OK, text)) = ask(&record, Method::GET, Vec::new()).await {
            return Directive::from_json(text.as_bytes()).unwrap();
        }
        tokio::time::sleep(super::PAUSE).await;
    }
}

async fn ask(record: &SidecarRecord, method: Method, body: Vec<u8>) -> Option<(StatusCode, String)> {
    let token = std::fs::read_to_string(&record.token_file).ok()?;
    let request = PATIENT.request(method, format!("http://{}/v1/directive", record.admin)).bearer_auth(token);
    let response = request.header("content-type", "application/json").body(body).send().await.ok()?;
    Some((response.status(), response.text().await.ok()?))
}
