//! One comparison of an experiment, and whether it gives the expected value.

use serde::Serialize;

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ExperimentCheck {
    /// Our value equals the paper's, or is in its range.
    Same,
    /// The values differ, and the reason is stated.
    Reasoned,
    /// The values differ without a reason.
    Differs,
    /// The paper has no such value.
    #[serde(rename = "untold")]
    NotReported,
    /// A requirement of our own holds.
    Holds,
    /// A requirement of our own does not hold.
    Fails,
}

impl ExperimentCheck {
    /// Returns the printed word.
    pub const fn word(self) -> &'static str {
        match self {
            ExperimentCheck::Same => "same",
            ExperimentCheck::Reasoned => "reasoned",
            ExperimentCheck::Differs => "DIFFERS",
            ExperimentCheck::NotReported => "-",
            ExperimentCheck::Holds => "holds",
            ExperimentCheck::Fails => "FAILS",
        }
    }

    /// Whether the experiment passes this comparison.
    pub const fn is_pass(self) -> bool {
        !matches!(self, ExperimentCheck::Differs | ExperimentCheck::Fails)
    }
}

/// One comparison of an experiment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ComparisonRow {
    /// Link class, if relevant.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub link: &'static str,
    /// The compared quantity.
    pub what: String,
    /// The paper's value or its closed form, or the required value.
    pub paper: String,
    /// The value of the production code.
    pub ours: String,
    /// The result of the comparison.
    pub verdict: ExperimentCheck,
    /// Why the values may differ: the paper measured something else than the simulation. Includes the explained range
    /// if the result depends on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A reason why our value may differ from the paper's, and the range that it explains.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviationReason {
    /// The reason as text.
    pub why: &'static str,
    /// Lower end of the explained range, inclusive. A value outside the range differs in any case.
    pub from: f64,
    /// Upper end of the explained range, inclusive.
    pub to: f64,
}

/// A change as reported by a paper.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaperValue {
    /// Percent, or percentage points.
    pub unit: &'static str,
    /// Value in the reproduced experiment. Its sign is the direction of a gain.
    pub paper: f64,
    /// Range in the paper's experiments of this kind.
    pub range: (f64, f64),
    /// Why our value may be outside the range.
    pub reason: Option<DeviationReason>,
}

impl DeviationReason {
    fn words(&self, unit: &str) -> String {
        format!("{} (explains {:+.1} to {:+.1} {unit})", self.why, self.from, self.to)
    }
}

impl PaperValue {
    fn words(&self) -> String {
        let (from, to) = self.range;
        if from == -100.0 || to.is_infinite() {
            return format!("{:+.1} {} or more", self.paper, self.unit);
        }
        format!("{:+.1} {} ({from:+.1} to {to:+.1})", self.paper, self.unit)
    }
}

impl ComparisonRow {
    /// Compares two values that should be equal.
    pub fn equal<T: PartialEq + ToString>(what: impl Into<String>, paper: &T, ours: &T) -> ComparisonRow {
        let verdict = if paper == ours { ExperimentCheck::Same } else { ExperimentCheck::Differs };
        ComparisonRow::new(what, paper.to_string(), ours.to_string(), verdict)
    }

    /// Compares a change with the paper's: within its range, outside but explained by a reason, or different.
    pub fn compare_change(
        link: &'static str,
        what: impl Into<String>,
        expected: &PaperValue,
        ours: f64,
    ) -> ComparisonRow {
        let explains = |reason: &DeviationReason| (reason.from..=reason.to).contains(&ours);
        let (verdict, reason) = match expected.reason.filter(explains) {
            _ if (expected.range.0..=expected.range.1).contains(&ours) => (ExperimentCheck::Same, None),
            Some(reason) => (ExperimentCheck::Reasoned, Some(reason.words(expected.unit))),
            None => (ExperimentCheck::Differs, None),
        };
        let paper = expected.words();
        ComparisonRow {
            link,
            reason,
            ..ComparisonRow::new(what, paper, format!("{ours:+.1} {}", expected.unit), verdict)
        }
    }

    /// Reports a value that the paper does not have.
    pub fn unreported(link: &'static str, what: impl Into<String>, ours: String) -> ComparisonRow {
        ComparisonRow { link, ..ComparisonRow::new(what, "-".into(), ours, ExperimentCheck::NotReported) }
    }

    /// Checks a requirement of our own.
    pub fn required(
        link: &'static str,
        what: impl Into<String>,
        required: String,
        found: String,
        holds: bool,
    ) -> ComparisonRow {
        let verdict = if holds { ExperimentCheck::Holds } else { ExperimentCheck::Fails };
        ComparisonRow { link, ..ComparisonRow::new(what, required, found, verdict) }
    }

    /// Creates a row without a link and a reason.
    pub fn new(
        what: impl Into<String>,
        paper: String,
        ours: String,
        verdict: ExperimentCheck,
    ) -> ComparisonRow {
        ComparisonRow { link: "", what: what.into(), paper, ours, verdict, reason: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAPER_VALUE: PaperValue = PaperValue {
        unit: "%",
        paper: -50.0,
        range: (-80.0, -20.0),
        reason: Some(DeviationReason { why: "because", from: -90.0, to: -10.0 }),
    };

    #[test]
    fn deviation_within_reason_range_is_explained_beyond_differs() {
        let verdict =
            |paper: &PaperValue, ours| ComparisonRow::compare_change("", "what", paper, ours).verdict;
        let seen = [-91.0, -90.0, -80.0, -20.0, -10.0, -9.0, 1.0].map(|ours| verdict(&PAPER_VALUE, ours));
        use ExperimentCheck::{Differs, Reasoned, Same};
        assert_eq!(seen, [Differs, Reasoned, Same, Same, Reasoned, Differs, Differs]);
        assert_eq!(verdict(&PaperValue { reason: None, ..PAPER_VALUE }, -10.0), Differs);
    }

    #[test]
    fn reason_is_printed_with_bounds_only_when_needed() {
        let reason = |ours| ComparisonRow::compare_change("", "what", &PAPER_VALUE, ours).reason;
        let words = "because (explains -90.0 to -10.0 %)".to_owned();
        assert_eq!((reason(-50.0), reason(-15.0), reason(1.0)), (None, Some(words), None));
    }
}
