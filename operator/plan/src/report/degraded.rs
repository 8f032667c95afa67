//! The condition `Degraded` of a tenant.

use sluice_types::conditions::{ConditionType, Reason};
use sluice_types::tenant::ModelTenantStatus;

use super::hang::{HangTime, OwnHang};
use super::slot_view::SlotView;
use crate::conditions::{ConditionResult, ConditionStatus};
use crate::observed::ApplyFailure;

/// Returns `Degraded`, from the first of its slots with a finding. An ongoing hang precedes the last past hang.
pub(super) fn degraded(trouble: Option<&ApplyFailure>, views: &[SlotView<'_>]) -> ConditionResult {
    let yes = |reason, message: &str| ConditionResult {
        status: ConditionStatus::True,
        reason,
        message: message.to_owned(),
    };
    if let Some(trouble) = trouble {
        return yes(trouble.reason(), &trouble.message);
    }
    if let Some(why) = views.iter().find_map(|view| view.pod?.failure_reason.as_ref()) {
        return yes(Reason::PodFailing, why);
    }
    let of_slot = |view: &SlotView<'_>, said: &str| format!("slot {}: {said}", view.name);
    let hung = views.iter().filter_map(|view| Some((view, view.hangs.own.as_ref()?)));
    let hung = hung.max_by_key(|(_, hung)| hung.when);
    let of_hung = |(view, OwnHang { finding, .. }): (&SlotView<'_>, &OwnHang)| {
        yes(finding.reason, &of_slot(view, &finding.message))
    };
    if let Some(lasts) = hung.filter(|(_, hung)| hung.when == HangTime::Ongoing) {
        return of_hung(lasts);
    }
    // Ongoing findings precede past ones.
    if let Some((view, waits)) = views.iter().find_map(|view| Some((view, view.hangs.slice_wait.as_ref()?))) {
        return yes(Reason::PeerHung, &of_slot(view, waits));
    }
    if let Some(hung) = hung {
        return of_hung(hung);
    }
    if let Some(fault) = views.iter().find_map(|view| view.fault.as_ref()) {
        return yes(Reason::MpsFault, fault);
    }
    // A sidecar that is starting has not received a directive yet.
    let undelivered = views
        .iter()
        .filter(|view| view.pod.is_some_and(|pod| pod.is_ready))
        .find_map(|view| view.directive_error);
    if let Some(why) = undelivered {
        return yes(Reason::DirectiveNotTaken, why);
    }
    let took = views.iter().find_map(|view| Some(of_slot(view, view.hangs.slice_takeover.as_ref()?)));
    ConditionResult {
        message: took.unwrap_or_default(),
        ..ConditionResult::as_expected(ConditionStatus::False)
    }
}

/// Whether the status has a reason that expires after ten minutes without another event.
pub fn has_expiring_reason(status: &ModelTenantStatus) -> bool {
    let passing = [Reason::MpsFault, Reason::EngineHung, Reason::SidecarHung].map(Reason::as_str);
    let degraded = ConditionType::Degraded.as_str();
    status.conditions.iter().any(|one| {
        passing.contains(&one.reason.as_str())
            || (one.type_ == degraded && one.status == "False" && !one.message.is_empty())
    })
}
