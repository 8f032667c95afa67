//! Named policies as types: what each may reclaim, in which order, and which request it preempts.
//!
//! A step takes free blocks, free chunks, chunks of the share that do not exist yet, unused prefix blocks and loans
//! from peers first, under every policy. [`ReclaimPolicy::steps`] names what comes after them. Each policy is one file
//! that reads like its paper. A policy sees values and moves nothing: the memory manager carries out what it names, and
//! skips what cannot be done now.
//!
//! A new policy is one file in this folder, its `mod` line, and one line in the table below. The places outside this
//! crate that name policies are in CONTRIBUTING.md ("Add a reclaim policy"). This policy preempts the request with the
//! most KV, and reclaims own weights before:
//!
//! ```
//! use sluice_policy::reclaim::{PreemptionCandidate, ReclaimPolicy, ReclaimStep};
//!
//! #[derive(Debug)]
//! struct LargestFirst;
//!
//! impl ReclaimPolicy for LargestFirst {
//!     fn steps(&self) -> &'static [ReclaimStep] {
//!         &[ReclaimStep::RemapWeights]
//!     }
//!
//!     fn movable_layers(&self, cap: u16) -> Option<u16> {
//!         Some(cap)
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
//! ```

mod cost_rule;
mod ellm;
mod flexgen;
mod interface;
mod oneiros;
mod orbitflow;
mod pie;
mod recompute;
#[cfg(test)]
mod tests;
mod unified;

pub(crate) use cost_rule::MAX_STALL_PERMILLE;

pub use cost_rule::CostRule;
pub use interface::{
    Ablations, PlacementRule, PolicySettings, PreemptionCandidate, ReclaimPolicy, ReclaimStep, ServiceOrder,
};

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
