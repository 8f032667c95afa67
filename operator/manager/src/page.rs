//! What the leader gives its live page.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sluice_page::hub::{Hub, Settings};
use sluice_page::view::Reading;
use sluice_wire::time::unix_ms;
use tokio::time::{MissedTickBehavior, interval};

use crate::reconcile::Operator;

/// Between two updates. A GPU is read much less often; an update in between costs a comparison for each.
const EVERY: Duration = Duration::from_secs(2);
/// Moves that are kept of each GPU: of up to a thousand of them.
const MOVES: usize = 16;

/// The page of a replica that does not lead.
pub fn hub() -> Arc<Hub> {
    let note = "This replica does not lead, or has read no GPU yet.".to_owned();
    Hub::new(Settings { source: "sluice-operator".into(), every: EVERY, moves: MOVES, note })
}

/// Gives `hub` what `operator` has read, over and over.
pub async fn feed(operator: Arc<Operator>, hub: Arc<Hub>) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        hub.update(unix_ms(SystemTime::now()), |update| {
            operator.each_gpu(|gpu| {
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
