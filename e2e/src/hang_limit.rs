//! How long neighbours of a hung process may wait. Deadlines leave out time in which the node is slow, so tests allow it.

use std::time::{Duration, Instant, SystemTime};

use sluice_wire::State;

/// Beyond three steps, neighbours wait this long at most: the floor of a deadline (2 s), the grace of a takeover, and the time of
/// a kill and of a hand-over.
const FLOOR: Duration = Duration::from_secs(3);
/// The limit of a step whose time is unknown.
const UNKNOWN: Duration = Duration::from_mins(1);
/// A step of a tenant in these tests takes a tenth of this.
const USUAL: Duration = Duration::from_secs(1);

/// From the moment at which a process was stopped.
#[derive(Clone, Copy, Debug)]
pub struct HangLimit {
    stopped: Instant,
    stopped_unix_ms: u64,
    stalled: Duration,
    least: Duration,
}

impl HangLimit {
    /// From now on, of the neighbours of a tenant in this state. Steps of its engine have no limit shorter than `hang_timeout`.
    pub fn start(state: &State, hang_timeout: Duration) -> HangLimit {
        let step = longest_step(state, hang_timeout);
        assert!(step < USUAL, "a step took {step:?} while nothing hung");
        let since_1970 = SystemTime::UNIX_EPOCH.elapsed().expect("it is later");
        let stopped_unix_ms = u64::try_from(since_1970.as_millis()).expect("of this age");
        HangLimit { stopped: Instant::now(), stopped_unix_ms, stalled: stalled(), least: 3 * step + FLOOR }
    }

    /// When the process was stopped, milliseconds since 1970.
    pub fn stopped_unix_ms(&self) -> u64 {
        self.stopped_unix_ms
    }

    /// How long ago the process was stopped.
    pub fn elapsed(&self) -> Duration {
        self.stopped.elapsed()
    }

    /// Three steps, the floor, and the time for which some process of the node waited for a CPU since. That time at most doubles
    /// the bound: however slow the node is, a fault that doubles the time shows.
    pub fn allows(&self) -> Duration {
        self.least + stalled().saturating_sub(self.stalled).min(self.least)
    }
}

/// Whether the engine of a tenant in this state is at this work: `step`, `re-backing` or `attach`.
pub fn has_reached(state: &State, work: &str) -> bool {
    state.engine.work.as_ref().is_some_and(|one| one.during == work)
}

/// The longest recent step. The limit of a step is twice the longest of its size and the timeout. Times between tokens know of no
/// step that only reads prompts, so they do where no step runs or its time is unknown.
fn longest_step(state: &State, hang_timeout: Duration) -> Duration {
    let between_tokens = Duration::from_nanos(state.figures.engine_tbt.p99_ns);
    let work = state.engine.work.as_ref().filter(|_| has_reached(state, "step"));
    let limit = work.map(|work| Duration::from_millis(work.limit_ms));
    let known = limit.filter(|limit| *limit < UNKNOWN || hang_timeout >= UNKNOWN);
    let by_limit = known.map_or(Duration::ZERO, |limit| limit.saturating_sub(hang_timeout) / 2);
    between_tokens.max(by_limit)
}

/// Time for which some process of the node waited for a CPU so far.
fn stalled() -> Duration {
    let text = std::fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
    let total =
        text.lines().next().and_then(|line| line.rsplit_once("total=")).map_or("0", |(_, total)| total);
    Duration::from_micros(total.trim().parse().expect("the kernel writes a number"))
}
