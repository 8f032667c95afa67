//! Does to the tenants of a soak what its plan says.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::process::{Pid, Signal, kill_process};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Stage;
use super::plan::{Side, Trouble};

/// How much of it happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Engines killed.
    pub engines: u32,
    /// Sidecars killed.
    pub sidecars: u32,
    /// Processes that stood still.
    pub stopped: u32,
    /// Whose target was not there at that moment.
    pub missed: u32,
}

/// All of it, from `begun` on. Ends when all tenants are back.
pub async fn inflict(stage: &Arc<Stage>, troubles: &[Trouble], begun: Instant) -> Done {
    let (mut done, mut under_way) = (Done::default(), JoinSet::new());
    for trouble in troubles {
        tokio::time::sleep_until(begun + trouble.at).await;
        let member = &stage.members[trouble.tenant];
        let Some(pid) = member.process(&stage.run, stage.up, trouble.side) else {
            done.missed += 1;
            continue;
        };
        match (trouble.stops_for, trouble.side) {
            (Some(length), _) => {
                done.stopped += 1;
                send(pid, Signal::STOP);
                under_way.spawn(async move {
                    tokio::time::sleep(length).await;
                    send(pid, Signal::CONT);
                });
            }
            (None, Side::Engine) => {
                done.engines += 1;
                member.engine_kills.fetch_add(1, Ordering::Relaxed);
                send(pid, Signal::KILL);
            }
            (None, Side::Sidecar) => {
                done.sidecars += 1;
                let kill = member.loses_sidecar();
                send(pid, Signal::KILL);
                let (stage, tenant) = (stage.clone(), trouble.tenant);
                under_way.spawn(async move { stage.members[tenant].comes_back(kill, pid).await });
            }
        }
    }
    under_way.join_all().await;
    done
}

/// It may have gone meanwhile.
fn send(pid: u32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal);
}
