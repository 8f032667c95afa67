//! What a policy decides, and what it sees.

use core::fmt::Debug;

use crate::cost::CostContext;
use crate::cost::price::{ReclaimKind, ReclaimOption};
use crate::geometry::StepShape;
use crate::peers::victim::NextUseEstimate;

/// Where the KV of running requests resides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvPlacementMode {
    /// On the device.
    Device,
    /// On the device, except for prompts admitted without space for their KV, which use the host tier.
    Prompts,
    /// A fixed share of its layers in the host tier.
    Fixed,
    /// The same layers of every request in the host tier, as many as hide.
    Uniform,
    /// Planned layers of each request in the host tier.
    PerRequest,
}

/// The order in which requests are admitted and paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceOrder {
    /// By arrival.
    Arrival,
    /// By token deadlines ([`crate::planner::deadline`]).
    Deadline,
}

/// The tunables and objectives that decide what a policy may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicySettings {
    /// Own layers may move ([`crate::params::Params::remap_cap_permille`] is not 0).
    pub may_move_weights: bool,
    /// There are objectives for the first token and between tokens.
    pub has_objectives: bool,
    /// [`crate::params::Params::pause_bound_ns`].
    pub pause_bound_ns: u64,
    /// [`crate::params::Params::reclaim_by_cost`].
    pub reclaim_by_cost: bool,
    /// [`crate::params::Params::next_use_by_arrivals`].
    pub next_use_by_arrivals: bool,
}

/// One way to reclaim memory before a request is paused or preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimStep {
    /// Idle activation chunks become KV (eLLM, Algorithm 1).
    InflateKv,
    /// KV of paused requests leaves the device (OrbitFlow), if the policy pauses requests.
    EvictPaused,
    /// Own weight layers become KV, as many as hide behind compute (Oneiros 4.3).
    RemapWeights,
}

/// A running request that could be preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreemptionCandidate {
    /// Its place in the order of admissions; later admissions have higher numbers.
    pub admission: u64,
    /// KV blocks of 16 tokens that it holds, with those that it shares with others.
    pub kv_blocks: u32,
}

/// Returns the first pause, else the first preemption.
pub fn pause_before_preempting(options: &[ReclaimOption]) -> Option<ReclaimOption> {
    let first = |kind| options.iter().find(|option| option.kind == kind).copied();
    first(ReclaimKind::Pause).or_else(|| first(ReclaimKind::Preempt))
}

/// Decides what one tenant reclaims for its own requests.
pub trait ReclaimPolicy: Debug + Sync {
    /// What a step that lacks memory reclaims, in this order. The memory manager takes the first that is possible now
    /// (`plan_reclaim`). If none frees enough, the scheduler pauses or preempts a request.
    fn steps(&self) -> &'static [ReclaimStep];

    /// Own weight layers that may become KV or a peer's memory, of the `cap` that the tenant's bounds allow. `None`: own
    /// layers stay, and the tenant keeps to its share: it lends and borrows nothing.
    fn movable_layers(&self, _cap: u16) -> Option<u16> {
        None
    }

    /// The step whose activation space stays when idle activation chunks become KV; `smallest` is the tenant's smallest
    /// step. `None`: activation chunks do not become KV.
    fn kept_activations(&self, _smallest: StepShape) -> Option<StepShape> {
        None
    }

    /// Where the KV of running requests resides. Asked when the policy comes into force.
    fn kv_placement(&self, _settings: &PolicySettings) -> KvPlacementMode {
        KvPlacementMode::Device
    }

    /// The longest total pause of a request, nanoseconds: excess requests are paused with their KV. `None`: excess
    /// requests are recomputed.
    fn longest_pause_ns(&self, _settings: &PolicySettings) -> Option<u64> {
        None
    }

    /// The order in which requests are admitted and paused, by the scheduler.
    fn service_order(&self, _settings: &PolicySettings) -> ServiceOrder {
        ServiceOrder::Arrival
    }

    /// Chooses among the options that cost requests tokens, when nothing else is left: which request is paused or
    /// preempted, or that own layers move although tokens wait for them. `None` = the request that
    /// [`ReclaimPolicy::preemption_rank`] ranks first is preempted, if no other way is left. Default: pauses a
    /// request before it preempts one, and moves no layer. The scheduler asks after the memory manager answered
    /// [`Prepared::Short`](crate::memory_manager::Prepared::Short).
    fn choose_victim(&self, _settings: &PolicySettings, options: &[ReclaimOption]) -> Option<ReclaimOption> {
        pause_before_preempting(options)
    }

    /// The longest stall that moving layers may cause when [`ReclaimPolicy::choose_victim`] chooses them, permille of a token's
    /// compute. 0: layers are not offered to it.
    fn max_stall_permille(&self, _settings: &PolicySettings) -> u64 {
        0
    }

    /// Whether KV of paused requests leaves the device for memory that is owed, when only KV of requests is left.
    /// Otherwise a request is preempted.
    fn evicts_paused_for_debts(&self, _settings: &PolicySettings) -> bool {
        false
    }

    /// The loss if `requests` requests lose `tokens` tokens of their KV to layers that are restored.
    fn displaced_kv_loss(
        &self,
        _settings: &PolicySettings,
        cost: &CostContext,
        (requests, tokens): (u32, u64),
    ) -> u64 {
        cost.recomputed(requests, tokens, 0)
    }

    /// Ranks a layout for a tenant that wakes, by the losses of its stall and of the KV that it displaces. The layout with
    /// the lowest rank is restored. Default: the least stall, then the least KV.
    fn restore_rank(&self, stall_loss: u64, kv_loss: u64) -> (u64, u64) {
        (stall_loss, kv_loss)
    }

    /// What predicts the next use of the peers to ask. Default: the last use, as Oneiros does.
    fn next_use(&self, _settings: &PolicySettings) -> NextUseEstimate {
        NextUseEstimate::LastUse
    }

    /// Ranks a running request among those of the same priority: the highest rank is preempted first, of equal ranks the
    /// earliest admission. Default: the latest admission, as vLLM does. The scheduler asks when it preempts.
    fn preemption_rank(&self, request: &PreemptionCandidate) -> u64 {
        request.admission
    }
}
