//! Orders tenants to sleep and wakes them by plan.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use reqwest::StatusCode;
use sluice_client::run_at;
use tokio::time::Instant;

use super::finding::Finding;
use super::load::SLOW_CLIENT;
use super::plan::fault::FaultKind;
use super::plan::sleep::{Moment, PlannedSleep};
use super::tenant::SoakTenant;
use super::{SoakRun, faults};

/// Polls until an order must have been carried out, 100 ms apart: 50 s.
const POLLS: u32 = 500;

/// Result of an order.
enum SleepResult {
    /// It was carried out.
    Done,
    /// Another order interrupted it, or the tenant was not ready.
    NotNow,
    /// The process that should carry it out was killed.
    Killed,
    /// None of these.
    Failed(String),
}

/// Runs all sleeps. Returns when every tenant has been ordered to wake.
pub async fn put_to_sleep(stage: &Arc<SoakRun>, sleeps: &[PlannedSleep], begun: Instant) {
    let sleeps = sleeps.iter().cloned().map(|sleep| {
        let (stage, at) = (stage.clone(), sleep.at);
        let sleep = async move {
            stage.tenants[sleep.tenant].sleep_requested.fetch_add(1, Ordering::Relaxed);
            take(&stage, &sleep).await;
            stage.tenants[sleep.tenant].sleep_requested.fetch_sub(1, Ordering::Relaxed);
        };
        (at, sleep)
    });
    run_at(begun, sleeps).await;
}

async fn take(stage: &SoakRun, sleep: &PlannedSleep) {
    let member = &stage.tenants[sleep.tenant];
    let falls = order(member, if sleep.level == 1 { "/sleep" } else { "/sleep?level=2" });
    let rises = async {
        tokio::time::sleep(sleep.lasts).await;
        order(member, "/wake_up").await
    };
    let (fell, rose, ()) = tokio::join!(falls, rises, inject_fault(stage, sleep));
    stage.stats.count(|tally| match fell {
        SleepResult::Done => tally.ordered_sleeps[usize::from(sleep.level) - 1] += 1,
        SleepResult::NotNow => tally.interrupted_sleeps += 1,
        SleepResult::Killed | SleepResult::Failed(_) => {}
    });
    // The order to sleep may have arrived last.
    let again = order(member, "/wake_up").await;
    for end in [fell, rose, again] {
        if let SleepResult::Failed(why) = end {
            stage.findings.add(Finding::Failed(format!("{} {sleep:?}: {why}", member.name)));
        }
    }
}

async fn inject_fault(stage: &SoakRun, sleep: &PlannedSleep) {
    let Some(blow) = sleep.fault else { return };
    let (at, index) = match blow.moment {
        Moment::Suspending => (Duration::ZERO, 0),
        Moment::Asleep => (sleep.lasts / 2, 1),
        Moment::Waking => (sleep.lasts, 2),
    };
    tokio::time::sleep(at + blow.after).await;
    if faults::kill_or_stop(stage, sleep.tenant, blow.side, FaultKind::Kill).await {
        stage.stats.count(|tally| tally.sleep_kills[index] += 1);
    }
}

async fn order(member: &SoakTenant, path: &str) -> SleepResult {
    let before = member.kills();
    let answer = tokio::select! {
        answer = post(member, path) => answer,
        () = time_limit() => Err("no answer".into()),
    };
    match answer {
        Ok((StatusCode::OK, _)) => SleepResult::Done,
        Ok((StatusCode::CONFLICT, _)) => SleepResult::NotNow,
        _ if before.excuse(member.kills()) => SleepResult::Killed,
        Ok((status, text)) => SleepResult::Failed(format!("POST {path}: {status}: {text}")),
        Err(why) => SleepResult::Failed(format!("POST {path}: {why}")),
    }
}

async fn post(member: &SoakTenant, path: &str) -> Result<(StatusCode, String), String> {
    let tenant = member.locate().await;
    let token = std::fs::read_to_string(&tenant.record.token_file).map_err(|error| error.to_string())?;
    let request = SLOW_CLIENT.post(format!("http://{}{path}", tenant.record.admin)).bearer_auth(token);
    let describe = |error: reqwest::Error| format!("{error:?}");
    let response = request.send().await.map_err(describe)?;
    let status = response.status();
    Ok((status, response.text().await.map_err(describe)?))
}

/// Counts polls, not time: after a stall of the machine the tenant needs time.
async fn time_limit() {
    for _ in 0..POLLS {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
