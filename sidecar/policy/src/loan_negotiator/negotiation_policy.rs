//! What the directive says about loans.

use alloc::vec::Vec;

use crate::peers::Peer;
use crate::peers::victim::VictimRule;

/// What the directive says about loans: priorities, the order of peers, and durations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NegotiationPolicy {
    /// The tenant's priority.
    pub priority: i32,
    /// Priorities of peers. While the tenant is active, it lends nothing to a peer of lower priority.
    pub priorities: Vec<(Peer, i32)>,
    /// Order in which peers are asked.
    pub rule: VictimRule,
    /// Order of [`VictimRule::FixedOrder`], and of peers without state.
    pub order: Vec<Peer>,
    /// Time after a restore of its layers during which a tenant lends nothing, nanoseconds.
    pub min_residence_ns: u64,
    /// Maximum time for a borrower to return a loan, nanoseconds.
    pub revoke_bound_ns: u64,
    /// Maximum wait for an answer, nanoseconds. Default 20 ms.
    pub ask_patience_ns: u64,
    /// Duration of a loan unless it is renewed, nanoseconds. Default 10 s.
    pub ttl_ns: u64,
    /// Minimum time between a search that all peers denied and the next one, nanoseconds. Default 100 ms.
    pub retry_ns: u64,
}

impl Default for NegotiationPolicy {
    fn default() -> Self {
        NegotiationPolicy {
            priority: 0,
            priorities: Vec::new(),
            rule: VictimRule::default(),
            order: Vec::new(),
            min_residence_ns: 500_000_000,
            revoke_bound_ns: 200_000_000,
            ask_patience_ns: 20_000_000,
            ttl_ns: 10_000_000_000,
            retry_ns: 100_000_000,
        }
    }
}
