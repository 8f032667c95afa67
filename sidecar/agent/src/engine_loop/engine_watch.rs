//! Watches the engine. Kills an engine that makes no progress before its deadline, and a supervisor that starts no new
//! engine. The acceptor confirms the exit and accepts the next engine.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use sluice_link::control::ControlPage;
use sluice_link::hang::{HangDetector, WatchedProcess};
use sluice_link::process_exit::PeerProcess;
use sluice_policy::hang::{HangLimits, Work};
use sluice_wire::state::{EngineHang, EngineWork};

use crate::clock::{unix_ms, whole_ms};

/// Interval at which an engine with work is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// A supervisor that has no engine and has not run for this long is hung. It normally starts an engine after at most 5
/// s.
const SUPERVISOR_LIMIT: Duration = Duration::from_secs(15);

/// Work that the engine was ordered to do and has not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingWork {
    /// Rises with every order.
    pub number: u64,
    /// Kind and size of the work.
    pub work: Work,
}

/// Pending work with its deadlines.
#[derive(Debug)]
struct WatchedWork {
    pending: PendingWork,
    silence: HangDetector,
    limit: Duration,
    /// Time without progress after which the time slice is no longer extended.
    slice_limit: Duration,
    is_killed: bool,
}

/// Attached engine.
#[derive(Debug)]
struct AttachedEngine {
    process: Arc<PeerProcess>,
    supervisor: Arc<PeerProcess>,
    watched: WatchedProcess,
}

/// Supervisor whose engine has exited.
#[derive(Debug)]
struct LostEngine {
    supervisor: Arc<PeerProcess>,
    watched: WatchedProcess,
    silence: HangDetector,
}

/// Deadlines of the engine's work, and the hangs found so far.
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
    /// Creates a watch without an engine. `page` shows the progress of the engine's layers. No limit is shorter than
    /// `floor`.
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

    /// Starts to watch an engine that `supervisor` started.
    pub fn on_attached(&mut self, process: Arc<PeerProcess>, supervisor: Arc<PeerProcess>) {
        let watched = WatchedProcess::new(process.pidfd());
        self.limits.attached();
        (self.engine, self.lost) = (Some(AttachedEngine { process, supervisor, watched }), None);
    }

    /// Handles the confirmed exit of the engine.
    pub fn on_lost(&mut self) {
        self.current = None;
        // A refused engine was never watched. Its predecessor's supervisor still is.
        let Some(engine) = self.engine.take() else { return };
        let watched = WatchedProcess::new(engine.supervisor.pidfd());
        let silence =
            HangDetector::new(Instant::now(), watched.run_count().unwrap_or(0), Duration::from_secs(2));
        self.lost = Some(LostEngine { supervisor: engine.supervisor, watched, silence });
    }

    /// Records that a remap of `addresses` took `took`.
    pub fn on_remapped(&mut self, addresses: u32, took: Duration) {
        self.limits.remapped(addresses, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Records that a step of `tokens` took `took`.
    pub fn on_step_done(&mut self, tokens: u32, took: Duration) {
        self.limits.step_done(tokens, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Checks the progress of the engine on its work `ordered`. `carried` is the number of bytes that copies have moved
    /// so far. Returns true if this check found the engine hung.
    pub fn poll(&mut self, now: Instant, ordered: Option<PendingWork>, carried: u64) -> bool {
        self.poll_supervisor(now);
        let (Some(ordered), Some(engine)) = (ordered, &self.engine) else {
            self.current = None;
            return false;
        };
        let progress = self.page.progress().wrapping_add(carried);
        if self.current.as_ref().is_none_or(|watching| watching.pending != ordered) {
            let limit = Duration::from_nanos(self.limits.limit_ns(ordered.work));
            let slice_limit = Duration::from_nanos(self.limits.slice_limit_ns(ordered.work));
            let silence = HangDetector::new(now, progress, 2 * POLL_INTERVAL);
            self.current =
                Some(WatchedWork { pending: ordered, silence, limit, slice_limit, is_killed: false });
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
        tracing::error!(during, ?waited, ?limit, "the engine hangs: killing it");
        if let Some(Err(error)) = self.engine.as_ref().map(|engine| engine.process.kill()) {
            tracing::error!(%error, "could not kill the engine that hangs");
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
        tracing::error!(?silent, limit = ?SUPERVISOR_LIMIT, "the engine's supervisor hangs: killing it");
        if let Err(error) = absence.supervisor.kill() {
            tracing::error!(%error, "could not kill the engine's supervisor that hangs");
        }
        self.lost = None;
        self.record_hang("supervisor", silent, SUPERVISOR_LIMIT);
    }

    /// Returns how long the engine loop may sleep.
    pub fn poll_interval(&self) -> Duration {
        if self.current.is_some() { POLL_INTERVAL } else { Duration::MAX }
    }

    /// Returns how far from now the holder may set the deadline of its time slice: at most `most`, and no later than
    /// the engine's own limit. `None` if the engine makes no progress, so the deadline must not be extended.
    pub fn slice_extension(&self, most: Duration) -> Option<Duration> {
        let Some(watching) = &self.current else { return Some(most) };
        let left = watching.slice_limit.checked_sub(watching.silence.silent_time())?;
        // The next poll extends the deadline again if the engine has made progress by then.
        (!watching.is_killed && !left.is_zero()).then(|| most.min(left + 2 * POLL_INTERVAL))
    }

    /// Records that a peer took over the time slice.
    pub fn on_overtaken(&mut self) {
        self.limits.overtaken();
    }

    /// Returns the engine's current work, as of the last check.
    pub fn work(&self) -> Option<EngineWork> {
        let watching = self.current.as_ref()?;
        let during = watching.pending.work.label().to_owned();
        let (waited_ms, limit_ms) = (whole_ms(watching.silence.silent_time()), whole_ms(watching.limit));
        Some(EngineWork { during, waited_ms, limit_ms })
    }

    /// Returns how many hangs were found, of engines and supervisors.
    pub fn hangs(&self) -> u64 {
        self.hangs
    }

    /// Returns the last hang. It counts as alive until the exit of the killed engine is confirmed.
    pub fn last_hang(&self) -> Option<EngineHang> {
        let alive = self.current.as_ref().is_some_and(|watching| watching.is_killed);
        self.last_hang.clone().map(|last| EngineHang { alive, ..last })
    }
}

#[cfg(test)]
mod tests;
