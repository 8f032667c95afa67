//! [`Runs`]: the runs of all rules.

use crate::sharing_bench::{Shape, SharingRunFigures, VictimPolicy};

/// The runs under one load, `[rule][repetition]`.
pub(super) struct Runs {
    pub(super) shape: Shape,
    pub(super) rules: &'static [VictimPolicy],
    pub(super) outcomes: Vec<Vec<SharingRunFigures>>,
}

impl Runs {
    pub(super) fn new((shape, rules): (Shape, &'static [VictimPolicy])) -> Runs {
        Runs { shape, rules, outcomes: rules.iter().map(|_| Vec::new()).collect() }
    }

    pub(super) fn of(&self, rule: VictimPolicy) -> &[SharingRunFigures] {
        self.rules.iter().position(|other| *other == rule).map_or(&[], |at| &self.outcomes[at])
    }

    /// `figure` under a rule over that under another one in the same repetition.
    pub(super) fn ratios(
        &self,
        this: VictimPolicy,
        other: VictimPolicy,
        figure: fn(&SharingRunFigures) -> f64,
    ) -> Vec<f64> {
        self.of(this).iter().zip(self.of(other)).map(|(this, other)| figure(this) / figure(other)).collect()
    }
}
