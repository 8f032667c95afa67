//! Decides when a new plan is due: the window ended, the batch changed, or step times differ from the prediction.
//!
//! Source: OrbitFlow 4.3 (decode window, batch-change trigger, profile mismatch).

use super::steps::StepTime;

/// Tunables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplanTunables {
    /// Maximum number of steps that a plan applies to. 32: the shortest window of OrbitFlow's released code.
    pub window: u16,
    /// Difference between predicted and measured step time that counts as a mismatch, permille of the prediction. 200:
    /// a step's time varies by about a tenth with the host's load.
    pub mismatch_permille: u16,
    /// Consecutive steps that must differ: one slow step is no mismatch.
    pub mismatches: u16,
    /// Minimum number of steps between two plans, even if the batch changes: every plan costs a change of placement.
    pub least_steps: u16,
}

impl Default for ReplanTunables {
    fn default() -> ReplanTunables {
        ReplanTunables { window: 32, mismatch_permille: 200, mismatches: 3, least_steps: 3 }
    }
}

/// Why a new plan is due for an unchanged batch. A changed batch is detected where plans are requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplanTrigger {
    /// Step times differ from the prediction.
    Mismatch,
    /// The plan's window has ended.
    WindowOver,
}

/// Watches the execution of one plan.
#[derive(Clone, Copy, Debug)]
pub struct ReplanWatch {
    tunables: ReplanTunables,
    /// Predicted step time; `None` if no plan was found, so that only the window counts.
    predicted_ns: Option<u64>,
    steps: u16,
    differing: u16,
}

impl ReplanWatch {
    /// Watches a plan whose steps should take `predicted_ns`.
    pub const fn new(tunables: ReplanTunables, predicted_ns: u64) -> ReplanWatch {
        ReplanWatch { tunables, predicted_ns: Some(predicted_ns), steps: 0, differing: 0 }
    }

    /// Watches a failed search: it is repeated when the window ends, because memory or KV may have changed.
    pub const fn in_vain(tunables: ReplanTunables) -> ReplanWatch {
        ReplanWatch { tunables, predicted_ns: None, steps: 0, differing: 0 }
    }

    /// Records the end of a step. Returns why a new plan is due, if one is, until there is a new plan.
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
