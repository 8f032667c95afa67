//! How options that cost requests tokens are compared, when nothing else is left.

use core::fmt::Debug;

use crate::cost::CostContext;
use crate::cost::price::{ReclaimKind, ReclaimOption, cheapest};

/// The longest stall that costs are compared for, permille of a token's compute. A layout stays while KV is short, and
/// later requests wait for it too.
pub const MAX_STALL_PERMILLE: u64 = 1000;

/// Compares options that cost requests tokens.
pub trait CostRule: Debug + Sync {
    /// Chooses an option: a request is paused or preempted, or own layers move although tokens wait for them. After
    /// `None` the scheduler preempts the request that
    /// [`ReclaimPolicy::preemption_rank`](super::ReclaimPolicy::preemption_rank) ranks first, if no other way is left.
    /// The scheduler asks when memory is owed, and after the memory manager answered
    /// [`Prepared::Short`](crate::memory_manager::Prepared::Short).
    fn choose(&self, options: &[ReclaimOption]) -> Option<ReclaimOption>;

    /// The longest stall that moving layers may cause when [`CostRule::choose`] chooses them, permille of a token's
    /// compute. 0: layers are not offered to it.
    fn max_stall_permille(&self) -> u64;

    /// Whether KV of paused requests leaves the device for memory that is owed, when only KV of requests is left.
    /// Otherwise a request is preempted.
    fn evicts_paused_for_debts(&self) -> bool;

    /// The loss if `requests` requests lose `tokens` tokens of their KV to layers that are restored.
    fn displaced_kv_loss(&self, cost: &CostContext, requests: u32, tokens: u64) -> u64;
}

/// Pauses a request before it preempts one, as published, and moves no layer that tokens wait for.
#[derive(Debug)]
pub struct FixedOrder;

impl CostRule for FixedOrder {
    fn choose(&self, options: &[ReclaimOption]) -> Option<ReclaimOption> {
        let first = |kind| options.iter().find(|option| option.kind == kind).copied();
        first(ReclaimKind::Pause).or_else(|| first(ReclaimKind::Preempt))
    }

    fn max_stall_permille(&self) -> u64 {
        0
    }

    fn evicts_paused_for_debts(&self) -> bool {
        false
    }

    fn displaced_kv_loss(&self, cost: &CostContext, requests: u32, tokens: u64) -> u64 {
        cost.recomputed(requests, tokens, 0)
    }
}

/// Takes the option with the least loss per byte.
#[derive(Debug)]
pub struct LeastCost;

impl CostRule for LeastCost {
    fn choose(&self, options: &[ReclaimOption]) -> Option<ReclaimOption> {
        cheapest(options.iter().copied())
    }

    fn max_stall_permille(&self) -> u64 {
        MAX_STALL_PERMILLE
    }

    fn evicts_paused_for_debts(&self) -> bool {
        true
    }

    fn displaced_kv_loss(&self, cost: &CostContext, requests: u32, tokens: u64) -> u64 {
        cost.dropped(requests, tokens)
    }
}
