//! Reasons of decisions, a closed set: each name is a metric label and a log field.

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $label:literal),+ $(,)?) => {
        /// The reason of a decision.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason { $($(#[$doc])* $name),+ }

        impl Reason {
            /// All reasons, in a stable order.
            pub const ALL: &'static [Reason] = &[$(Reason::$name),+];

            /// Returns the label in metrics and logs.
            pub const fn label(self) -> &'static str {
                match self { $(Reason::$name => $label),+ }
            }
        }
    };
}

reasons! {
    /// The tenant loads.
    Load = "load",
    /// Free chunks back KV.
    FreeChunks = "free_chunks",
    /// Unreferenced prefix blocks were evicted.
    PrefixEvicted = "prefix_evicted",
    /// Idle activation chunks became KV (eLLM inflation).
    Inflate = "inflate",
    /// Activation addresses left by an inflation were unmapped while no step waited (eLLM).
    UnmapLater = "unmap_later",
    /// KV chunks became activations again (eLLM deflation).
    Deflate = "deflate",
    /// Own weight layers became KV (Oneiros).
    RemapOwn = "remap_own",
    /// Own weight layers became KV although tokens wait for them: every other option had a higher cost.
    RemapStalls = "remap_stalls",
    /// KV became weight layers again (Oneiros, Dynamic Reversion).
    Revert = "revert",
    /// The configuration forced a layout of moving layers.
    Forced = "forced",
    /// A moving layer streams into its slot.
    Stream = "stream",
    /// Live blocks move so that a chunk becomes empty.
    Compact = "compact",
    /// Remapping, or a placement of KV, was declined: its stall would cost more than it frees.
    DeclinedStall = "declined_stall",
    /// Remapping was declined: no decode step has been measured, so its stall is unknown.
    DeclinedUnmeasured = "declined_unmeasured",
    /// Remapping was declined: the cap is reached.
    DeclinedCap = "declined_cap",
    /// Memory was lent to a peer.
    Lend = "lend",
    /// Memory of a peer was accepted.
    Borrow = "borrow",
    /// Borrowed memory was returned to its lender.
    Repay = "repay",
    /// The share fell: the excess was released to the device.
    ReleaseShare = "release_share",
    /// Lent layers are restored, because the tenant has work.
    Wake = "wake",
    /// The tenant releases all its memory.
    Hibernate = "hibernate",
    /// KV was copied to the host tier.
    SwapOut = "swap_out",
    /// KV was loaded from the host tier.
    SwapIn = "swap_in",
    /// KV of full KV blocks was written to the host tier, so that it can be evicted while its request runs.
    WriteBack = "write_back",
    /// KV of a layer is fetched for one step.
    Fetch = "fetch",
    /// Another placement of KV is in force.
    Place = "place",
    /// A plan for each request's KV was made.
    Plan = "plan",
    /// No plan holds all running requests: as much KV as allowed is offloaded, and requests will be paused.
    NoPlan = "no_plan",
    /// A request was admitted, or resumed, with part of its KV in the host tier, by a plan.
    Join = "join",
    /// A request is paused; its KV is kept.
    Pause = "pause",
    /// KV in the host tier was lost; requests that need it are recomputed.
    SwapLost = "swap_lost",
    /// Free chunks and empty KV KV chunks became activations for whole prompts while weights load, or were returned.
    WholePrompt = "whole_prompt",
    /// All peers together have too little to be useful: no peer was asked.
    PeersShort = "peers_short",
    /// An asked peer denied, or cannot be reached.
    AskRefused = "ask_refused",
    /// A peer's request was denied: this tenant is active.
    RefusedActive = "refused_active",
    /// A peer's request was denied: layers were restored a short time ago.
    RefusedMinResidence = "refused_min_residence",
    /// A peer's request was denied: the cap on remapped layers is reached.
    RefusedAtCap = "refused_at_cap",
    /// A peer's request was denied: this tenant holds no more than its floor.
    RefusedAtFloor = "refused_at_floor",
    /// A peer's request was denied: no memory can be freed.
    RefusedNothing = "refused_nothing",
    /// A peer's request was denied: memory is being changed.
    RefusedBusy = "refused_busy",
    /// A peer's request was denied: the partition is fixed.
    RefusedNotTraded = "refused_not_traded",
    /// A request was preempted and will be recomputed.
    Preempt = "preempt",
    /// The engine was lost; slots are rebuilt and the last step is replayed.
    Rebuild = "rebuild",
    /// A backend failed; its memory is released.
    BackendFailed = "backend_failed",
}

impl Reason {
    /// Whether a peer denied, or was denied: no memory changed.
    pub const fn is_refusal(self) -> bool {
        use Reason::*;
        matches!(
            self,
            AskRefused
                | RefusedActive
                | RefusedMinResidence
                | RefusedAtCap
                | RefusedAtFloor
                | RefusedNothing
                | RefusedBusy
                | RefusedNotTraded
        )
    }

    /// Whether the decision itself changes no memory: nothing moves, or a later action does.
    pub const fn is_thought(self) -> bool {
        use Reason::*;
        matches!(self, DeclinedStall | DeclinedUnmeasured | DeclinedCap | PeersShort | Plan | NoPlan)
    }

    /// Whether memory passes between this tenant and others; preparations for it do not count as moved.
    pub const fn is_trade(self) -> bool {
        matches!(self, Reason::Lend | Reason::Borrow | Reason::Repay | Reason::ReleaseShare)
    }

    /// Whether own layers give memory for a step, or are restored with less than before.
    pub const fn takes_layers(self) -> bool {
        matches!(self, Reason::RemapOwn | Reason::RemapStalls | Reason::Wake)
    }

    /// Whether no request may block it: the memory belongs to another tenant, or no step can run without it.
    pub const fn must_happen(self) -> bool {
        matches!(self, Reason::Repay | Reason::ReleaseShare | Reason::Wake)
    }
}
