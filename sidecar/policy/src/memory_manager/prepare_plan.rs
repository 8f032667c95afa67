//! Decides how a step gets its memory. Planning changes nothing, counts nothing and remembers nothing:
//! [`MemoryManager::plan_memory`] names one [`MemoryStep`] at a time, and `prepare` carries it out.
//!
//! The order: free blocks, free chunks, chunks of the share that do not exist yet, unused prefix blocks, loans; then
//! what the named policy proposes ([`crate::reclaim`]). All or nothing: a transition that does not cover what is
//! missing is not planned.

use alloc::vec::Vec;

use super::{MemoryManager, Prepared, StepNeed};
use crate::ellm::{Balloon, balloon};
use crate::kv::admissions::AdmissionEffects;
use crate::loans::loan_sizes;
use crate::reason::Reason;
use crate::reclaim::ReclaimStep;
use crate::transition::step::TransitionStart;
use crate::transition::{RemapKind, Transition, TransitionTarget};

/// The need of a step in layer blocks and chunks.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepDemand {
    /// Layer blocks that the step adds, and those that are loaded for it.
    pub layer_blocks: u32,
    /// Of these, layer blocks that are loaded from the host tier.
    pub to_load: u32,
    /// Layer blocks of unused prefix blocks, which may be evicted for the step.
    pub evictable: u32,
    /// Activation chunks.
    pub activation: u32,
}

/// One attempt to get the memory of a step.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub demand: StepDemand,
    /// What the admissions of the step will change.
    pub effects: AdmissionEffects,
    /// What has been tried for this demand.
    pub tried: Tried,
}

/// What an attempt has tried without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tried {
    Nothing,
    /// Peers were asked, or cannot be asked. After that `steps` of the policy's steps were tried. `missing` layer
    /// blocks are missing.
    Peers {
        missing: u32,
        steps: usize,
    },
}

/// The next step towards the memory of an engine step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MemoryStep {
    /// Nothing can be done: this is the answer.
    Answer(Prepared),
    /// The device has enough: evicts unused prefix blocks as far as necessary, loads KV from the host tier, or
    /// allocates the blocks.
    Allocate,
    /// Gives up the transition under way, whose chunks take no blocks.
    AbortTransition,
    /// Moves staged KV together, so that buffers lose the blocks of empty staging slots.
    CompactStaging,
    /// Begins a transition that fits, and the step waits for it.
    Start(TransitionStart),
    /// Creates this many chunks of the share again.
    Recreate(u32),
    /// Asks peers for loans of these sizes ([`crate::loans::loan_sizes`]), none if they cannot be asked.
    AskPeers { sizes: Vec<u32>, missing: u32 },
    /// Does what the policy names. If it frees nothing, the policy's next step follows; `tried` counts those up to now.
    Reclaim { missing: u32, tried: usize, action: ReclaimAction },
}

/// How a step of the policy is carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReclaimAction {
    /// Begins a transition that fits.
    Start(TransitionStart),
    /// Evicts KV of paused requests.
    EvictPaused,
    /// Counts that own layers are not remapped, and why; `remember` chunks are not tried again for a while.
    Decline { reason: Reason, remember: Option<u32> },
}

impl MemoryManager {
    /// Plans the next step of an attempt.
    pub(super) fn plan_memory(&self, need: &StepNeed, attempt: &Attempt) -> MemoryStep {
        match attempt.tried {
            Tried::Nothing => self.plan_without_cost(need, attempt),
            Tried::Peers { missing, steps } => self.plan_reclaim(need, attempt.demand, missing, steps),
        }
    }

    /// Plans what costs no request anything.
    fn plan_without_cost(&self, need: &StepNeed, attempt: &Attempt) -> MemoryStep {
        let demand = attempt.demand;
        let (free, held) = (self.kv.chunk_pool().free_layer_blocks(), self.chunks.activation_chunks());
        if demand.activation > self.max_activations() {
            return MemoryStep::Answer(Prepared::Short { missing_kv_blocks: 0, activation: true });
        }
        if self.status().lacks_weights()
            || (self.loans().has_debt() && !self.in_backoff())
            || self.kv.layer_offload().has_pending_spills()
            || self.kv.exceeds_loads()
            || attempt.effects.waits_for_loads()
        {
            return MemoryStep::Answer(Prepared::Wait);
        }
        if demand.activation <= held && demand.layer_blocks <= free {
            return MemoryStep::Allocate;
        }
        if self.transitions.current().is_some() {
            return MemoryStep::AbortTransition;
        }
        if demand.layer_blocks > free && self.kv.layer_offload().slot_counts().1 > 0 {
            let can_compact = self.offload_view().can_compact_staging();
            return if can_compact { MemoryStep::CompactStaging } else { MemoryStep::Answer(Prepared::Wait) };
        }
        let missing = demand.layer_blocks.saturating_sub(free + demand.evictable);
        self.plan_activations(need, demand, missing).unwrap_or_else(|| self.plan_kv(need, demand, missing))
    }

    /// Plans transitions of the activation space, which come before those of KV.
    fn plan_activations(&self, need: &StepNeed, demand: StepDemand, missing: u32) -> Option<MemoryStep> {
        if demand.activation > self.sizes.activation_max {
            let or = Prepared::Short { missing_kv_blocks: 0, activation: true };
            return Some(self.start_or(self.grow_activations(demand), or));
        }
        let short_of_blocks = demand.layer_blocks > self.kv.chunk_pool().free_layer_blocks();
        if let Some(transition) = self.whole_prompts().shrink().filter(|_| short_of_blocks) {
            return Some(self.start_or(Some(transition), self.shortfall(missing)));
        }
        if demand.activation > self.chunks.activation_chunks() {
            let or =
                Prepared::Short { missing_kv_blocks: missing.div_ceil(self.kv.layers()), activation: true };
            return Some(self.start_or(self.balloon(need, demand), or));
        }
        None
    }

    /// Begins this transition if it fits, else answers `or`.
    fn start_or(&self, transition: Option<Transition>, or: Prepared) -> MemoryStep {
        let start = transition.and_then(|transition| self.transition_start(transition));
        start.map_or(MemoryStep::Answer(or), MemoryStep::Start)
    }

    /// The activation space of a whole prompt, while weights load.
    fn grow_activations(&self, demand: StepDemand) -> Option<Transition> {
        let grown = || self.whole_prompts().grow(demand.activation, demand.layer_blocks);
        self.status().weights_loading().then(grown).flatten()
    }

    /// Plans KV from free chunks, the share, the prefix cache and peers, in this order.
    fn plan_kv(&self, need: &StepNeed, demand: StepDemand, missing: u32) -> MemoryStep {
        let (free, per) = (self.kv.chunk_pool().free_layer_blocks(), self.sizes.layer_blocks_per_chunk);
        let gainable = self.free_kv_chunks() * per;
        let lacking = demand.layer_blocks.saturating_sub(free);
        if lacking > 0 && gainable > 0 && missing <= gainable && !self.in_backoff() {
            let target = TransitionTarget::KvChunks(lacking.div_ceil(per).min(self.free_kv_chunks()));
            let transition = Transition { target, reason: Reason::FreeChunks };
            return self.start_or(Some(transition), self.shortfall(missing));
        }
        if let Some(chunks) = self.recreation_for(lacking.saturating_sub(gainable)) {
            return MemoryStep::Recreate(chunks);
        }
        if missing == 0 {
            return MemoryStep::Allocate;
        }
        let sizes = self.loan_sizes(need, demand.to_load, demand.layer_blocks - missing + gainable);
        MemoryStep::AskPeers { sizes, missing }
    }

    /// Chunks of the share to create again for the layer blocks that a step lacks; none if none can be created.
    fn recreation_for(&self, missing_layer_blocks: u32) -> Option<u32> {
        let (per, chunk_bytes) = (self.sizes.layer_blocks_per_chunk, self.geometry.chunk_bytes);
        self.loans
            .recreation_for_step(self.orders.boundaries(), missing_layer_blocks, per, chunk_bytes)
            .filter(|_| !self.in_backoff())
    }

    /// Loan sizes that help a step which has `had` layer blocks, free chunks included, as far as KV may grow. Empty if
    /// peers cannot be asked, refused since the last boundary, or the policy keeps to its share (`Recompute`).
    fn loan_sizes(&self, need: &StepNeed, to_load: u32, had: u32) -> Vec<u32> {
        if !self.loans.may_ask() || !self.sizes.moves_layers() || self.in_backoff() {
            return Vec::new();
        }
        let view = self.need_view(need);
        let added = need.kv_blocks.iter();
        let layer_blocks = added.map(|(request, count)| count * view.kv_block_layer_blocks(*request));
        let room = self.kv_chunk_room() - self.free_kv_chunks();
        loan_sizes(layer_blocks, (to_load, had), self.sizes.layer_blocks_per_chunk, room)
    }

    /// Plans the policy's first step after `tried` ones that can be carried out now.
    fn plan_reclaim(&self, need: &StepNeed, demand: StepDemand, missing: u32, tried: usize) -> MemoryStep {
        let mut steps = self.params.policy().steps().iter().zip(1..).skip(tried);
        let possible = steps.find_map(|(step, tried)| {
            let action = match step {
                ReclaimStep::InflateKv => {
                    let transition = self.balloon(need, demand);
                    transition
                        .and_then(|transition| self.transition_start(transition))
                        .map(ReclaimAction::Start)
                }
                ReclaimStep::EvictPaused => self.may_evict_paused().then_some(ReclaimAction::EvictPaused),
                ReclaimStep::RemapWeights => self.remap_own(missing),
            };
            action.map(|action| MemoryStep::Reclaim { missing, tried, action })
        });
        possible.unwrap_or_else(|| MemoryStep::Answer(self.refusal(missing)))
    }

    /// The answer when the policy reclaims nothing. Unused KV is free once it is written back or loaded; the first
    /// write-back shows how long one takes.
    fn refusal(&self, missing: u32) -> Prepared {
        let is_measured = self.offload.layer_block_ns().is_some();
        // A copy has the last reference to KV without a user: its blocks are free when the copy has ended.
        let (blocks, transfers) = (self.kv.blocks(), self.kv.transfers());
        let written_back =
            if is_measured { blocks.layer_blocks_of_sole_user(transfers.writing()) } else { 0 };
        let coming = written_back + blocks.layer_blocks_of_sole_user(transfers.loading());
        if coming >= missing { Prepared::Wait } else { self.shortfall(missing) }
    }

    pub(super) fn shortfall(&self, missing_layer_blocks: u32) -> Prepared {
        let missing_kv_blocks = missing_layer_blocks.div_ceil(self.kv.layers());
        Prepared::Short { missing_kv_blocks, activation: false }
    }

    /// Activation chunks that a step may have at most.
    fn max_activations(&self) -> u32 {
        if self.status().weights_loading() { self.sizes.activation_wake } else { self.sizes.activation_max }
    }

    /// Free chunks that KV may take.
    pub(super) fn free_kv_chunks(&self) -> u32 {
        self.offload_view().free_kv_chunks()
    }

    /// KV chunks without a chunk.
    pub(super) fn kv_chunk_room(&self) -> u32 {
        self.sizes.kv_limit - self.kv.chunk_pool().backed()
    }

    /// eLLM: chunks pass between activations and KV, by the balloon of Algorithm 1. None if they cannot.
    fn balloon(&self, need: &StepNeed, demand: StepDemand) -> Option<Transition> {
        let kept = self.sizes.activation_kept.filter(|_| !self.in_backoff())?;
        let (per, held) = (self.sizes.layer_blocks_per_chunk, self.chunks.activation_chunks());
        // A deflation takes free chunks first; an inflation counts those that KV may still take.
        let deflates = demand.activation > held;
        let free = if deflates { self.chunks.free_count() } else { self.free_kv_chunks() };
        let unused = self.kv.chunk_pool().free_layer_blocks() + demand.evictable;
        let activation = demand.activation.max(kept);
        match balloon(unused / per + free, held, demand.layer_blocks.div_ceil(per), activation) {
            Balloon::Inflate(chunks) if chunks <= self.kv_chunk_room() => {
                let ahead = self.need_view(need).lookahead_chunks(demand, activation, chunks);
                let target = TransitionTarget::Activation(held - chunks - ahead);
                Some(Transition { target, reason: Reason::Inflate })
            }
            Balloon::Deflate(_) => {
                let target = TransitionTarget::Activation(activation);
                Some(Transition { target, reason: Reason::Deflate })
            }
            Balloon::Inflate(_) | Balloon::Level | Balloon::Short { .. } => None,
        }
    }

    /// OrbitFlow: KV of paused requests may leave the device, if requests are paused at all.
    fn may_evict_paused(&self) -> bool {
        self.offload.longest_pause_ns().is_some() && !self.in_backoff()
    }

    /// Oneiros: remaps as many layers as cover what is missing, if their copies hide.
    fn remap_own(&self, missing: u32) -> Option<ReclaimAction> {
        let chunks = self.chunks_of_layers(missing)?;
        if self.transitions.is_declined(RemapKind::Hidden, self.orders.steps(), chunks) {
            return None;
        }
        if !self.step_stats.compute_known() {
            // Not remembered: the next step may measure it.
            return Some(ReclaimAction::Decline { reason: Reason::DeclinedUnmeasured, remember: None });
        }
        match self.layout_search().freeing(chunks, self.cost().allowance_ns()) {
            Ok(layout) => {
                let target = TransitionTarget::Layout(layout);
                let transition = Transition { target, reason: Reason::RemapOwn };
                self.transition_start(transition).map(ReclaimAction::Start)
            }
            Err(reason) => Some(ReclaimAction::Decline { reason, remember: Some(chunks) }),
        }
    }

    /// Chunks that own layers must give for `missing` layer blocks; none if own layers stay, or KV may not grow by
    /// them, or not now.
    pub(super) fn chunks_of_layers(&self, missing: u32) -> Option<u32> {
        let (per, usable_free) = (self.sizes.layer_blocks_per_chunk, self.free_kv_chunks());
        let chunks = missing.div_ceil(per) - usable_free.min(missing / per);
        let fits = chunks + usable_free <= self.kv_chunk_room();
        let may_move = self.forced.is_none() && fits && !self.in_backoff();
        self.sizes.movable_m.filter(|_| may_move).map(|_| chunks)
    }
}

#[cfg(test)]
mod tests;
