//! One figure of an experiment, and whether it is what was expected.

use serde::Serialize;

/// What a comparison came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
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

impl Verdict {
    /// As it is printed.
    pub const fn word(self) -> &'static str {
        match self {
            Verdict::Same => "same",
            Verdict::Reasoned => "reasoned",
            Verdict::Differs => "DIFFERS",
            Verdict::Untold => "-",
            Verdict::Holds => "holds",
            Verdict::Fails => "FAILS",
        }
    }

    /// The experiment has not failed by it.
    pub const fn is_well(self) -> bool {
        !matches!(self, Verdict::Differs | Verdict::Fails)
    }
}

/// One figure of an experiment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
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
    pub verdict: Verdict,
    /// Why they need not agree: what the paper measured is another thing than what was simulated. With how far that reaches,
    /// where the verdict rests on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Why ours may be another figure than the paper's, and which it may be for this reason.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reason {
    /// In words.
    pub why: &'static str,
    /// What it explains. Beyond, ours differs whatever the words say.
    pub from: f64,
    /// To, inclusive.
    pub to: f64,
}

/// A change as a paper tells it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Told {
    /// Percent, or points of percent.
    pub unit: &'static str,
    /// In the experiment that is reproduced. Its sign says which way is a gain.
    pub paper: f64,
    /// What the paper has in experiments of this kind.
    pub range: (f64, f64),
    /// Why ours may be outside of the range.
    pub reason: Option<Reason>,
}

impl Reason {
    fn words(&self, unit: &str) -> String {
        format!("{} (explains {:+.1} to {:+.1} {unit})", self.why, self.from, self.to)
    }
}

impl Told {
    fn words(&self) -> String {
        let (from, to) = self.range;
        if from == -100.0 || to.is_infinite() {
            return format!("{:+.1} {} or more", self.paper, self.unit);
        }
        format!("{:+.1} {} ({from:+.1} to {to:+.1})", self.paper, self.unit)
    }
}

impl Row {
    /// Two values that should be equal.
    pub fn equal<T: PartialEq + ToString>(what: impl Into<String>, paper: &T, ours: &T) -> Row {
        let verdict = if paper == ours { Verdict::Same } else { Verdict::Differs };
        Row::new(what, paper.to_string(), ours.to_string(), verdict)
    }

    /// A change against what a paper tells of it: within its range, outside as far as a stated reason explains, or not.
    pub fn change(link: &'static str, what: impl Into<String>, told: &Told, ours: f64) -> Row {
        let explains = |reason: &Reason| (reason.from..=reason.to).contains(&ours);
        let (verdict, reason) = match told.reason.filter(explains) {
            _ if (told.range.0..=told.range.1).contains(&ours) => (Verdict::Same, None),
            Some(reason) => (Verdict::Reasoned, Some(reason.words(told.unit))),
            None => (Verdict::Differs, None),
        };
        let paper = told.words();
        Row { link, reason, ..Row::new(what, paper, format!("{ours:+.1} {}", told.unit), verdict) }
    }

    /// Something of which the paper tells nothing.
    pub fn untold(link: &'static str, what: impl Into<String>, ours: String) -> Row {
        Row { link, ..Row::new(what, "-".into(), ours, Verdict::Untold) }
    }

    /// A requirement of our own.
    pub fn required(
        link: &'static str,
        what: impl Into<String>,
        required: String,
        found: String,
        holds: bool,
    ) -> Row {
        let verdict = if holds { Verdict::Holds } else { Verdict::Fails };
        Row { link, ..Row::new(what, required, found, verdict) }
    }

    /// A row of all but a link and a reason.
    pub fn new(what: impl Into<String>, paper: String, ours: String, verdict: Verdict) -> Row {
        Row { link: "", what: what.into(), paper, ours, verdict, reason: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLD: Told = Told {
        unit: "%",
        paper: -50.0,
        range: (-80.0, -20.0),
        reason: Some(Reason { why: "because", from: -90.0, to: -10.0 }),
    };

    #[test]
    fn a_reason_explains_as_much_as_it_says_and_beyond_that_ours_differs() {
        let verdict = |told: &Told, ours| Row::change("", "what", told, ours).verdict;
        let seen = [-91.0, -90.0, -80.0, -20.0, -10.0, -9.0, 1.0].map(|ours| verdict(&TOLD, ours));
        use Verdict::{Differs, Reasoned, Same};
        assert_eq!(seen, [Differs, Reasoned, Same, Same, Reasoned, Differs, Differs]);
        assert_eq!(verdict(&Told { reason: None, ..TOLD }, -10.0), Differs);
    }

    #[test]
    fn a_reason_stands_only_where_it_is_needed_with_its_bounds() {
        let reason = |ours| Row::change("", "what", &TOLD, ours).reason;
        let words = "because (explains -90.0 to -10.0 %)".to_owned();
        assert_eq!((reason(-50.0), reason(-15.0), reason(1.0)), (None, Some(words), None));
    }
}
