//! Limit on the wait of the peers of a hung process. Deadlines exclude the time in which the node is slow, and so
//! do the tests.

use std::time::{Duration, Instant, SystemTime};

use sluice_wire::State;

/// Wait of the peers beyond three steps: the minimum deadline (2 s), the grace period of a takeover, and the time
/// of a kill and a hand-over.
const FLOOR: Duration = Duration::from_secs(3);
/// Limit of a step with unknown duration.
const UNKNOWN: Duration = Duration::from_mins(1);
/// Upper bound of a step in these tests. A usual step takes a tenth of a second, and several times that on a node with
/// other load; a process that hangs is stopped for far longer.
const USUAL: Duration = Duration::from_secs(3);

/// A limit that starts when a process is stopped.
#[derive(Clone, Copy, Debug)]
pub struct HangLimit {
    stopped: Instant,
    stopped_unix_ms: u64,
    stalled: Duration,
    least: Duration,
}

impl HangLimit {
    /// Starts a limit now, for the peers of a tenant in this state. No step of its engine has a limit shorter than
    /// `hang_timeout`.
    pub fn start(state: &State, hang_timeout: Duration) -> HangLimit {
        let step = longest_step(state, hang_timeout);
        assert!(step < USUAL, "a step took {step:?} while nothing hung");
        let since_1970 = SystemTime::UNIX_EPOCH.elapsed().expect("it is later");
        let stopped_unix_ms = u64::try_from(since_1970.as_millis()).expect("of this age");
        HangLimit { stopped: Instant::now(), stopped_unix_ms, stalled: stalled(), least: 3 * step + FLOOR }
    }

    /// Time at which the process was stopped, milliseconds since 1970.
    pub fn stopped_unix_ms(&self) -> u64 {
        self.stopped_unix_ms
    }

    /// Time since the process was stopped.
    pub fn elapsed(&self) -> Duration {
        self.stopped.elapsed()
    }

    /// Returns three steps, the minimum, and the time since then in which a process of the node waited for a CPU.
    /// That time at most doubles the limit, so that a fault that doubles the wait is found on a slow node too.
    pub fn allows(&self) -> Duration {
        self.least + stalled().saturating_sub(self.stalled).min(self.least)
    }
}

/// Whether the engine of a tenant in this state does this work: `step`, `remapping` or `attach`.
pub fn has_reached(state: &State, work: &str) -> bool {
    state.engine.work.as_ref().is_some_and(|one| one.during == work)
}

/// Returns the longest recent step. The limit of a step is twice the longest of its size plus the timeout. Times
/// between tokens exclude prefill-only steps, so they are only used without a running step or with an unknown step
/// time.
fn longest_step(state: &State, hang_timeout: Duration) -> Duration {
    let between_tokens = Duration::from_nanos(state.figures.engine_tbt.p99_ns);
    let work = state.engine.work.as_ref().filter(|_| has_reached(state, "step"));
    let limit = work.map(|work| Duration::from_millis(work.limit_ms));
    let known = limit.filter(|limit| *limit < UNKNOWN || hang_timeout >= UNKNOWN);
    let by_limit = known.map_or(Duration::ZERO, |limit| limit.saturating_sub(hang_timeout) / 2);
    between_tokens.max(by_limit)
}

/// Total time so far in which a process of the node waited for a CPU.
fn stalled() -> Duration {
    let text = std::fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
    let total =
        text.lines().next().and_then(|line| line.rsplit_once("total=")).map_or("0", |(_, total)| total);
    Duration::from_micros(total.trim().parse().expect("the kernel writes a number"))
}
