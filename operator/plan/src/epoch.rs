//! The epoch of a GPU's claim, and when a new claim is due.
//!
//! A claim's spec is immutable, and it stays on its node until its last pod is gone. A lost or drained node, or a
//! changed pool spec, therefore needs a new epoch: all slots of the GPU move to the new claim together, and the old
//! claim is deleted.

use sluice_types::pool::UpdatePolicy;

use crate::gpu_settings::GpuSettings;
use crate::observed::{ObservedClaim, ObservedGpu, ObservedNode, ObservedPod, ObservedPool};
use crate::zone_disruption::ZoneDisruption;

/// The desired epoch of a GPU's claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// Its number, from 1.
    pub number: u32,
    /// The existing claim has other settings, and stays until the GPU has no tenant.
    pub is_update_pending: bool,
    /// Its node is not ready, but the claim stays because too many nodes are not ready at once.
    pub is_held: bool,
    /// Seconds until the next check, because a node has not been lost for long enough.
    pub requeue_after_seconds: Option<i64>,
}

/// The rule for replacing claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplacePolicy {
    /// When a change that stops pods is applied.
    pub update_policy: UpdatePolicy,
    /// A node that has not been ready for this long is lost, seconds.
    pub grace_seconds: i64,
    /// Whether too many nodes are not ready at once.
    pub disruption: ZoneDisruption,
    /// Seconds since 1970.
    pub now: i64,
}

/// What a claim should request, and the settings of its pods.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DesiredClaim<'a> {
    /// Digest of the request.
    pub digest: &'a str,
    /// Settings of its pods.
    pub settings: &'a GpuSettings,
}

impl DesiredClaim<'_> {
    /// Whether the claim differs from the desired one. A claim without recorded settings has the current ones.
    fn differs_from(&self, from: &ObservedClaim) -> bool {
        from.digest != self.digest || from.settings.as_ref().is_some_and(|made| made != self.settings)
    }
}

/// Returns the epoch of the GPU observed as `own`, whose claim should be as `wanted`.
pub(crate) fn epoch(
    own: Option<&ObservedGpu<'_>>,
    wanted: DesiredClaim<'_>,
    seen: &ObservedPool,
    rule: ReplacePolicy,
) -> Epoch {
    let Some(own) = own else { return new_epoch(1) };
    let all = own.claims.iter().map(|(epoch, _)| *epoch).chain(own.slots.iter().copied());
    let Some(highest) = all.max() else { return new_epoch(1) };
    let Some((_, current)) = own.claims.iter().find(|(epoch, _)| *epoch == highest) else {
        // The claim was deleted and its last pod is gone: its name is free again.
        return new_epoch(highest);
    };
    let node = node_state(current, seen, rule);
    let another = wanted.differs_from(current);
    let waits = another && !own.slots.is_empty() && rule.update_policy == UpdatePolicy::WhenEmpty;
    match current.is_deleting || node.is_lost || (another && !waits) {
        true => new_epoch(highest + 1),
        false => Epoch {
            number: highest,
            is_update_pending: waits,
            is_held: node.is_held,
            requeue_after_seconds: node.requeue_after_seconds,
        },
    }
}

const fn new_epoch(number: u32) -> Epoch {
    Epoch { number, is_update_pending: false, is_held: false, requeue_after_seconds: None }
}

/// State of a claim's node.
#[derive(Clone, Copy, Debug, Default)]
struct NodeState {
    /// Whether the node counts as lost or drained.
    is_lost: bool,
    /// See [`Epoch::is_held`].
    is_held: bool,
    /// Seconds until the next check.
    requeue_after_seconds: Option<i64>,
}

fn node_state(claim: &ObservedClaim, seen: &ObservedPool, rule: ReplacePolicy) -> NodeState {
    let Some(name) = claim.device.as_ref().and_then(|device| device.node.as_ref()) else {
        return NodeState::default();
    };
    let left = |since: i64| since + rule.grace_seconds - rule.now;
    match (seen.nodes.get(name), seen.missing_nodes.get(name)) {
        (Some(node), _) => {
            let left = node.lost_since.map(|since| left(rule.disruption.not_ready_since(since, rule.now)));
            let lost = left.is_some_and(|left| left <= 0) || is_drained(claim, node, &seen.pods);
            let held = node.lost_since.is_some() && rule.disruption.is_active();
            NodeState { is_lost: lost, is_held: held, requeue_after_seconds: left.filter(|_| !lost) }
        }
        // The node object was deleted, which is not an outage.
        (None, Some(since)) => {
            let left = left(*since);
            NodeState { is_lost: left <= 0, is_held: false, requeue_after_seconds: Some(left) }
        }
        // The node watch has not reported this node yet.
        (None, None) => NodeState { requeue_after_seconds: Some(rule.grace_seconds), ..NodeState::default() },
    }
}

/// Whether the claim keeps a pod from another node. A cordon alone evicts no pod.
fn is_drained(claim: &ObservedClaim, node: &ObservedNode, pods: &[ObservedPod]) -> bool {
    let stuck = |pod: &ObservedPod| {
        pod.claim == claim.name
            && pod.is_current()
            && pod.node.is_none()
            && pod.unschedulable_reason.is_some()
    };
    node.is_cordoned && pods.iter().any(stuck)
}
