//! What is told of a tenant or a pool: one finding for each condition, the summary, and conditions that change only when they do.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use sluice_types::conditions::{ConditionType, Reason};

/// Longest message that the API server takes, bytes.
const MAX_MESSAGE_BYTES: usize = 32_768;

/// Whether something holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// It does.
    True,
    /// It does not.
    False,
    /// Nobody knows yet.
    Unknown,
}

impl ConditionStatus {
    const fn as_str(self) -> &'static str {
        match self {
            ConditionStatus::True => "True",
            ConditionStatus::False => "False",
            ConditionStatus::Unknown => "Unknown",
        }
    }
}

/// What was found about one condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionResult {
    /// Whether it holds.
    pub status: ConditionStatus,
    /// Why, for programs.
    pub reason: Reason,
    /// Why, for people.
    pub message: String,
}

impl ConditionResult {
    /// It holds, or, of `Degraded`, it does not: nothing is wrong.
    pub fn as_expected(truth: ConditionStatus) -> ConditionResult {
        ConditionResult { status: truth, reason: Reason::AsExpected, message: String::new() }
    }

    /// It does not hold.
    pub fn not_met(reason: Reason, message: impl Into<String>) -> ConditionResult {
        ConditionResult { status: ConditionStatus::False, reason, message: message.into() }
    }

    /// It holds unless something speaks against it: then for the first of these reasons, and the message names all.
    pub fn met_unless(causes: &[ConditionResult]) -> ConditionResult {
        let Some(first) = causes.first() else { return ConditionResult::as_expected(ConditionStatus::True) };
        let messages: Vec<&str> = causes.iter().map(|cause| cause.message.as_str()).collect();
        ConditionResult::not_met(first.reason, messages.join("; "))
    }

    /// Nobody knows yet.
    pub fn unknown(reason: Reason, message: impl Into<String>) -> ConditionResult {
        ConditionResult { status: ConditionStatus::Unknown, reason, message: message.into() }
    }
}

/// Findings about a tenant, by condition. Those that are missing are not known.
pub type ConditionResults = BTreeMap<ConditionType, ConditionResult>;

/// What has to hold for a tenant to be ready, in the order in which it comes about.
const STEPS: [ConditionType; 5] = [
    ConditionType::Accepted,
    ConditionType::Placed,
    ConditionType::DevicesAllocated,
    ConditionType::WeightsLoaded,
    ConditionType::Serving,
];

/// The summary of an object that has the conditions `kinds`: ready, or the first step that does not hold, with its reason.
pub fn summary(kinds: &[ConditionType], findings: &ConditionResults) -> ConditionResult {
    for step in STEPS.into_iter().filter(|step| kinds.contains(step)) {
        let found = result_for(findings, step);
        if found.status != ConditionStatus::True {
            let message = match found.message.as_str() {
                "" => step.as_str().to_owned(),
                said => format!("{}: {said}", step.as_str()),
            };
            return ConditionResult { message, ..found };
        }
    }
    ConditionResult::as_expected(ConditionStatus::True)
}

fn result_for(findings: &ConditionResults, kind: ConditionType) -> ConditionResult {
    let nothing = || ConditionResult::unknown(Reason::NotObserved, "");
    findings.get(&kind).cloned().unwrap_or_else(nothing)
}

/// The conditions `kinds` of an object of `generation`, the summary among them. `before` are those that it has: one whose
/// truth stays keeps the time at which it last changed.
pub fn conditions(
    kinds: &[ConditionType],
    before: &[Condition],
    findings: &ConditionResults,
    generation: i64,
    now: &Time,
) -> Vec<Condition> {
    let found = |kind: ConditionType| match kind {
        ConditionType::Ready => summary(kinds, findings),
        kind => result_for(findings, kind),
    };
    kinds.iter().map(|kind| condition(before, *kind, found(*kind), generation, now)).collect()
}

fn condition(
    before: &[Condition],
    kind: ConditionType,
    found: ConditionResult,
    generation: i64,
    now: &Time,
) -> Condition {
    let old = before.iter().find(|old| old.type_ == kind.as_str() && old.status == found.status.as_str());
    Condition {
        type_: kind.as_str().to_owned(),
        status: found.status.as_str().to_owned(),
        reason: found.reason.as_str().to_owned(),
        message: truncate_message(found.message),
        observed_generation: Some(generation),
        last_transition_time: old.map_or_else(|| now.clone(), |old| old.last_transition_time.clone()),
    }
}

fn truncate_message(mut message: String) -> String {
    while message.len() > MAX_MESSAGE_BYTES {
        message.pop();
    }
    message
}
