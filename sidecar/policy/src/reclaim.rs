//! Named policies as types: what each may reclaim, in which order, and which request it preempts.
//!
//! A step takes free blocks, free chunks, chunks of the share that do not exist yet, unused prefix blocks and loans
//! from peers first, under every policy. [`ReclaimPolicy::next`] decides what comes after them. Each policy is one file
//! that reads like its paper. A policy sees values and moves nothing: the memory manager carries out what it proposes.
//!
//! A new policy is one file in this folder and one line in the table below. The places outside this crate that name
//! policies are in CONTRIBUTING.md ("Add a reclaim policy"). This policy preempts the request with the most KV, and
//! reclaims own weights before:
//!
//! ```
//! use sluice_policy::reclaim::{PreemptionCandidate, ReclaimPolicy, ReclaimStep, ReclaimView};
//!
//! #[derive(Debug)]
//! struct LargestFirst;
//!
//! impl ReclaimPolicy for LargestFirst {
//!     fn reclaims_weights(&self) -> bool {
//!         true
//!     }
//!
//!     fn next(&self, view: &ReclaimView) -> ReclaimStep {
//!         match view.tried {
//!             None if !view.is_layout_forced => ReclaimStep::RemapWeights,
//!             _ => ReclaimStep::ShrinkBatch,
//!         }
//!     }
//!
//!     fn preemption_rank(&self, request: &PreemptionCandidate) -> u64 {
//!         request.kv_blocks.into()
//!     }
//! }
//!
//! let small = PreemptionCandidate { admission: 9, kv_blocks: 3 };
//! let large = PreemptionCandidate { admission: 2, kv_blocks: 40 };
//! assert!(LargestFirst.preemption_rank(&large) > LargestFirst.preemption_rank(&small));
//! assert_eq!(LargestFirst.next(&ReclaimView::default()), ReclaimStep::RemapWeights);
//! ```

use core::fmt::Debug;

use crate::cost::price::{ReclaimKind, ReclaimOption};

mod ellm;
mod flexgen;
mod oneiros;
mod orbitflow;
mod pie;
mod recompute;
#[cfg(test)]
mod tests;
mod unified;

/// The table of policies: its name, which configurations use, and the type that decides.
macro_rules! policies {
    ($($(#[$about:meta])* $name:ident => $policy:path,)+) => {
        /// Named policies. `Policy` of `crds/types` has the same names in manifests, with another order and another
        /// default: this order is the number in journals.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum PolicyName {
            $($(#[$about])* $name,)+
        }

        impl PolicyName {
            /// All policies. The index is the number in journals, so new policies are appended.
            pub const ALL: [PolicyName; [$(PolicyName::$name),+].len()] = [$(PolicyName::$name),+];

            /// As it is written in configurations.
            pub const fn name(self) -> &'static str {
                match self {
                    $(PolicyName::$name => stringify!($name),)+
                }
            }

            /// The type that decides.
            pub fn policy(self) -> &'static dyn ReclaimPolicy {
                match self {
                    $(PolicyName::$name => &$policy,)+
                }
            }
        }
    };
}

policies! {
    /// vLLM: evict prefix blocks, then preempt and recompute requests.
    Recompute => recompute::Recompute,
    /// Oneiros: convert own weight layers to KV before any recomputation.
    #[default]
    Oneiros => oneiros::Oneiros,
    /// eLLM: convert idle activation chunks to KV before any recomputation, and offload the KV of prompts that do not
    /// fit to the host tier during their prefill.
    Ellm => ellm::Ellm,
    /// FlexGen: keep a fixed share of the layers' KV of every request in the host tier from the start.
    FlexGen => flexgen::FlexGen,
    /// Pie: keep the KV of some layers, the same for every request, in the host tier; as many layers as hide and help.
    Pie => pie::Pie,
    /// OrbitFlow: keep the KV of some layers of each request in the host tier, planned per request; pause excess
    /// requests.
    OrbitFlow => orbitflow::OrbitFlow,
    /// All reclaim options: first those without cost, then the one with the lowest cost.
    Unified => unified::Unified,
}

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

/// The tunables and objectives that decide what a policy may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicySettings {
    /// Own layers may move ([`crate::params::Params::remap_cap_permille`] is not 0).
    pub may_move_weights: bool,
    /// There are objectives for the first token and between tokens.
    pub has_objectives: bool,
    /// [`crate::params::Params::reclaim_by_cost`].
    pub reclaim_by_cost: bool,
    /// [`crate::params::Params::next_use_by_arrivals`].
    pub next_use_by_arrivals: bool,
}

/// What a policy sees when a step lacks memory and everything without cost is used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReclaimView {
    /// Layer blocks of KV that the step lacks.
    pub missing_layer_blocks: u32,
    /// The step that was tried last for this shortfall and freed nothing.
    pub tried: Option<ReclaimStep>,
    /// A change of memory failed a moment ago: only what moves no chunk is worth a try.
    pub in_backoff: bool,
    /// The configuration fixes the layout of own layers.
    pub is_layout_forced: bool,
    /// The tunables.
    pub settings: PolicySettings,
}

/// One way to reclaim memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimStep {
    /// Idle activation chunks become KV (eLLM, Algorithm 1).
    InflateKv,
    /// KV of paused requests leaves the device (OrbitFlow).
    EvictPaused,
    /// Own weight layers become KV, as many as hide behind compute (Oneiros 4.3).
    RemapWeights,
    /// Nothing: the scheduler pauses or preempts a request.
    ShrinkBatch,
}

/// A running request that could be preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreemptionCandidate {
    /// Its place in the order of admissions; later admissions have higher numbers.
    pub admission: u64,
    /// KV blocks of 16 tokens that it holds.
    pub kv_blocks: u32,
}

/// Returns the first pause, else the first preemption.
pub fn pause_before_preempting(options: &[ReclaimOption]) -> Option<ReclaimOption> {
    let first = |kind| options.iter().find(|option| option.kind == kind).copied();
    first(ReclaimKind::Pause).or_else(|| first(ReclaimKind::Preempt))
}

/// Decides what one tenant reclaims for its own requests.
pub trait ReclaimPolicy: Debug + Sync {
    /// The next step towards a shortfall. The memory manager asks again while steps free nothing.
    fn next(&self, view: &ReclaimView) -> ReclaimStep;

    /// Own weight layers may become KV, or a peer's memory. Without it the tenant keeps to its share.
    fn reclaims_weights(&self) -> bool {
        false
    }

    /// Idle activation chunks may become KV.
    fn reclaims_activations(&self) -> bool {
        false
    }

    /// Where the KV of running requests resides.
    fn kv_placement(&self, _settings: &PolicySettings) -> KvPlacementMode {
        KvPlacementMode::Device
    }

    /// Excess requests are paused with their KV instead of being recomputed.
    fn pauses(&self, _settings: &PolicySettings) -> bool {
        false
    }

    /// Requests are admitted and paused by token deadlines ([`crate::planner::deadline`]).
    fn serves_by_deadline(&self, _settings: &PolicySettings) -> bool {
        false
    }

    /// Chooses among the options that cost requests tokens, when nothing else is left: which request is paused or
    /// preempted, or that own layers move although tokens wait for them. `None` = none of them. Default: pauses a
    /// request before it preempts one, and moves no layer.
    fn evict(&self, _settings: &PolicySettings, options: &[ReclaimOption]) -> Option<ReclaimOption> {
        pause_before_preempting(options)
    }

    /// Reclaim options with a cost are compared by it ([`crate::cost::price`]), not tried in a fixed order. Then layers
    /// may move although they stall, and KV of paused requests leaves the device for a debt too.
    fn compares_costs(&self, _settings: &PolicySettings) -> bool {
        false
    }

    /// A tenant that wakes weighs the stall of moving layers against the KV that they displace.
    fn restores_by_cost(&self) -> bool {
        false
    }

    /// Predicted arrivals order the peers to ask ([`crate::peers::next_use`]).
    fn predicts_next_use(&self, _settings: &PolicySettings) -> bool {
        false
    }

    /// Ranks a running request among those of the same priority: the highest rank is preempted first. Default: the
    /// latest admission, as vLLM does.
    fn preemption_rank(&self, request: &PreemptionCandidate) -> u64 {
        request.admission
    }
}
