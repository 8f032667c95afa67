//! Why a decision was taken. A closed set: each name is a metric label and a log field.

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $label:literal),+ $(,)?) => {
        /// Why a decision was taken.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason { $($(#[$doc])* $name),+ }

        impl Reason {
            /// Every reason, in a stable order.
            pub const ALL: &'static [Reason] = &[$(Reason::$name),+];

            /// The label in metrics and logs.
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
    /// Unreferenced prefix blocks were given up.
    PrefixEvicted = "prefix_evicted",
    /// Idle activation chunks became KV (eLLM inflation).
    Inflate = "inflate",
    /// Activation addresses that an inflation left behind were unmapped while nobody waited (eLLM).
    UnmapLater = "unmap_later",
    /// KV chunks became activations again (eLLM deflation).
    Deflate = "deflate",
    /// Own weight layers became KV (Oneiros).
    RemapOwn = "remap_own",
    /// Own weight layers became KV although tokens wait for them: everything else would have lost more.
    RemapStalls = "remap_stalls",
    /// KV became weight layers again (Oneiros, Dynamic Reversion).
    Revert = "revert",
    /// The layout of moving layers changed by order of the configuration.
    Forced = "forced",
    /// A moving layer streams into its slot.
    Stream = "stream",
    /// Live blocks move so that a chunk becomes empty.
    Compact = "compact",
    /// Remapping was declined, or a placement of KV: its stall would cost more than it frees.
    DeclinedStall = "declined_stall",
    /// Remapping was declined: no decode step has been measured, so its stall is unknown.
    DeclinedUnmeasured = "declined_unmeasured",
    /// Remapping was declined: the cap is reached.
    DeclinedCap = "declined_cap",
    /// Memory was lent to a neighbour.
    Lend = "lend",
    /// Memory of a neighbour was accepted.
    Borrow = "borrow",
    /// Borrowed memory went back to its lender.
    Repay = "repay",
    /// The share fell: what is too much goes back to the device.
    Cede = "cede",
    /// Layers that were lent come back, because the tenant has work.
    Wake = "wake",
    /// The tenant gives up all its memory.
    Hibernate = "hibernate",
    /// KV goes to the host tier.
    SwapOut = "swap_out",
    /// KV comes back from the host tier.
    SwapIn = "swap_in",
    /// KV of full columns is written to the host tier, so that it can leave the device while its request runs.
    WriteBack = "write_back",
    /// KV of a layer is fetched for one step.
    Fetch = "fetch",
    /// Another placement of KV is in force.
    Place = "place",
    /// A plan for each request's KV was made.
    Plan = "plan",
    /// No plan holds all that run: as much as may be is away, and somebody will be paused.
    NoPlan = "no_plan",
    /// A request came, or went on, with part of its KV in the host tier, as a plan says.
    Join = "join",
    /// A request is paused; its KV is kept.
    Pause = "pause",
    /// KV in the host tier was lost; requests that need it are recomputed.
    SwapLost = "swap_lost",
    /// Free chunks and empty frames of KV are activations for whole prompts behind weights that arrive, or go back.
    WholePrompt = "whole_prompt",
    /// All neighbours together have too little to serve: none of them was asked.
    NeighboursShort = "neighbours_short",
    /// A neighbour that was asked lends nothing, or cannot be reached.
    AskRefused = "ask_refused",
    /// A neighbour asked and got nothing: this tenant is active.
    RefusedActive = "refused_active",
    /// A neighbour asked and got nothing: layers came back a moment ago.
    RefusedMinResidence = "refused_min_residence",
    /// A neighbour asked and got nothing: no more layers may be away.
    RefusedAtCap = "refused_at_cap",
    /// A neighbour asked and got nothing: no more than the floor is here.
    RefusedAtFloor = "refused_at_floor",
    /// A neighbour asked and got nothing: nothing could go.
    RefusedNothing = "refused_nothing",
    /// A neighbour asked and got nothing: memory is being changed.
    RefusedBusy = "refused_busy",
    /// A neighbour asked and got nothing: the partition is fixed.
    RefusedNotTraded = "refused_not_traded",
    /// A request was preempted and will be recomputed.
    Preempt = "preempt",
    /// The engine was lost; slots are rebuilt and the last step is replayed.
    Rebuild = "rebuild",
    /// A backend failed; what it held is given back.
    BackendFailed = "backend_failed",
}

impl Reason {
    /// A neighbour said no, or was told no: no memory changed.
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

    /// What was decided is that nothing moves, or what will: no memory changed by it.
    pub const fn is_thought(self) -> bool {
        use Reason::*;
        matches!(self, DeclinedStall | DeclinedUnmeasured | DeclinedCap | NeighboursShort | Plan | NoPlan)
    }

    /// Memory passes between this tenant and others: what makes room for it before is not counted as moved.
    pub const fn is_trade(self) -> bool {
        matches!(self, Reason::Lend | Reason::Borrow | Reason::Repay | Reason::Cede)
    }

    /// Own layers give their memory for a step, or come back with less than they had.
    pub const fn takes_layers(self) -> bool {
        matches!(self, Reason::RemapOwn | Reason::RemapStalls | Reason::Wake)
    }

    /// No request may stand in its way: memory that is somebody else's, or without which no step can run.
    pub const fn must_happen(self) -> bool {
        matches!(self, Reason::Repay | Reason::Cede | Reason::Wake)
    }
}
