//! What a policy decides, and what it sees.

use core::fmt::Debug;

use super::cost_rule::{CostRule, FixedOrder};
use crate::geometry::StepShape;
use crate::peers::victim::NextUseEstimate;

/// What decides where the KV of running requests resides. The offload has one file for each rule but the first
/// (`crate::offload`), and the state that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementRule {
    /// On the device.
    Device,
    /// On the device, except for prompts admitted without space for their KV, which use the host tier.
    Prefills,
    /// A fixed share of its layers in the host tier.
    FixedShare,
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
    /// By token deadlines ([`crate::placement_planner::deadline`]).
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
    /// [`crate::params::Params::ablations`].
    pub ablations: Ablations,
}

/// Parts of `Unified` that experiments switch off. The operator leaves all of them on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ablations {
    /// Among options with a cost the one with the least loss per byte is chosen. Off: own layers as far as they hide,
    /// then pauses, then preemptions.
    pub reclaim_by_cost: bool,
    /// The inactive peer whose predicted next use is furthest away is asked first ([`crate::peers::next_use`]). Off:
    /// the most recently used one.
    pub next_use_by_arrivals: bool,
}

impl Default for Ablations {
    fn default() -> Self {
        Ablations { reclaim_by_cost: true, next_use_by_arrivals: true }
    }
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

/// Decides what one tenant reclaims for its own requests.
pub trait ReclaimPolicy: Debug + Sync {
    /// What a step that lacks memory reclaims, in this order. The memory manager takes the first that is possible now
    /// (`plan_reclaim`). If none frees enough, the scheduler pauses or preempts a request.
    fn steps(&self) -> &'static [ReclaimStep];

    /// Own weight layers that may become KV or a peer's memory, of the `cap` that the tenant's bounds allow. `None`:
    /// own layers stay, and the tenant keeps to its share: it lends and borrows nothing.
    fn movable_layers(&self, _cap: u16) -> Option<u16> {
        None
    }

    /// The step whose activation space stays when idle activation chunks become KV; `smallest` is the tenant's smallest
    /// step. `None`: activation chunks do not become KV.
    fn kept_activations(&self, _smallest: StepShape) -> Option<StepShape> {
        None
    }

    /// What decides where the KV of running requests resides. Asked when the policy comes into force.
    fn placement_rule(&self, _settings: &PolicySettings) -> PlacementRule {
        PlacementRule::Device
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

    /// How options that cost requests tokens are compared. Default: in the fixed order of the papers.
    fn cost_rule(&self, _settings: &PolicySettings) -> &'static dyn CostRule {
        &FixedOrder
    }

    /// Ranks a layout for a tenant that wakes, by the losses of its stall and of the KV that it displaces. The layout
    /// with the lowest rank is restored. Default: the least stall, then the least KV.
    fn restore_rank(&self, stall_loss: u64, kv_loss: u64) -> (u64, u64) {
        (stall_loss, kv_loss)
    }

    /// What predicts the next use of the peers to ask. Default: the last use, as Oneiros does.
    fn next_use(&self, _settings: &PolicySettings) -> NextUseEstimate {
        NextUseEstimate::LastUse
    }

    /// Ranks a running request among those of the same priority: the highest rank is preempted first, of equal ranks
    /// the earliest admission. Default: the latest admission, as vLLM does.
    ///
    /// The scheduler asks when it looks for a victim. The oldest request of the step is never ranked, nor are requests
    /// that the step admits. A request at the pause limit is preempted only if all other candidates are at that limit
    /// too, whatever its rank and its priority. `kv_blocks` includes blocks that other requests share, so a preemption
    /// may free less. [`ReclaimPolicy::cost_rule`] may choose to pause a request instead of this preemption.
    fn preemption_rank(&self, request: &PreemptionCandidate) -> u64 {
        request.admission
    }
}
