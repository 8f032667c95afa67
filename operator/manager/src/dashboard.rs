//! Publishes the leader's state on its dashboard.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sluice_page::hub::{Hub, HubConfig};
use sluice_page::view::Reading;
use sluice_wire::time::unix_ms;
use tokio::time::{MissedTickBehavior, interval};

use crate::reconcile::Reconciler;

/// Time between two updates. A GPU is read much less often; an update without news costs one comparison per GPU.
const UPDATE_INTERVAL: Duration = Duration::from_secs(2);
/// Moves shown for each of up to a thousand GPUs.
const MAX_MOVES: usize = 16;

/// Returns the dashboard of a replica that is not the leader.
pub fn empty_hub() -> Arc<Hub> {
    let note = "This replica is not the leader, or has read no GPU yet.".to_owned();
    Hub::new(HubConfig {
        source: "sluice-operator".into(),
        interval: UPDATE_INTERVAL,
        moves: MAX_MOVES,
        note,
    })
}

/// Publishes the readings of `operator` to `hub`, forever.
pub async fn publish(operator: Arc<Reconciler>, hub: Arc<Hub>) {
    let mut ticks = interval(UPDATE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        hub.update(unix_ms(SystemTime::now()), |update| {
            operator.for_each_gpu(|gpu| {
                update.gpu(&Reading {
                    namespace: &gpu.key.namespace,
                    pool: &gpu.key.pool,
                    name: &gpu.key.name,
                    node: gpu.node,
                    capacity_bytes: None,
                    read_unix_ms: gpu.reading.read_unix_ms,
                    problem: gpu.reading.problem.as_deref(),
                    tenants: &gpu.reading.tenants,
                });
            });
        });
    }
}
