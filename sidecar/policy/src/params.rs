//! Tunables of the policy, each documented with its unit, default and source.

/// Named policies that exist so far (DESIGN 6). Each is the same remedies with some switched off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyName {
    /// vLLM: prefix blocks are given up, then requests are preempted and recomputed.
    Recompute,
    /// Oneiros: own weight layers become KV before anything is recomputed.
    #[default]
    Oneiros,
    /// eLLM: idle activation chunks become KV before anything is recomputed.
    Ellm,
}

impl PolicyName {
    /// All of them. The place of one is its number in journals: new ones come last.
    pub const ALL: [PolicyName; 3] = [PolicyName::Recompute, PolicyName::Oneiros, PolicyName::Ellm];

    /// As it is written in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            PolicyName::Recompute => "Recompute",
            PolicyName::Oneiros => "Oneiros",
            PolicyName::Ellm => "Ellm",
        }
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
    /// Bytes of live blocks that compaction may move at one step boundary. Default 8 MiB.
    pub compact_budget_bytes: u64,
    /// Automatic prefix caching. Default on.
    pub prefix_caching: bool,
    /// Estimate of the host-to-device bandwidth until fills have been measured, bytes per second.
    pub link_bytes_per_second: u64,
    /// Estimate of one layer's compute time until steps have been measured, nanoseconds. 0 = unknown: no remapping of
    /// active layers before the first step.
    pub layer_compute_ns: u64,
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
            compact_budget_bytes: 8 << 20,
            prefix_caching: true,
            link_bytes_per_second: 16 << 30,
            layer_compute_ns: 0,
        }
    }
}
