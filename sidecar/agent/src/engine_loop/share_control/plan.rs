//! Computes the target and the next step of a share. These functions are pure.

use sluice_policy::params::Bounds;
use sluice_policy::reclaim::PolicyName;

use super::share_source::ShareTarget;

/// Policy, bounds and share in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareState {
    /// Policy of the memory manager.
    pub policy: PolicyName,
    /// Last bounds that the memory manager accepted.
    pub bounds: Bounds,
    /// Chunks that the memory manager counts: more than its bounds while it releases memory.
    pub share: u32,
    /// Chunks granted by the ledger.
    pub granted: u32,
}

/// Changes to make in this round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareStep {
    /// New policy of the memory manager.
    pub policy: Option<PolicyName>,
    /// New bounds, applied after the policy.
    pub bounds: Option<Bounds>,
    /// Granted chunks to keep. Peers may take the rest.
    pub keep_chunks: u32,
}

/// Returns the chunks to request from the ledger: the assigned share, and at least the floor of the terms, or of as
/// many of them as fit. `floor` maps a policy and a cap to their floor; `None` if they do not fit on the whole GPU.
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

/// Returns the changes of this round. The policy changes once it fits the bounds in force. Share and cap then follow as
/// far as they fit the grant. If the floor of the new cap does not fit yet, the share changes without it.
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
    // Compare with the whole grant: the share falls later, and never below the floor in force then. Otherwise the cap
    // could wait for a policy that waits for the cap.
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
