//! Polls all states.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinSet;

use super::finding::Finding;
use super::{SoakRun, place, watchdog};

/// Limit for a state: a stopped sidecar reports none.
const WAIT_LIMIT: Duration = Duration::from_secs(1);

/// Budgets must agree with shares and loans. Never returns.
pub async fn poll(stage: &Arc<SoakRun>) {
    let mut looks = JoinSet::new();
    for tenant in 0..stage.tenants.len() {
        looks.spawn(poll_tenant(stage.clone(), tenant));
    }
    looks.join_all().await;
}

async fn poll_tenant(stage: Arc<SoakRun>, tenant: usize) {
    let (member, mut wrong) = (&stage.tenants[tenant], false);
    loop {
        tokio::time::sleep(super::PAUSE).await;
        let Some(tenant) = member.now() else { continue };
        let Ok(Some(state)) = tokio::time::timeout(WAIT_LIMIT, tenant.try_state()).await else { continue };
        member.is_serving(state.figures.steps_total);
        let place = place(&state);
        member.lent.store(place.lent_bytes, Ordering::Relaxed);
        member.borrowed.store(place.borrowed_bytes, Ordering::Relaxed);
        stage.stats.see(tenant.record.pid, &state, member.sleep_requested.load(Ordering::Relaxed) > 0);
        let lent = stage.tenants.iter().map(|member| member.lent.load(Ordering::Relaxed)).sum();
        stage.most_lent.fetch_max(lent, Ordering::Relaxed);
        // The memory of each owner is not checked: the device is ahead of the accounting while memory moves.
        let right = place.balances() && state.peers.is_some() == stage.trades;
        if !right && !std::mem::replace(&mut wrong, true) {
            stage.findings.add(Finding::Accounting(watchdog::brief(&state)));
        }
    }
}
