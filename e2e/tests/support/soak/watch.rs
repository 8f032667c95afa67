//! Looks at all states again and again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinSet;

use super::finding::Finding;
use super::{Stage, place, watchdog};

/// A state is waited for so long: one that stands still tells none.
const PATIENCE: Duration = Duration::from_secs(1);

/// Budgets must be what shares and loans make of them. Ends never.
pub async fn look(stage: &Arc<Stage>) {
    let mut looks = JoinSet::new();
    for tenant in 0..stage.members.len() {
        looks.spawn(look_at(stage.clone(), tenant));
    }
    looks.join_all().await;
}

async fn look_at(stage: Arc<Stage>, tenant: usize) {
    let (member, mut wrong) = (&stage.members[tenant], false);
    loop {
        tokio::time::sleep(super::PAUSE).await;
        let Some(tenant) = member.now() else { continue };
        let Ok(Some(state)) = tokio::time::timeout(PATIENCE, tenant.try_state()).await else { continue };
        member.works(state.figures.steps_total);
        let place = place(&state);
        member.lent.store(place.lent_bytes, Ordering::Relaxed);
        member.borrowed.store(place.borrowed_bytes, Ordering::Relaxed);
        stage.tally.see(tenant.record.pid, &state, member.told_to_sleep.load(Ordering::Relaxed) > 0);
        let lent = stage.members.iter().map(|member| member.lent.load(Ordering::Relaxed)).sum();
        stage.most_lent.fetch_max(lent, Ordering::Relaxed);
        // What each owner has is not asked: the device is ahead of the books while memory moves.
        let right = place.balances() && state.neighbourhood.is_some() == stage.trades;
        if !right && !std::mem::replace(&mut wrong, true) {
            stage.findings.add(Finding::Books(watchdog::brief(&state)));
        }
    }
}
