//! [`Runs`]: the runs of all policies.

use super::super::statistics::middle as median;
use crate::policy_comparison::PolicyRunFigures;
use crate::tenant::TenantDevice;

/// Compared with each other; the first is what the others are measured against.
pub(super) const POLICIES: [&str; 3] = ["Recompute", "Oneiros", "Ellm"];

/// The runs on one link, `[policy][repetition]`.
pub(super) struct Runs {
    pub(super) ratio: f64,
    pub(super) device: TenantDevice,
    pub(super) outcomes: Vec<Vec<PolicyRunFigures>>,
}

impl Runs {
    pub(super) fn of(&self, policy: &str) -> impl Iterator<Item = &PolicyRunFigures> {
        let runs = POLICIES.iter().zip(&self.outcomes).filter(move |(name, _)| **name == policy);
        runs.flat_map(|(_, outcomes)| outcomes)
    }

    /// `figure` of a policy over that of `Recompute` in the same repetition.
    pub(super) fn ratios(&self, policy: &str, figure: impl Fn(&PolicyRunFigures) -> f64) -> Vec<f64> {
        self.of(policy).zip(self.of(POLICIES[0])).map(|(this, base)| figure(this) / figure(base)).collect()
    }

    /// Median of a figure of one policy.
    pub(super) fn median(&self, policy: &str, figure: impl Fn(&PolicyRunFigures) -> f64) -> f64 {
        median(&self.of(policy).map(figure).collect::<Vec<_>>())
    }

    pub(super) fn tokens_identical(&self) -> bool {
        let mut all = self.outcomes.iter().flatten().map(|outcome| &outcome.outputs);
        let first = all.next();
        all.all(|outputs| Some(outputs) == first)
    }
}
