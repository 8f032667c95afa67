//! The policy's tunables, each with its unit, default and source.

use crate::peers::victim::NextUseEstimate;
use crate::reclaim::{
    Ablations, CostRule, PlacementRule, PolicyName, PolicySettings, ReclaimPolicy, ServiceOrder,
};

/// A fixed layout of moving layers for tests and experiments; overrides the remapping controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForcedRemap {
    /// Layers whose memory becomes KV.
    pub alpha: u16,
    /// Slots, 1 or 2.
    pub beta: u8,
}

/// A tenant's objectives, in the policy's units. None by default. Those of the CRD and of the sidecar's file are in
/// milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slo {
    /// Maximum time to the first token, nanoseconds; 0 = none.
    pub ttft_ns: u64,
    /// Maximum time between two tokens, nanoseconds; 0 = none.
    pub tbt_ns: u64,
    /// Allowed share of later tokens, permille.
    pub allowed_miss_permille: u32,
}

/// Memory limits set by the operator; may change at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// [`Params::share_chunks`].
    pub share_chunks: u32,
    /// [`Params::remap_cap_permille`].
    pub remap_cap_permille: u32,
}

/// The policy's tunables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    /// The enabled reclaim options and their order.
    pub policy: PolicyName,
    /// Chunks that the tenant may hold without borrowing, at most the GPU's. Default: all.
    pub share_chunks: u32,
    /// Maximum share of remapped layers, permille (`maxRemappedPercent` x 10). Never a whole model: m <= n - 1.
    pub remap_cap_permille: u32,
    /// Fixed layout that replaces the controller's choice.
    pub forced: Option<ForcedRemap>,
    /// Longest request, prompt and answer together, tokens. Its KV must fit `guaranteed_kv_bytes`.
    pub max_model_tokens: u32,
    /// KV that the tenant can always hold, bytes.
    pub guaranteed_kv_bytes: u64,
    /// Maximum KV of the tenant, bytes.
    pub kv_limit_bytes: u64,
    /// Host memory for offloaded KV, bytes. Default none: a tenant that sleeps recomputes its KV.
    pub host_kv_bytes: u64,
    /// Largest step: determines the activation space.
    pub max_step: crate::geometry::StepShape,
    /// Smallest step: activation space that is never lent (eLLM).
    pub min_step: crate::geometry::StepShape,
    /// Allowed stall of a remapped token, permille of its compute time. Oneiros allows none; a small allowance absorbs
    /// measurement noise. Default 50.
    pub stall_allowance_permille: u32,
    /// Consecutive boundaries with enough spare KV before a layer is restored (hysteresis). Default 64.
    pub revert_patience_steps: u32,
    /// Spare KV, beyond the layer's own chunks, that must stay free after a reversion, permille of KV in use. Default
    /// 125.
    pub revert_reserve_permille: u32,
    /// `FlexGen`: share of the layers whose KV is in the host tier, permille. Default 500: FlexGen's profiles for
    /// models that leave little memory put about half of the cache there.
    pub fixed_away_permille: u32,
    /// KV blocks to keep free beyond the running requests' next need, permille of all blocks: below it KV is offloaded.
    /// Default 125: write-back takes some steps, and the reserve lasts for them.
    pub offload_reserve_permille: u32,
    /// Tunables of the number of offloaded layers (`Pie`).
    pub expansion: crate::pie::expansion::ExpansionTunables,
    /// Tunables of the validity of a plan (`OrbitFlow`, `Unified`).
    pub replan: crate::placement_planner::replan::ReplanTunables,
    /// Node expansions of one plan.
    pub plan_expansions: u32,
    /// Whether plans offload the same layers of all requests: the batch-uniform variant of OrbitFlow's ablation.
    /// Default no.
    pub plan_alike: bool,
    /// Whether plans admit requests first come, first served wherever all fit, as OrbitFlow is published; requests that
    /// delay others are paused afterwards. Default no: no request is admitted to be late, or to delay others.
    pub plan_first_come: bool,
    /// Maximum total pause time of one request, nanoseconds; 0 = no request is paused. Under deadline scheduling a
    /// pause counts from the time when the client has read all tokens, and a request that is too late for its first
    /// token is deferred by this time, once. Default 10 s ([`crate::placement_planner::pause::DEFAULT_BOUND_NS`]).
    pub pause_bound_ns: u64,
    /// Objectives of a good answer; they determine predicted losses and the size of eLLM's buffer.
    pub slo: Slo,
    /// Steps over which the predicted losses of reclaim options are compared. Default 64, the patience of reversion:
    /// reclaimed memory is not returned sooner.
    pub cost_window_steps: u32,
    /// Parts of `Unified` that experiments switch off. Default all on.
    pub ablations: Ablations,
    /// Bytes of live blocks that compaction may move at one step boundary. Default 8 MiB.
    pub compact_budget_bytes: u64,
    /// eLLM: exclusive limit of the memory that an inflation takes for the next tokens beyond its need, bytes; 0 =
    /// none. Default 50,000,000, the paper's ([`crate::ellm::PREMAP_LIMIT_BYTES`]).
    pub premap_bytes: u64,
    /// eLLM: whether an inflation only maps; old mappings are removed by a later transaction, or while no step waits.
    /// Default on.
    pub defers_unmap: bool,
    /// Whether copies use the link by deadline ([`crate::copy_priority`]); otherwise in the order of arrival. Default
    /// on.
    pub link_by_deadline: bool,
    /// Automatic prefix caching. Default on.
    pub prefix_caching: bool,
    /// Estimated host-to-device bandwidth until fills are measured, bytes per second.
    pub link_bytes_per_second: u64,
    /// Estimated compute time of one layer until steps are measured, nanoseconds. 0 = unknown: active layers are not
    /// remapped before the first step.
    pub layer_compute_ns: u64,
}

impl Params {
    /// The share and the cap that were set last.
    pub fn bounds(&self) -> Bounds {
        Bounds { share_chunks: self.share_chunks, remap_cap_permille: self.remap_cap_permille }
    }

    /// The type that decides what is reclaimed.
    pub fn policy(&self) -> &'static dyn ReclaimPolicy {
        self.policy.policy()
    }

    /// The tunables and objectives that decide what a policy may do.
    pub const fn policy_settings(&self) -> PolicySettings {
        PolicySettings {
            may_move_weights: self.remap_cap_permille > 0,
            has_objectives: self.slo.ttft_ns > 0 && self.slo.tbt_ns > 0,
            pause_bound_ns: self.pause_bound_ns,
            ablations: self.ablations,
        }
    }

    /// [`ReclaimPolicy::placement_rule`] under these tunables.
    pub fn placement_rule(&self) -> PlacementRule {
        self.policy().placement_rule(&self.policy_settings())
    }

    /// [`ReclaimPolicy::longest_pause_ns`] under these tunables.
    pub fn longest_pause_ns(&self) -> Option<u64> {
        self.policy().longest_pause_ns(&self.policy_settings())
    }

    /// The objectives by whose deadlines requests are admitted and paused ([`ReclaimPolicy::service_order`]).
    pub fn deadlines(&self) -> Option<Slo> {
        match self.policy().service_order(&self.policy_settings()) {
            ServiceOrder::Arrival => None,
            ServiceOrder::Deadline => Some(self.slo),
        }
    }

    /// [`ReclaimPolicy::cost_rule`] under these tunables.
    pub fn cost_rule(&self) -> &'static dyn CostRule {
        self.policy().cost_rule(&self.policy_settings())
    }

    /// [`ReclaimPolicy::next_use`] under these tunables.
    pub fn next_use(&self) -> NextUseEstimate {
        self.policy().next_use(&self.policy_settings())
    }
}

impl Default for Params {
    fn default() -> Self {
        Params {
            policy: PolicyName::default(),
            share_chunks: u32::MAX,
            remap_cap_permille: 600,
            forced: None,
            max_model_tokens: 0,
            guaranteed_kv_bytes: 0,
            kv_limit_bytes: u64::MAX,
            host_kv_bytes: 0,
            max_step: crate::geometry::StepShape { tokens: 512, sequences: 64, logit_rows: 64 },
            min_step: crate::geometry::StepShape { tokens: 16, sequences: 1, logit_rows: 1 },
            stall_allowance_permille: 50,
            revert_patience_steps: 64,
            revert_reserve_permille: 125,
            fixed_away_permille: 500,
            offload_reserve_permille: 125,
            expansion: crate::pie::expansion::ExpansionTunables::default(),
            replan: crate::placement_planner::replan::ReplanTunables::default(),
            plan_expansions: crate::placement_planner::search::DEFAULT_EXPANSIONS,
            plan_alike: false,
            plan_first_come: false,
            pause_bound_ns: crate::placement_planner::pause::DEFAULT_BOUND_NS,
            slo: Slo::default(),
            cost_window_steps: 64,
            ablations: Ablations::default(),
            compact_budget_bytes: 8 << 20,
            premap_bytes: crate::ellm::PREMAP_LIMIT_BYTES,
            defers_unmap: true,
            link_by_deadline: true,
            prefix_caching: true,
            link_bytes_per_second: 16 << 30,
            layer_compute_ns: 0,
        }
    }
}
