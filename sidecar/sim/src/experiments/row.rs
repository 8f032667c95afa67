//! One figure of an experiment, and whether it is what was expected.

use serde::Serialize;

/// What a comparison came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ExperimentCheck {
    /// Ours is the paper's, or within its range.
    Same,
    /// It is not, and the reason is stated.
    Reasoned,
    /// It is not.
    Differs,
    /// The paper has no such figure.
    Untold,
    /// A requirement of our own holds.
    Holds,
    /// It does not.
    Fails,
}

impl ExperimentCheck {
    /// As it is printed.
    pub const fn word(self) -> &'static str {
        match self {
            ExperimentCheck::Same => "same",
            ExperimentCheck::Reasoned => "reasoned",
            ExperimentCheck::Differs => "DIFFERS",
            ExperimentCheck::Untold => "-",
            ExperimentCheck::Holds => "holds",
            ExperimentCheck::Fails => "FAILS",
        }
    }

    /// The experiment has not failed by it.
    pub const fn is_pass(self) -> bool {
        !matches!(self, ExperimentCheck::Differs | ExperimentCheck::Fails)
    }
}

/// One figure of an experiment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ComparisonRow {
    /// Over which class of link, where it matters.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub link: &'static str,
    /// What is compared.
    pub what: String,
    /// What the paper, or the closed form derived from it, says; or what is required.
    pub paper: String,
    /// What the production code gives.
    pub ours: String,
    /// What that comes to.
    pub verdict: ExperimentCheck,
    /// Why they need not agree: what the paper measured is another thing than what was simulated. With how far that reaches,
    /// where the verdict rests on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Why ours may be another figure than the paper's, and which it may be for this reason.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviationReason {
    /// In words.
    pub why: &'static str,
    /// What it explains. Beyond, ours differs whatever the words say.
    pub from: f64,
    /// To, inclusive.
    pub to: f64,
}

/// A change as a paper tells it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaperValue {
    /// Percent, or points of percent.
    pub unit: &'static str,
    /// In the experiment that is reproduced. Its sign says which way is a gain.
    pub paper: f64,
    /// What the paper has in experiments of this kind.
    pub range: (f64, f64),
    /// Why ours may be outside of the range.
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
    /// Two values that should be equal.
    pub fn equal<T: PartialEq + ToString>(what: impl Into<String>, paper: &T, ours: &T) -> ComparisonRow {
        let verdict = if paper == ours { ExperimentCheck::Same } else { ExperimentCheck::Differs };
        ComparisonRow::new(what, paper.to_string(), ours.to_string(), verdict)
    }

    /// A change against what a paper tells of it: within its range, outside as far as a stated reason explains, or not.
    pub fn compare_change(
        link: &'static str,
        what: impl Into<String>,
        told: &PaperValue,
        ours: f64,
    ) -> ComparisonRow {
        let explains = |reason: &DeviationReason| (reason.from..=reason.to).contains(&ours);
        let (verdict, reason) = match told.reason.filter(explains) {
            _ if (told.range.0..=told.range.1).contains(&ours) => (ExperimentCheck::Same, None),
            Some(reason) => (ExperimentCheck::Reasoned, Some(reason.words(told.unit))),
            None => (ExperimentCheck::Differs, None),
        };
        let paper = told.words();
        ComparisonRow {
            link,
            reason,
            ..ComparisonRow::new(what, paper, format!("{ours:+.1} {}", told.unit), verdict)
        }
    }

    /// Something of which the paper tells nothing.
    pub fn unreported(link: &'static str, what: impl Into<String>, ours: String) -> ComparisonRow {
        ComparisonRow { link, ..ComparisonRow::new(what, "-".into(), ours, ExperimentCheck::Untold) }
    }

    /// A requirement of our own.
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

    /// A row of all but a link and a reason.
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
        let verdict = |told: &PaperValue, ours| ComparisonRow::compare_change("", "what", told, ours).verdict;
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
