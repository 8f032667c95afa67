//! [`VictimPolicy`].

/// A rule by which the tenants share their GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VictimPolicy {
    /// For tables.
    pub name: &'static str,
    /// The pool's policy.
    pub policy: &'static str,
    /// Victim rule.
    pub(super) victim: &'static str,
}

/// Fixed partitions: what does not fit is preempted and computed again.
pub const FIXED: VictimPolicy =
    VictimPolicy { name: "Recompute", policy: "Recompute", victim: "MostRecentlyUsed" };
/// Idle weights become KV; the tenant that ran last is the first victim, because under round robin it runs again
/// last.
pub const MRU: VictimPolicy =
    VictimPolicy { name: "Oneiros, MRU", policy: "Oneiros", victim: "MostRecentlyUsed" };
/// The same with the tenant that runs next as first victim.
pub const LRU: VictimPolicy =
    VictimPolicy { name: "Oneiros, LRU", policy: "Oneiros", victim: "LeastRecentlyUsed" };
