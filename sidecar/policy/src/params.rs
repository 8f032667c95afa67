//! Tunables of the policy, each documented with its unit, default and source.

/// Named policies (DESIGN 6). Each is the same remedies with some switched off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyName {
    /// vLLM: prefix blocks are given up, then requests are preempted and recomputed.
    Recompute,
    /// Oneiros: own weight layers become KV before anything is recomputed.
    #[default]
    Oneiros,
    /// eLLM: idle activation chunks become KV before anything is recomputed, and KV of prompts for which there is no room goes to
    /// the host tier while they are computed.
    Ellm,
    /// FlexGen: a fixed share of the layers' KV lies in the host tier from the start, of every request.
    FlexGen,
    /// Pie: KV of some layers, of every request the same, lies in the host tier; as many layers as hide behind compute and
    /// help.
    Pie,
    /// OrbitFlow: KV of some layers of each request lies in the host tier, planned for each request; who is one too many is
    /// paused.
    OrbitFlow,
    /// All remedies: what costs nothing first, then what loses least.
    Unified,
}

/// Where KV lies while its request runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvPlacementMode {
    /// On the device.
    Device,
    /// On the device, and of prompts that were admitted without room for it in the host tier.
    Prompts,
    /// A fixed share of its layers in the host tier.
    Fixed,
    /// The same layers of every request in the host tier, as many as hide.
    Uniform,
    /// For each request its own layers in the host tier, as a plan says.
    PerRequest,
}

impl PolicyName {
    /// All of them. The place of one is its number in journals: new ones come last.
    pub const ALL: [PolicyName; 7] = [
        PolicyName::Recompute,
        PolicyName::Oneiros,
        PolicyName::Ellm,
        PolicyName::FlexGen,
        PolicyName::Pie,
        PolicyName::OrbitFlow,
        PolicyName::Unified,
    ];

    /// As it is written in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            PolicyName::Recompute => "Recompute",
            PolicyName::Oneiros => "Oneiros",
            PolicyName::Ellm => "Ellm",
            PolicyName::FlexGen => "FlexGen",
            PolicyName::Pie => "Pie",
            PolicyName::OrbitFlow => "OrbitFlow",
            PolicyName::Unified => "Unified",
        }
    }

    /// Own weight layers become KV, and neighbours' (Oneiros).
    pub const fn remaps(self) -> bool {
        matches!(self, PolicyName::Oneiros | PolicyName::Unified)
    }

    /// Idle activation chunks become KV (eLLM).
    pub const fn inflates(self) -> bool {
        matches!(self, PolicyName::Ellm | PolicyName::Unified)
    }

    /// Where KV of running requests lies.
    pub const fn placing(self) -> KvPlacementMode {
        match self {
            PolicyName::Recompute | PolicyName::Oneiros => KvPlacementMode::Device,
            PolicyName::Ellm => KvPlacementMode::Prompts,
            PolicyName::FlexGen => KvPlacementMode::Fixed,
            PolicyName::Pie => KvPlacementMode::Uniform,
            PolicyName::OrbitFlow | PolicyName::Unified => KvPlacementMode::PerRequest,
        }
    }

    /// Prompts for which there is no room are computed all the same, and their KV goes to the host tier (eLLM 4.4.2).
    pub const fn offloads_prompts(self) -> bool {
        matches!(self.placing(), KvPlacementMode::Prompts)
    }

    /// Of remedies that cost something the one with the least predicted loss per byte is taken; the others keep their paper's
    /// order.
    pub const fn weighs(self) -> bool {
        matches!(self, PolicyName::Unified)
    }

    /// Requests that are one too many keep their KV and wait (OrbitFlow), instead of being computed again.
    pub const fn pauses(self) -> bool {
        matches!(self, PolicyName::OrbitFlow | PolicyName::Unified)
    }
}

/// A fixed layout of moving layers, for tests and experiments: overrides the remapping controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForcedRemap {
    /// Layers whose memory is given to KV.
    pub alpha: u16,
    /// Slots, 1 or 2.
    pub beta: u8,
}

/// Objectives of a tenant. Default none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slo {
    /// Until the first token, nanoseconds; 0 = none.
    pub ttft_ns: u64,
    /// Between two tokens, nanoseconds; 0 = none.
    pub tbt_ns: u64,
    /// Share of the tokens that may come later than that, permille.
    pub allowed_miss_permille: u32,
}

/// What whoever places tenants on a GPU lets one have: what may change while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// [`Params::share_chunks`].
    pub share_chunks: u32,
    /// [`Params::remap_cap_permille`].
    pub remap_cap_permille: u32,
}

/// Tunables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    /// Which remedies are used and in which order.
    pub policy: PolicyName,
    /// Chunks that the tenant may hold without asking a neighbour, at most the GPU's. Default: all.
    pub share_chunks: u32,
    /// Share of the layers that may be remapped, permille (`maxRemappedPercent` x 10). Never a whole model: m <= n - 1.
    pub remap_cap_permille: u32,
    /// Fixed layout instead of the controller's choice.
    pub forced: Option<ForcedRemap>,
    /// Longest request, prompt and answer together, tokens. Its KV must fit `guaranteed_kv_bytes`.
    pub max_model_tokens: u32,
    /// KV that the tenant can always hold, bytes.
    pub guaranteed_kv_bytes: u64,
    /// KV that the tenant may hold at most, bytes.
    pub kv_limit_bytes: u64,
    /// Host memory for KV that leaves the device, bytes. Default none: a tenant that hibernates computes its KV again.
    pub host_kv_bytes: u64,
    /// Largest step: activation space is sized for it.
    pub max_step: crate::geometry::StepShape,
    /// Smallest step: activation space that is never lent (eLLM).
    pub min_step: crate::geometry::StepShape,
    /// Stall that a remapped token may add, permille of its compute time. Oneiros asks for none; a small allowance
    /// absorbs measurement noise. Default 50.
    pub stall_allowance_permille: u32,
    /// Consecutive boundaries with enough spare KV before a layer is given back (hysteresis). Default 64.
    pub revert_patience_steps: u32,
    /// Spare KV, beyond the layer's own chunks, that must stay free after a reversion, permille of KV in use. Default 125.
    pub revert_reserve_permille: u32,
    /// `FlexGen`: share of the layers whose KV lies in the host tier, permille. Default 500: FlexGen's profiles for models
    /// that leave little room put about half of the cache there.
    pub fixed_away_permille: u32,
    /// KV blocks that are to stay free, beyond what the running requests need next, permille of all: below it KV begins to
    /// leave the device. Default 125: writing back takes some steps, which is the time that they last for.
    pub offload_reserve_permille: u32,
    /// How many layers may be away (`Pie`).
    pub expansion: crate::pie::expansion::ExpansionTunables,
    /// How long a plan holds (`OrbitFlow`, `Unified`).
    pub replan: crate::planner::replan::ReplanTunables,
    /// Node expansions of one plan.
    pub plan_expansions: u32,
    /// Plans place the same layers of all requests: the batch-uniform rung of OrbitFlow's ablation. Default no.
    pub plan_alike: bool,
    /// Plans let in whoever comes first wherever all fit, as OrbitFlow is published; who makes others late is paused afterwards.
    /// Default no: nobody is let in to be late, or to make others so (DESIGN 6, first objective).
    pub plan_first_come: bool,
    /// All pauses of one request together take at most this, nanoseconds; 0 = nobody is paused. By deadline from when its
    /// client has read all, and by as much whoever is too late for its first token goes behind others, once. Default 10 s
    /// ([`crate::planner::pause::DEFAULT_BOUND_NS`]).
    pub pause_bound_ns: u64,
    /// What a good answer is: by it losses are predicted, and eLLM's buffer is sized.
    pub slo: Slo,
    /// Steps over which the predicted losses of remedies are compared. Default 64, as long as reversion waits: what was taken
    /// does not come back sooner.
    pub cost_window_steps: u32,
    /// `Unified` takes of the remedies that cost something the one that loses least for each byte; else own layers as far as they
    /// hide, then pauses, then preemptions. Default on.
    pub reclaim_by_cost: bool,
    /// `Unified` asks of inactive neighbours the one first whose next use its arrivals put furthest away
    /// ([`crate::peers::next_use`]); else who was used last. Default on.
    pub next_use_by_arrivals: bool,
    /// Bytes of live blocks that compaction may move at one step boundary. Default 8 MiB.
    pub compact_budget_bytes: u64,
    /// eLLM: what an inflation takes for everybody's next token, beyond what it lacks, stays below this; 0 = nothing. Default
    /// 50,000,000, the paper's ([`crate::ellm::PREMAP_LIMIT_BYTES`]).
    pub premap_bytes: u64,
    /// eLLM: an inflation only maps; old mappings go with a later transaction, or when nobody waits. Default on.
    pub defers_unmap: bool,
    /// Copies go over the link by when they are needed ([`crate::copy_priority`]); else in the order in which they come to it.
    /// Default on.
    pub link_by_deadline: bool,
    /// Automatic prefix caching. Default on.
    pub prefix_caching: bool,
    /// Estimate of the host-to-device bandwidth until fills have been measured, bytes per second.
    pub link_bytes_per_second: u64,
    /// Estimate of one layer's compute time until steps have been measured, nanoseconds. 0 = unknown: no remapping of
    /// active layers before the first step.
    pub layer_compute_ns: u64,
}

impl Params {
    /// Where KV of running requests lies. A byte that an own layer frees costs the link a byte in each step, as one that KV frees
    /// does; but KV has to be written back, and placed anew with each batch. So who weighs and may move both moves layers, and
    /// where those take too long, KV would too.
    pub const fn placing(&self) -> KvPlacementMode {
        if self.moves_layers_instead() { KvPlacementMode::Device } else { self.policy.placing() }
    }

    /// Requests that are one too many keep their KV and wait, instead of being computed again. Where layers move only by
    /// deadline: pauses by a plan keep others waiting for whoever comes next in line.
    pub const fn pauses(&self) -> bool {
        self.policy.pauses() && (!self.moves_layers_instead() || self.serves_by_deadline())
    }

    /// Requests come and go by when their next tokens are due ([`crate::planner::deadline`]): who weighs, and has objectives for the
    /// first token and for the others. Plans then say where KV lies, and neither who comes nor who is paused.
    pub const fn serves_by_deadline(&self) -> bool {
        self.policy.weighs() && self.slo.ttft_ns > 0 && self.slo.tbt_ns > 0
    }

    /// Remedies that cost something are compared by what they lose ([`crate::cost::price`]).
    pub const fn compares_losses(&self) -> bool {
        self.policy.weighs() && self.reclaim_by_cost
    }

    /// Whom to ask for memory is told by what arrivals let expect ([`crate::peers::victim::Borrower::expects`]).
    pub const fn expects_next_use(&self) -> bool {
        self.policy.weighs() && self.next_use_by_arrivals
    }

    const fn moves_layers_instead(&self) -> bool {
        self.policy.weighs() && self.remap_cap_permille > 0
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
            replan: crate::planner::replan::ReplanTunables::default(),
            plan_expansions: crate::planner::search::DEFAULT_EXPANSIONS,
            plan_alike: false,
            plan_first_come: false,
            pause_bound_ns: crate::planner::pause::DEFAULT_BOUND_NS,
            slo: Slo::default(),
            cost_window_steps: 64,
            reclaim_by_cost: true,
            next_use_by_arrivals: true,
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
