//! [`SoakStats`].

/// Statistics of one or several passed seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoakStats {
    /// Number of seeds.
    pub seeds: u64,
    /// Requests that ended with all their tokens.
    pub answered: u64,
    /// Requests that ended early: cancelled, or their tenant exited.
    pub cut_short: u64,
    /// Requests that failed because a backend kept failing.
    pub failed: u64,
    /// Faults injected.
    pub faults: u64,
    /// Loans observed.
    pub loans: u64,
    /// Number of times that a layer was lent or remapped.
    pub remapped_layers: u64,
    /// Inflations: activation chunks became KV.
    pub inflations: u64,
    /// Number of preemptions.
    pub preemptions: u64,
    /// Shares that fell below the held memory.
    pub share_reductions: u64,
    /// Requests paused with their KV kept.
    pub pauses: u64,
    /// Plans made.
    pub plans: u64,
    /// Requests that a plan admitted with part of their KV offloaded.
    pub joins: u64,
    /// Layers of KV fetched for a step.
    pub fetches: u64,
    /// Write-backs of KV to the host tier, including those during a prefill.
    pub write_backs: u64,
    /// Journal events replayed.
    pub replayed: u64,
    /// Digest of the commands and notices of all recorded journals: equal if every decision is the same.
    pub decisions: u64,
}

impl SoakStats {
    /// Returns the sum of both.
    #[must_use]
    pub fn plus(self, other: SoakStats) -> SoakStats {
        SoakStats {
            seeds: self.seeds + other.seeds,
            answered: self.answered + other.answered,
            cut_short: self.cut_short + other.cut_short,
            failed: self.failed + other.failed,
            faults: self.faults + other.faults,
            loans: self.loans + other.loans,
            remapped_layers: self.remapped_layers + other.remapped_layers,
            inflations: self.inflations + other.inflations,
            preemptions: self.preemptions + other.preemptions,
            share_reductions: self.share_reductions + other.share_reductions,
            pauses: self.pauses + other.pauses,
            plans: self.plans + other.plans,
            joins: self.joins + other.joins,
            fetches: self.fetches + other.fetches,
            write_backs: self.write_backs + other.write_backs,
            replayed: self.replayed + other.replayed,
            decisions: self.decisions.wrapping_add(other.decisions),
        }
    }
}
