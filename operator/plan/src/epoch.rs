//! Which claim a GPU has: its epoch, and when another one is due.
//!
//! A claim's spec is immutable, and it stays on its node until its last pod is gone. So a node that is lost or drained, or a
//! claim whose pool says something else about it or about its pods, means another epoch: all slots of the GPU are repointed
//! together, and the old claim is deleted.

use sluice_types::pool::UpdatePolicy;

use crate::outage::Outage;
use crate::seen::{ClaimSeen, NodeSeen, OfGpu, PodSeen, Seen};
use crate::settings::Settings;

/// What a GPU's claim is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// Its number, from 1.
    pub number: u32,
    /// The claim that is there is made of something else, and stays until no tenant is on the GPU.
    pub waits: bool,
    /// Its node is not ready, and too many others are not at once: it stays.
    pub held: bool,
    /// Seconds after which to look again, because a node has not been lost for long enough.
    pub look_again: Option<i64>,
}

/// By which rule claims are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// When a change that stops pods is carried out.
    pub update: UpdatePolicy,
    /// A node that is not ready for so long is lost, seconds.
    pub grace_seconds: i64,
    /// Whether too many are not ready at once.
    pub outage: Outage,
    /// Seconds since 1970.
    pub now: i64,
}

/// What a claim is to ask for, and what its pods are to be made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    /// Digest of what it asks for.
    pub digest: &'a str,
    /// What its pods are made of.
    pub settings: &'a Settings,
}

impl Wanted<'_> {
    /// A claim that does not say what its pods are made of has theirs as they are now.
    fn differs(&self, from: &ClaimSeen) -> bool {
        from.digest != self.digest || from.settings.as_ref().is_some_and(|made| made != self.settings)
    }
}

/// The epoch of the GPU of which `own` is seen, and whose claim is to be as `wanted`.
pub(crate) fn epoch(own: Option<&OfGpu<'_>>, wanted: Wanted<'_>, seen: &Seen, rule: Rule) -> Epoch {
    let Some(own) = own else { return fixed(1) };
    let all = own.claims.iter().map(|(epoch, _)| *epoch).chain(own.slots.iter().copied());
    let Some(highest) = all.max() else { return fixed(1) };
    let Some((_, current)) = own.claims.iter().find(|(epoch, _)| *epoch == highest) else {
        // Somebody deleted it, and its last pod is gone: the same name is free again.
        return fixed(highest);
    };
    let node = standing(current, seen, rule);
    let another = wanted.differs(current);
    let waits = another && !own.slots.is_empty() && rule.update == UpdatePolicy::WhenEmpty;
    match current.deleting || node.lost || (another && !waits) {
        true => fixed(highest + 1),
        false => Epoch { number: highest, waits, held: node.held, look_again: node.look_again },
    }
}

const fn fixed(number: u32) -> Epoch {
    Epoch { number, waits: false, held: false, look_again: None }
}

/// How a claim's node stands.
#[derive(Clone, Copy, Debug, Default)]
struct Standing {
    /// It is of no use any more.
    lost: bool,
    /// See [`Epoch::held`].
    held: bool,
    /// Seconds after which to look again.
    look_again: Option<i64>,
}

fn standing(claim: &ClaimSeen, seen: &Seen, rule: Rule) -> Standing {
    let Some(name) = claim.device.as_ref().and_then(|device| device.node.as_ref()) else {
        return Standing::default();
    };
    let left = |since: i64| since + rule.grace_seconds - rule.now;
    match (seen.nodes.get(name), seen.missing.get(name)) {
        (Some(node), _) => {
            let left = node.lost_since.map(|since| left(rule.outage.counts_from(since, rule.now)));
            let lost = left.is_some_and(|left| left <= 0) || drained(claim, node, &seen.pods);
            let held = node.lost_since.is_some() && rule.outage.is_on();
            Standing { lost, held, look_again: left.filter(|_| !lost) }
        }
        // Somebody has deleted it, which is no outage.
        (None, Some(since)) => {
            let left = left(*since);
            Standing { lost: left <= 0, held: false, look_again: Some(left) }
        }
        // Nobody knows: its watch will tell.
        (None, None) => Standing { look_again: Some(rule.grace_seconds), ..Standing::default() },
    }
}

/// Whether the claim keeps a pod from another node: a cordon alone takes nobody away.
fn drained(claim: &ClaimSeen, node: &NodeSeen, pods: &[PodSeen]) -> bool {
    let stuck = |pod: &PodSeen| {
        pod.claim == claim.name && pod.stays() && pod.node.is_none() && pod.unscheduled.is_some()
    };
    node.cordoned && pods.iter().any(stuck)
}
