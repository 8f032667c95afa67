//! A tenant of a soak across restarts.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sluice_wire::State;
use sluice_wire::config::SidecarRecord;

use super::plan::fault::Side;
use crate::support::{Tenant, TestEnv, processes};

/// A tenant; its processes restart, and its name stays.
#[derive(Debug)]
pub struct SoakTenant {
    /// Its name.
    pub name: String,
    folder: PathBuf,
    kills: Mutex<Kills>,
    /// Requests that are open.
    pub open: AtomicU32,
    /// Increases with every received token and changes with every step.
    pub beats: AtomicU64,
    steps: AtomicU64,
    /// Kills of its engine in this instance of its sidecar.
    pub engine_kills: AtomicU32,
    /// Orders to sleep that have not been revoked.
    pub sleep_requested: AtomicU32,
    /// Bytes borrowed at the last poll.
    pub borrowed: AtomicU64,
    /// Bytes lent at the last poll.
    pub lent: AtomicU64,
}

/// Number of kills of its sidecar, and the last one from which it has recovered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kills {
    /// All.
    pub done: u32,
    /// Those whose successor has served.
    pub recovered: u32,
}

impl Kills {
    /// Whether there was a moment without a sidecar that serves between this and `now`.
    pub fn excuse(self, now: Kills) -> bool {
        self.recovered < self.done || self.done < now.done
    }
}

impl SoakTenant {
    /// The tenant `name` in a world.
    pub fn new(world: &TestEnv, name: &str) -> SoakTenant {
        SoakTenant {
            name: name.to_owned(),
            folder: world.path("run").join(format!("default.{name}")),
            kills: Mutex::default(),
            open: AtomicU32::new(0),
            beats: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            engine_kills: AtomicU32::new(0),
            sleep_requested: AtomicU32::new(0),
            borrowed: AtomicU64::new(0),
            lent: AtomicU64::new(0),
        }
    }

    /// Returns its current sidecar; `None` while there is none.
    pub fn now(&self) -> Option<Tenant> {
        let record = std::fs::read(self.folder.join("sidecar.json")).ok()?;
        let record: SidecarRecord = serde_json::from_slice(&record).unwrap();
        Some(Tenant { address: record.serve.to_string(), record, folder: self.folder.clone() })
    }

    /// Returns its state, if it has one.
    pub async fn state(&self) -> Option<State> {
        self.now()?.try_state().await
    }

    /// Kills so far.
    pub fn kills(&self) -> Kills {
        *self.kills.lock().unwrap()
    }

    /// Records that its sidecar is about to be killed; returns the number of the kill.
    pub fn loses_sidecar(&self) -> u32 {
        let mut kills = self.kills.lock().unwrap();
        kills.done += 1;
        self.engine_kills.store(0, Ordering::Relaxed);
        kills.done
    }

    /// Records the number of steps of this instance.
    pub fn is_serving(&self, steps: u64) {
        if self.steps.swap(steps, Ordering::Relaxed) != steps {
            self.beats.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until the successor of the sidecar `killed` serves.
    pub async fn has_restarted(&self, kill: u32, killed: u32) {
        let successor = async || {
            let tenant = self.now().filter(|tenant| tenant.record.pid != killed)?;
            (tenant.readiness().await == Some(200)).then_some(())
        };
        while self.kills().recovered < kill {
            // Another kill may hit the successor as well: then its own waiter reports the end.
            if successor().await.is_some() {
                let mut kills = self.kills.lock().unwrap();
                kills.recovered = kills.recovered.max(kill);
            } else {
                tokio::time::sleep(super::PAUSE).await;
            }
        }
    }

    /// Waits until its sidecar has an address.
    pub async fn locate(&self) -> Tenant {
        loop {
            if let Some(tenant) = self.now() {
                return tenant;
            }
            tokio::time::sleep(super::PAUSE).await;
        }
    }

    /// Returns one of its processes, a descendant of `up`.
    pub fn process(&self, world: &TestEnv, up: u32, side: Side) -> Option<u32> {
        let all = world.processes();
        let below =
            |parent: u32| all.iter().copied().filter(move |pid| processes::parent_of(*pid) == Some(parent));
        let sidecar = below(up).find(|pid| is_of(*pid, &self.folder))?;
        match side {
            Side::Sidecar => Some(sidecar),
            Side::Engine => below(sidecar).flat_map(below).next(),
        }
    }
}

/// Whether the process has its configuration in `folder`.
fn is_of(pid: u32, folder: &Path) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let config = folder.join("config.json");
    line.split(|byte| *byte == 0).any(|word| word == config.as_os_str().as_encoded_bytes())
}
