//! What follows from what is wanted and what there is. Pure.

use sluice_policy::params::Bounds;
use sluice_policy::reclaim::PolicyName;

use super::share_source::ShareTarget;

/// What is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareState {
    /// Of the memory manager.
    pub policy: PolicyName,
    /// The last bounds that the memory manager took.
    pub bounds: Bounds,
    /// What the memory manager still counts: more than its bounds say while memory is on its way out.
    pub share: u32,
    /// What the ledger grants.
    pub granted: u32,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareStep {
    /// The policy that the memory manager gets.
    pub policy: Option<PolicyName>,
    /// And then these bounds.
    pub bounds: Option<Bounds>,
    /// Others may have what is granted beyond this.
    pub keep_chunks: u32,
}

/// Chunks to ask the ledger for: what was dealt, and at least the floor with which the terms can be met, or with which as much
/// of them can as ever can. `floor`: of a policy and a cap; `None` = it cannot be, not even with the whole GPU.
pub fn target_chunks(
    terms: ShareTarget,
    has: ShareState,
    floor: impl Fn(PolicyName, u32) -> Option<u32>,
    capacity: u32,
) -> u32 {
    let (cap, old) = (terms.remap_cap_permille, has.bounds.remap_cap_permille);
    let goals = [(terms.policy, cap), (has.policy, cap), (terms.policy, old), (has.policy, old)];
    let least = goals.into_iter().find_map(|(policy, cap)| floor(policy, cap));
    terms.share_chunks.max(least.unwrap_or(0)).min(capacity)
}

/// The policy changes once it fits what is in force, then share and cap as far as they fit what is granted. A cap whose floor
/// does not fit yet waits, and the share changes without it.
pub fn next_step(
    terms: ShareTarget,
    has: ShareState,
    want: u32,
    floor: impl Fn(PolicyName, u32) -> Option<u32>,
) -> ShareStep {
    let fits = |policy, cap, share| floor(policy, cap).is_some_and(|floor| floor <= share);
    let Bounds { share_chunks, remap_cap_permille } = has.bounds;
    let other = terms.policy != has.policy && fits(terms.policy, remap_cap_permille, share_chunks);
    let policy = if other { terms.policy } else { has.policy };
    // Judged by all that is granted: the share falls afterwards, and to no less than the floor that is in force then. A cap
    // that waited for a policy which waits for the cap would wait for ever.
    let follows = fits(policy, terms.remap_cap_permille, has.granted);
    let cap = if follows { terms.remap_cap_permille } else { remap_cap_permille };
    let share = want.max(floor(policy, cap).unwrap_or(0)).min(has.granted);
    let bounds = Bounds { share_chunks: share, remap_cap_permille: cap };
    ShareStep {
        policy: other.then_some(policy),
        bounds: (bounds != has.bounds).then_some(bounds),
        keep_chunks: share.max(has.share),
    }
}
