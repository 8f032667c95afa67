//! Watches the engine: one that makes no progress with its work is killed at its deadline, and so is a supervisor that starts
//! no successor. The door confirms the death and lets the successor in.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use sluice_link::control::ControlPage;
use sluice_link::hang::{HangDetector, WatchedProcess};
use sluice_link::process_exit::PeerProcess;
use sluice_policy::hang::{HangLimits, Work};
use sluice_wire::state::{EngineHang, EngineWork};

use crate::clock::{unix_ms, whole_ms};

/// How often an engine that has work is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// A supervisor that has not run for this long while it has no worker is hung: it starts one after 5 s at most.
const SUPERVISOR_LIMIT: Duration = Duration::from_secs(15);

/// One piece of work that the engine was ordered to do and has not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingWork {
    /// Rises with every order.
    pub number: u64,
    /// What it is.
    pub work: Work,
}

/// The work that is watched.
#[derive(Debug)]
struct WatchedWork {
    pending: PendingWork,
    silence: HangDetector,
    limit: Duration,
    /// Without progress for longer than this it extends no turn.
    slice_limit: Duration,
    is_killed: bool,
}

/// An engine that is attached.
#[derive(Debug)]
struct AttachedEngine {
    process: Arc<PeerProcess>,
    supervisor: Arc<PeerProcess>,
    watched: WatchedProcess,
}

/// A supervisor whose engine is dead.
#[derive(Debug)]
struct LostEngine {
    supervisor: Arc<PeerProcess>,
    watched: WatchedProcess,
    silence: HangDetector,
}

/// The engine's deadlines, and what became of engines that exceeded them.
#[derive(Debug)]
pub struct EngineWatch {
    page: Arc<ControlPage>,
    limits: HangLimits,
    engine: Option<AttachedEngine>,
    current: Option<WatchedWork>,
    lost: Option<LostEngine>,
    hangs: u64,
    last_hang: Option<EngineHang>,
}

impl EngineWatch {
    /// Without an engine so far. `page` shows how far the engine's layers are.
    /// No limit is shorter than `floor`.
    pub fn new(page: Arc<ControlPage>, floor: Duration) -> EngineWatch {
        EngineWatch {
            page,
            limits: HangLimits::new(u64::try_from(floor.as_nanos()).unwrap_or(u64::MAX)),
            engine: None,
            current: None,
            lost: None,
            hangs: 0,
            last_hang: None,
        }
    }

    /// An engine has come, which `supervisor` started.
    pub fn on_attached(&mut self, process: Arc<PeerProcess>, supervisor: Arc<PeerProcess>) {
        let watched = WatchedProcess::new(process.pidfd());
        self.limits.attached();
        (self.engine, self.lost) = (Some(AttachedEngine { process, supervisor, watched }), None);
    }

    /// Its death is confirmed.
    pub fn on_lost(&mut self) {
        self.current = None;
        // One that was refused was never watched: its predecessor's supervisor still is.
        let Some(engine) = self.engine.take() else { return };
        let watched = WatchedProcess::new(engine.supervisor.pidfd());
        let silence =
            HangDetector::new(Instant::now(), watched.run_count().unwrap_or(0), Duration::from_secs(2));
        self.lost = Some(LostEngine { supervisor: engine.supervisor, watched, silence });
    }

    /// A change of this many addresses took this long.
    pub fn on_rebacked(&mut self, addresses: u32, took: Duration) {
        self.limits.rebacked(addresses, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// A step of this many tokens took this long.
    pub fn on_step_done(&mut self, tokens: u32, took: Duration) {
        self.limits.step_done(tokens, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Looks at the engine, which has `ordered` to do; `carried` are bytes that copies have moved so far. Returns true when it
    /// was found to be hung by this look.
    pub fn poll(&mut self, now: Instant, ordered: Option<PendingWork>, carried: u64) -> bool {
        self.poll_supervisor(now);
        let (Some(ordered), Some(engine)) = (ordered, &self.engine) else {
            self.current = None;
            return false;
        };
        let progress = self.page.progress().wrapping_add(carried);
        if self.current.as_ref().is_none_or(|watching| watching.pending != ordered) {
            let limit = Duration::from_nanos(self.limits.limit_ns(ordered.work));
            let turn_limit = Duration::from_nanos(self.limits.turn_limit_ns(ordered.work));
            let silence = HangDetector::new(now, progress, 2 * POLL_INTERVAL);
            self.current = Some(WatchedWork {
                pending: ordered,
                silence,
                limit,
                slice_limit: turn_limit,
                is_killed: false,
            });
        }
        let Some(watching) = &mut self.current else { return false };
        let waited = watching.silence.check(now, progress, &engine.watched);
        if watching.is_killed || waited < watching.limit {
            return false;
        }
        watching.is_killed = true;
        let (work, limit) = (watching.pending.work, watching.limit);
        self.kill_hung(work, waited, limit);
        true
    }

    fn kill_hung(&mut self, work: Work, waited: Duration, limit: Duration) {
        let during = match work {
            Work::Step { .. } if self.limits.is_fresh() => "first step",
            work => work.label(),
        };
        tracing::error!(during, ?waited, ?limit, "the engine hangs and is killed");
        if let Some(Err(error)) = self.engine.as_ref().map(|engine| engine.process.kill()) {
            tracing::error!(%error, "the engine that hangs could not be killed");
        }
        self.limits.hung();
        self.record_hang(during, waited, limit);
    }

    fn record_hang(&mut self, during: &str, waited: Duration, limit: Duration) {
        self.hangs += 1;
        self.last_hang = Some(EngineHang {
            at_unix_ms: unix_ms(SystemTime::now()),
            during: during.to_owned(),
            waited_ms: whole_ms(waited),
            limit_ms: whole_ms(limit),
            alive: false,
        });
    }

    fn poll_supervisor(&mut self, now: Instant) {
        let Some(absence) = &mut self.lost else { return };
        let Some(runs) = absence.watched.run_count() else { return };
        let silent = absence.silence.check(now, runs, &absence.watched);
        if silent < SUPERVISOR_LIMIT {
            return;
        }
        tracing::error!(?silent, limit = ?SUPERVISOR_LIMIT, "the engine's supervisor hangs and is killed");
        if let Err(error) = absence.supervisor.kill() {
            tracing::error!(%error, "the engine's supervisor that hangs could not be killed");
        }
        self.lost = None;
        self.record_hang("supervisor", silent, SUPERVISOR_LIMIT);
    }

    /// How long the room may sleep.
    pub fn poll_interval(&self) -> Duration {
        if self.current.is_some() { POLL_INTERVAL } else { Duration::MAX }
    }

    /// How far from now the holder may set the deadline of its turn, at most `most`: no further than the engine's own limit
    /// reaches. `None` where it may not extend it, since the engine does not get on.
    pub fn slice_extension(&self, most: Duration) -> Option<Duration> {
        let Some(watching) = &self.current else { return Some(most) };
        let left = watching.slice_limit.checked_sub(watching.silence.silent_time())?;
        // A look later it is extended again, if the engine has got on by then.
        (!watching.is_killed && !left.is_zero()).then(|| most.min(left + 2 * POLL_INTERVAL))
    }

    /// A neighbour took the turn.
    pub fn on_overtaken(&mut self) {
        self.limits.overtaken();
    }

    /// What the engine is doing, as of the last look.
    pub fn work(&self) -> Option<EngineWork> {
        let watching = self.current.as_ref()?;
        let during = watching.pending.work.label().to_owned();
        let (waited_ms, limit_ms) = (whole_ms(watching.silence.silent_time()), whole_ms(watching.limit));
        Some(EngineWork { during, waited_ms, limit_ms })
    }

    /// Engines that were found to be hung.
    pub fn hangs(&self) -> u64 {
        self.hangs
    }

    /// The last of them.
    pub fn last_hang(&self) -> Option<EngineHang> {
        let alive = self.current.as_ref().is_some_and(|watching| watching.is_killed);
        self.last_hang.clone().map(|last| EngineHang { alive, ..last })
    }
}

#[cfg(test)]
mod tests;
