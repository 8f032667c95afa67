//! When a plan is made anew: its window is over, the batch has changed, or steps take other times than it reckoned with.
//!
//! Source: OrbitFlow 4.3 (decode window, batch-change trigger, profile mismatch).

use super::steps::StepTime;

/// Tunables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplanTunables {
    /// Steps that a plan holds for at most. 32: the shortest window of OrbitFlow's released code.
    pub window: u16,
    /// Difference between a step's predicted and its real time from which the profile is taken to be wrong, permille of the
    /// predicted. 200: a step's time varies by about a tenth of itself with what the host does.
    pub mismatch_permille: u16,
    /// Steps in a row that must differ: one slow step is no wrong profile.
    pub mismatches: u16,
    /// Steps between two plans at least, whatever comes and goes meanwhile: a plan costs a change of placement.
    pub least_steps: u16,
}

impl Default for ReplanTunables {
    fn default() -> ReplanTunables {
        ReplanTunables { window: 32, mismatch_permille: 200, mismatches: 3, least_steps: 3 }
    }
}

/// Why a plan is made anew for those for whom it was made. That the batch is another is seen where plans are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplanTrigger {
    /// Steps take other times than predicted.
    Mismatch,
    /// The plan has held for its window.
    WindowOver,
}

/// Watches one plan.
#[derive(Clone, Copy, Debug)]
pub struct ReplanWatch {
    tunables: ReplanTunables,
    /// `None` = no plan was found, and its window alone counts.
    predicted_ns: Option<u64>,
    steps: u16,
    differing: u16,
}

impl ReplanWatch {
    /// A plan whose steps should take `predicted_ns`.
    pub const fn new(tunables: ReplanTunables, predicted_ns: u64) -> ReplanWatch {
        ReplanWatch { tunables, predicted_ns: Some(predicted_ns), steps: 0, differing: 0 }
    }

    /// No plan was found: one is looked for again when the window is over. Memory may have come, or KV may have gone.
    pub const fn in_vain(tunables: ReplanTunables) -> ReplanWatch {
        ReplanWatch { tunables, predicted_ns: None, steps: 0, differing: 0 }
    }

    /// A step ended; whether, and why, a new plan is due. It stays due until there is one.
    pub fn step(&mut self, seen: StepTime) -> Option<ReplanTrigger> {
        self.steps = self.steps.saturating_add(1);
        self.differing = if self.differs(seen.total_ns) { self.differing.saturating_add(1) } else { 0 };
        if self.differing >= self.tunables.mismatches.max(1) {
            return Some(ReplanTrigger::Mismatch);
        }
        (self.steps >= self.tunables.window).then_some(ReplanTrigger::WindowOver)
    }

    fn differs(&self, seen_ns: u64) -> bool {
        self.predicted_ns.is_some_and(|predicted_ns| {
            let difference_ns = u128::from(seen_ns.abs_diff(predicted_ns));
            difference_ns * 1000 > u128::from(predicted_ns) * u128::from(self.tunables.mismatch_permille)
        })
    }
}
