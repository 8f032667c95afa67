//! Tells tenants to sleep and wakes them, as the plan says.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use reqwest::StatusCode;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::finding::Finding;
use super::load::PATIENT;
use super::member::Member;
use super::plan::nap::{Moment, Nap};
use super::plan::trouble::Deed;
use super::{Stage, trouble};

/// Looks until an order must have been carried out, 100 ms apart: 50 s.
const LOOKS: u32 = 500;

/// What became of an order.
enum Order {
    /// It was carried out.
    Done,
    /// Another one came between, or the tenant is not that far.
    NotNow,
    /// Whoever should have carried it out was killed.
    Killed,
    /// None of these.
    Failed(String),
}

/// All naps. Ends when everybody was told to wake up.
pub async fn lull(stage: &Arc<Stage>, naps: &[Nap], begun: Instant) {
    let mut under_way = JoinSet::new();
    for nap in naps.iter().cloned() {
        let stage = stage.clone();
        under_way.spawn(async move {
            tokio::time::sleep_until(begun + nap.at).await;
            stage.members[nap.tenant].told_to_sleep.fetch_add(1, Ordering::Relaxed);
            take(&stage, &nap).await;
            stage.members[nap.tenant].told_to_sleep.fetch_sub(1, Ordering::Relaxed);
        });
    }
    under_way.join_all().await;
}

async fn take(stage: &Stage, nap: &Nap) {
    let member = &stage.members[nap.tenant];
    let falls = order(member, if nap.level == 1 { "/sleep" } else { "/sleep?level=2" });
    let rises = async {
        tokio::time::sleep(nap.lasts).await;
        order(member, "/wake_up").await
    };
    let (fell, rose, ()) = tokio::join!(falls, rises, blow(stage, nap));
    stage.tally.count(|tally| match fell {
        Order::Done => tally.told_naps[usize::from(nap.level) - 1] += 1,
        Order::NotNow => tally.broken_naps += 1,
        Order::Killed | Order::Failed(_) => {}
    });
    // The order to sleep may have been heard last.
    let again = order(member, "/wake_up").await;
    for end in [fell, rose, again] {
        if let Order::Failed(why) = end {
            stage.findings.add(Finding::Failed(format!("{} {nap:?}: {why}", member.name)));
        }
    }
}

async fn blow(stage: &Stage, nap: &Nap) {
    let Some(blow) = nap.blow else { return };
    let (at, index) = match blow.moment {
        Moment::Falling => (Duration::ZERO, 0),
        Moment::Asleep => (nap.lasts / 2, 1),
        Moment::Rising => (nap.lasts, 2),
    };
    tokio::time::sleep(at + blow.after).await;
    if trouble::strike(stage, nap.tenant, blow.side, Deed::Kill).await {
        stage.tally.count(|tally| tally.nap_kills[index] += 1);
    }
}

async fn order(member: &Member, path: &str) -> Order {
    let before = member.kills();
    let answer = tokio::select! {
        answer = post(member, path) => answer,
        () = patience() => Err("no answer".into()),
    };
    match answer {
        Ok((StatusCode::OK, _)) => Order::Done,
        Ok((StatusCode::CONFLICT, _)) => Order::NotNow,
        _ if before.excuse(member.kills()) => Order::Killed,
        Ok((status, text)) => Order::Failed(format!("POST {path}: {status}: {text}")),
        Err(why) => Order::Failed(format!("POST {path}: {why}")),
    }
}

async fn post(member: &Member, path: &str) -> Result<(StatusCode, String), String> {
    let tenant = member.found().await;
    let token = std::fs::read_to_string(&tenant.record.token_file).map_err(|error| error.to_string())?;
    let request = PATIENT.post(format!("http://{}{path}", tenant.record.admin)).bearer_auth(token);
    let told = |error: reqwest::Error| format!("{error:?}");
    let response = request.send().await.map_err(told)?;
    let status = response.status();
    Ok((status, response.text().await.map_err(told)?))
}

/// Counted are looks: a machine that stood still is not a tenant that did.
async fn patience() {
    for _ in 0..LOOKS {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
