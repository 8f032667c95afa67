//! Which claim a GPU has: its epoch, and when another one is due.
//!
//! A claim's spec is immutable, and it stays on its node until its last pod is gone. So a node that is lost or drained, or a
//! claim whose pool says something else about it or about its pods, means another epoch: all slots of the GPU are repointed
//! together, and the old claim is deleted.

use sluice_types::pool::UpdatePolicy;

use crate::gpu_settings::GpuSettings;
use crate::observed::{ObservedClaim, ObservedGpu, ObservedNode, ObservedPod, ObservedPool};
use crate::zone_disruption::ZoneDisruption;

/// What a GPU's claim is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// Its number, from 1.
    pub number: u32,
    /// The claim that is there is made of something else, and stays until no tenant is on the GPU.
    pub is_update_pending: bool,
    /// Its node is not ready, and too many others are not at once: it stays.
    pub is_held: bool,
    /// Seconds after which to look again, because a node has not been lost for long enough.
    pub requeue_after_seconds: Option<i64>,
}

/// By which rule claims are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplacePolicy {
    /// When a change that stops pods is carried out.
    pub update_policy: UpdatePolicy,
    /// A node that is not ready for so long is lost, seconds.
    pub grace_seconds: i64,
    /// Whether too many are not ready at once.
    pub disruption: ZoneDisruption,
    /// Seconds since 1970.
    pub now: i64,
}

/// What a claim is to ask for, and what its pods are to be made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DesiredClaim<'a> {
    /// Digest of what it asks for.
    pub digest: &'a str,
    /// What its pods are made of.
    pub settings: &'a GpuSettings,
}

impl DesiredClaim<'_> {
    /// A claim that does not say what its pods are made of has theirs as they are now.
    fn differs_from(&self, from: &ObservedClaim) -> bool {
        from.digest != self.digest || from.settings.as_ref().is_some_and(|made| made != self.settings)
    }
}

/// The epoch of the GPU of which `own` is seen, and whose claim is to be as `wanted`.
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
        // Somebody deleted it, and its last pod is gone: the same name is free again.
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

/// How a claim's node stands.
#[derive(Clone, Copy, Debug, Default)]
struct NodeState {
    /// It is of no use any more.
    is_lost: bool,
    /// See [`Epoch::is_held`].
    is_held: bool,
    /// Seconds after which to look again.
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
        // Somebody has deleted it, which is no outage.
        (None, Some(since)) => {
            let left = left(*since);
            NodeState { is_lost: left <= 0, is_held: false, requeue_after_seconds: Some(left) }
        }
        // Nobody knows: its watch will tell.
        (None, None) => NodeState { requeue_after_seconds: Some(rule.grace_seconds), ..NodeState::default() },
    }
}

/// Whether the claim keeps a pod from another node: a cordon alone takes nobody away.
fn is_drained(claim: &ObservedClaim, node: &ObservedNode, pods: &[ObservedPod]) -> bool {
    let stuck = |pod: &ObservedPod| {
        pod.claim == claim.name
            && pod.is_current()
            && pod.node.is_none()
            && pod.unschedulable_reason.is_some()
    };
    node.is_cordoned && pods.iter().any(stuck)
}
