//! What is told of a tenant or a pool: one finding for each condition, the summary, and conditions that change only when they do.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use sluice_types::conditions::{ConditionType, Reason};

/// Longest message that the API server takes, bytes.
const LONGEST_MESSAGE: usize = 32_768;

/// Whether something holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    /// It does.
    True,
    /// It does not.
    False,
    /// Nobody knows yet.
    Unknown,
}

impl Truth {
    const fn as_str(self) -> &'static str {
        match self {
            Truth::True => "True",
            Truth::False => "False",
            Truth::Unknown => "Unknown",
        }
    }
}

/// What was found about one condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Whether it holds.
    pub truth: Truth,
    /// Why, for programs.
    pub reason: Reason,
    /// Why, for people.
    pub message: String,
}

impl Finding {
    /// It holds, or, of `Degraded`, it does not: nothing is wrong.
    pub fn as_expected(truth: Truth) -> Finding {
        Finding { truth, reason: Reason::AsExpected, message: String::new() }
    }

    /// It does not hold.
    pub fn no(reason: Reason, message: impl Into<String>) -> Finding {
        Finding { truth: Truth::False, reason, message: message.into() }
    }

    /// It holds unless something speaks against it: then for the first of these reasons, and the message names all.
    pub fn unless(causes: &[Finding]) -> Finding {
        let Some(first) = causes.first() else { return Finding::as_expected(Truth::True) };
        let messages: Vec<&str> = causes.iter().map(|cause| cause.message.as_str()).collect();
        Finding::no(first.reason, messages.join("; "))
    }

    /// Nobody knows yet.
    pub fn unknown(reason: Reason, message: impl Into<String>) -> Finding {
        Finding { truth: Truth::Unknown, reason, message: message.into() }
    }
}

/// Findings about a tenant, by condition. Those that are missing are not known.
pub type Findings = BTreeMap<ConditionType, Finding>;

/// What has to hold for a tenant to be ready, in the order in which it comes about.
const STEPS: [ConditionType; 5] = [
    ConditionType::Accepted,
    ConditionType::Placed,
    ConditionType::DevicesAllocated,
    ConditionType::WeightsLoaded,
    ConditionType::Serving,
];

/// The summary of an object that has the conditions `kinds`: ready, or the first step that does not hold, with its reason.
pub fn summary(kinds: &[ConditionType], findings: &Findings) -> Finding {
    for step in STEPS.into_iter().filter(|step| kinds.contains(step)) {
        let found = finding(findings, step);
        if found.truth != Truth::True {
            let message = match found.message.as_str() {
                "" => step.as_str().to_owned(),
                said => format!("{}: {said}", step.as_str()),
            };
            return Finding { message, ..found };
        }
    }
    Finding::as_expected(Truth::True)
}

fn finding(findings: &Findings, kind: ConditionType) -> Finding {
    let nothing = || Finding::unknown(Reason::NotObserved, "");
    findings.get(&kind).cloned().unwrap_or_else(nothing)
}

/// The conditions `kinds` of an object of `generation`, the summary among them. `before` are those that it has: one whose
/// truth stays keeps the time at which it last changed.
pub fn conditions(
    kinds: &[ConditionType],
    before: &[Condition],
    findings: &Findings,
    generation: i64,
    now: &Time,
) -> Vec<Condition> {
    let found = |kind: ConditionType| match kind {
        ConditionType::Ready => summary(kinds, findings),
        kind => finding(findings, kind),
    };
    kinds.iter().map(|kind| condition(before, *kind, found(*kind), generation, now)).collect()
}

fn condition(
    before: &[Condition],
    kind: ConditionType,
    found: Finding,
    generation: i64,
    now: &Time,
) -> Condition {
    let old = before.iter().find(|old| old.type_ == kind.as_str() && old.status == found.truth.as_str());
    Condition {
        type_: kind.as_str().to_owned(),
        status: found.truth.as_str().to_owned(),
        reason: found.reason.as_str().to_owned(),
        message: cut(found.message),
        observed_generation: Some(generation),
        last_transition_time: old.map_or_else(|| now.clone(), |old| old.last_transition_time.clone()),
    }
}

fn cut(mut message: String) -> String {
    while message.len() > LONGEST_MESSAGE {
        message.pop();
    }
    message
}
