//! Conditions of a tenant or a pool: one finding for each condition, the `Ready` summary, and transition times that
//! change only when the status does.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use sluice_types::conditions::{ConditionType, Reason};

/// Longest message that the API server accepts, bytes.
const MAX_MESSAGE_BYTES: usize = 32_768;

/// Status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// The condition is true.
    True,
    /// The condition is false.
    False,
    /// Not known yet.
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

/// The result of checking one condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionResult {
    /// Whether the condition holds.
    pub status: ConditionStatus,
    /// Machine-readable reason.
    pub reason: Reason,
    /// Human-readable reason.
    pub message: String,
}

impl ConditionResult {
    /// Returns a result with reason `AsExpected`. For `Degraded` the expected status is `False`.
    pub fn as_expected(truth: ConditionStatus) -> ConditionResult {
        ConditionResult { status: truth, reason: Reason::AsExpected, message: String::new() }
    }

    /// Returns `False` with a reason.
    pub fn not_met(reason: Reason, message: impl Into<String>) -> ConditionResult {
        ConditionResult { status: ConditionStatus::False, reason, message: message.into() }
    }

    /// Returns `True` if `causes` is empty, else `False` with the first reason and all messages.
    pub fn met_unless(causes: &[ConditionResult]) -> ConditionResult {
        let Some(first) = causes.first() else { return ConditionResult::as_expected(ConditionStatus::True) };
        let messages: Vec<&str> = causes.iter().map(|cause| cause.message.as_str()).collect();
        ConditionResult::not_met(first.reason, messages.join("; "))
    }

    /// Returns `Unknown` with a reason.
    pub fn unknown(reason: Reason, message: impl Into<String>) -> ConditionResult {
        ConditionResult { status: ConditionStatus::Unknown, reason, message: message.into() }
    }
}

/// Results for a tenant or a pool, by condition. Missing ones are `Unknown`.
pub type ConditionResults = BTreeMap<ConditionType, ConditionResult>;

/// Conditions that must hold for `Ready`, in the order in which they are reached.
const STEPS: [ConditionType; 5] = [
    ConditionType::Accepted,
    ConditionType::Placed,
    ConditionType::DevicesAllocated,
    ConditionType::WeightsLoaded,
    ConditionType::Serving,
];

/// Returns the `Ready` summary for an object with the conditions `kinds`: ready, or the first step that does not
/// hold, with its reason.
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

/// Returns the conditions `kinds`, including the summary, of an object of `generation`. `before` are its current
/// conditions: one with an unchanged status keeps its transition time.
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
