//! [`SlotView`].

use super::hang::Hangs;
use crate::conditions::ConditionResult;
use crate::observed::{ObservedClaim, ObservedPod, SidecarReport};

/// A slot that has a GPU, with its observed state.
pub(super) struct SlotView<'a> {
    pub(super) name: String,
    pub(super) gpu: &'a str,
    pub(super) claim: Option<&'a ObservedClaim>,
    pub(super) pod: Option<&'a ObservedPod>,
    pub(super) report: Option<&'a SidecarReport>,
    /// The fields of its pool that say what its claim asks a driver for.
    pub(super) device_request: Option<String>,
    /// Hangs that concern it.
    pub(super) hangs: Hangs,
    /// The fault that ended all engines on its GPU.
    pub(super) fault: Option<String>,
    /// Why its sidecar does not accept its directive.
    pub(super) directive_error: Option<&'a String>,
    /// Why it has no pod, if known.
    pub(super) no_pod_condition: Option<ConditionResult>,
}
