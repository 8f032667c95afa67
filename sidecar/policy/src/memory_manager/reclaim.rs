//! Finds the memory of a step, in this order: free blocks, free chunks, chunks of the share that do not exist yet,
//! unused prefix blocks, loans; then what the named policy proposes ([`crate::reclaim`]). All or nothing: no step is
//! taken that does not cover what is missing.

use alloc::vec::Vec;

use super::transition::TransitionProgress;
use super::{MemoryManager, Prepared, StepNeed};
use crate::action::Action;
use crate::change::{RemapKind, Transition, TransitionTarget};
use crate::ellm::{Balloon, balloon};
use crate::reason::Reason;
use crate::reclaim::{ReclaimStep, ReclaimView};
use crate::remap::Choice;
use crate::step_model::Layout;

/// The need of a step in layer blocks and chunks.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepDemand {
    pub layer_blocks: u32,
    pub activation: u32,
}

impl MemoryManager {
    pub(super) fn prepare_step(&mut self, need: &StepNeed, out: &mut Vec<Action>) -> Prepared {
        let demand = StepDemand {
            layer_blocks: self.layer_blocks_of(need),
            activation: self.geometry.chunks_for(self.geometry.activation.bytes(need.shape)),
        };
        let most =
            if self.weights_loading() { self.sizes.activation_wake } else { self.sizes.activation_max };
        if demand.activation > most {
            return Prepared::Short { missing_kv_blocks: 0, activation: true };
        }
        if self.lacks_weights()
            || (self.has_debt() && !self.in_backoff())
            || self.kv.has_pending_spills()
            || self.kv.exceeds_loads()
        {
            return Prepared::Wait;
        }
        let held = self.activation_chunks();
        if demand.activation <= held && demand.layer_blocks <= self.kv.chunk_pool().free_layer_blocks() {
            return self.allocate(need, out);
        }
        if self.change.transition().is_some() {
            self.abort_transition();
        }
        if demand.layer_blocks > self.kv.chunk_pool().free_layer_blocks() && self.kv.slot_counts().1 > 0 {
            return if self.compact_staging() { self.prepare_step(need, out) } else { Prepared::Wait };
        }
        self.reclaim(need, demand, out)
    }

    /// Layer blocks that the step adds, and those that are loaded for it.
    pub(super) fn layer_blocks_of(&mut self, need: &StepNeed) -> u32 {
        let added =
            need.kv_blocks.iter().map(|(request, count)| count * self.kv.kv_block_layer_blocks(*request));
        added.sum::<u32>() + self.kv.missing_layer_block_count()
    }

    fn reclaim(&mut self, need: &StepNeed, demand: StepDemand, out: &mut Vec<Action>) -> Prepared {
        let free = self.kv.chunk_pool().free_layer_blocks();
        let gainable = self.free_kv_chunks() * self.sizes.layer_blocks_per_chunk;
        let missing = demand.layer_blocks.saturating_sub(free + self.kv.evictable_layer_blocks());
        if demand.activation > self.sizes.activation_max {
            return self.grow_activations(demand, out);
        }
        if let Some(Transition { target, reason }) =
            self.shrink_activations().filter(|_| demand.layer_blocks > free)
        {
            return self.start_transition(target, reason, missing, out);
        }
        if demand.activation > self.activation_chunks() {
            return self.balloon(demand, missing, out);
        }
        if demand.layer_blocks > free && gainable > 0 && missing <= gainable && !self.in_backoff() {
            let chunks = (demand.layer_blocks - free)
                .div_ceil(self.sizes.layer_blocks_per_chunk)
                .min(self.free_kv_chunks());
            return self.start_transition(
                TransitionTarget::KvChunks(chunks),
                Reason::FreeChunks,
                missing,
                out,
            );
        }
        let lacking = demand.layer_blocks.saturating_sub(free + gainable);
        if self.recreate_for(lacking, out) {
            return Prepared::Wait;
        }
        if missing == 0 {
            self.evict_until(demand.layer_blocks);
            return self.allocate(need, out);
        }
        if let Some(asked) = self.request_loan(need, demand.layer_blocks - missing + gainable) {
            return asked;
        }
        match self.reclaim_by_policy(need, demand, missing, out) {
            // Unused KV is free once it is written back; the first write-back shows how long that takes.
            Prepared::Short { activation: false, .. }
                if self.kv.layer_blocks_freed_by_write_back() >= missing
                    && self.layer_block_out_ns().is_some() =>
            {
                Prepared::Wait
            }
            answer => answer,
        }
    }

    /// Takes the steps that the named policy proposes until one is under way.
    fn reclaim_by_policy(
        &mut self,
        need: &StepNeed,
        demand: StepDemand,
        missing: u32,
        out: &mut Vec<Action>,
    ) -> Prepared {
        let mut tried = None;
        loop {
            let step = self.params.policy().next(&self.reclaim_view(missing, tried));
            let answer = match step {
                ReclaimStep::InflateKv => self.balloon(demand, missing, out),
                ReclaimStep::RemapWeights => self.remap_own(missing, out),
                ReclaimStep::EvictPaused => match self.evict_paused(need, missing, out) {
                    Some(answer) => return answer,
                    None => self.shortfall(missing),
                },
                ReclaimStep::ShrinkBatch => return self.shortfall(missing),
            };
            if answer == Prepared::Wait {
                return answer;
            }
            tried = Some(step);
        }
    }

    fn reclaim_view(&self, missing_layer_blocks: u32, tried: Option<ReclaimStep>) -> ReclaimView {
        ReclaimView {
            missing_layer_blocks,
            tried,
            in_backoff: self.in_backoff(),
            is_layout_forced: self.forced.is_some(),
            settings: self.params.policy_settings(),
        }
    }

    /// There are enough free blocks: loads KV from the host tier first.
    fn allocate(&mut self, need: &StepNeed, out: &mut Vec<Action>) -> Prepared {
        if self.kv.missing_layer_block_count() > 0 {
            return self.swap_in_missing(out);
        }
        let out = need.kv_blocks.iter().filter(|(request, _)| self.kv.is_spilling_prefill(*request));
        if !self.reserve_host_places(out.map(|(_, count)| *count).sum()) {
            // A host block that a fetch may still read is free when the fetch has ended.
            return if self.kv.fetches() > 0 { Prepared::Wait } else { self.shortfall(self.kv.layers()) };
        }
        self.kv.allocate(&need.kv_blocks, &mut self.generations);
        Prepared::Ready
    }

    /// Chunks that own layers would give at most, by the cost model.
    pub(super) fn own_chunks(&self) -> u32 {
        let remaps = self.params.policy().reclaims_weights() && self.forced.is_none();
        if !remaps || self.in_backoff() || !self.step_stats.compute_known() {
            return 0;
        }
        let current = self.weights.layout();
        let most = self.choose(current, u16::MAX, self.cost().allowance_ns()).layout;
        self.sizes.weights(current).saturating_sub(self.sizes.weights(&most))
    }

    /// Free chunks that KV may take.
    pub(super) fn free_kv_chunks(&self) -> u32 {
        self.chunks.free_count().min(self.sizes.kv_limit - self.kv.chunk_pool().backed())
    }

    fn evict_until(&mut self, layer_blocks: u32) {
        while self.kv.chunk_pool().free_layer_blocks() < layer_blocks && self.kv.evict() {
            self.count(Reason::PrefixEvicted);
        }
    }

    fn shortfall(&self, missing_layer_blocks: u32) -> Prepared {
        Prepared::Short {
            missing_kv_blocks: missing_layer_blocks.div_ceil(self.kv.layers()),
            activation: false,
        }
    }

    /// Decides a change and orders its first action.
    pub(super) fn start_transition(
        &mut self,
        target: TransitionTarget,
        reason: Reason,
        missing: u32,
        out: &mut Vec<Action>,
    ) -> Prepared {
        self.change.decide(Some(Transition { target, reason }));
        match self.advance_transition(out) {
            TransitionProgress::Ordered => Prepared::Wait,
            TransitionProgress::Aborted => self.shortfall(missing),
        }
    }

    /// eLLM: chunks pass between activations and KV, by the balloon of Algorithm 1.
    fn balloon(&mut self, demand: StepDemand, missing: u32, out: &mut Vec<Action>) -> Prepared {
        let per = self.sizes.layer_blocks_per_chunk;
        let held = self.activation_chunks();
        let short_activation = demand.activation > held;
        let short = Prepared::Short {
            missing_kv_blocks: missing.div_ceil(self.kv.layers()),
            activation: short_activation,
        };
        if !self.params.policy().reclaims_activations() || self.in_backoff() {
            return short;
        }
        // A deflation takes free chunks first; an inflation counts those that KV may still take.
        let free = if short_activation { self.chunks.free_count() } else { self.free_kv_chunks() };
        let free_kv =
            (self.kv.chunk_pool().free_layer_blocks() + self.kv.evictable_layer_blocks()) / per + free;
        let activation = demand.activation.max(self.sizes.activation_min);
        match balloon(free_kv, held, demand.layer_blocks.div_ceil(per), activation) {
            Balloon::Inflate(chunks) => {
                let room = self.sizes.kv_limit - self.kv.chunk_pool().backed();
                if chunks > room {
                    return short;
                }
                let ahead = self.lookahead_chunks(demand, activation, chunks);
                self.start_transition(
                    TransitionTarget::Activation(held - chunks - ahead),
                    Reason::Inflate,
                    missing,
                    out,
                )
            }
            Balloon::Deflate(_) => {
                match self.start_transition(
                    TransitionTarget::Activation(activation),
                    Reason::Deflate,
                    missing,
                    out,
                ) {
                    Prepared::Short { .. } => short,
                    other => other,
                }
            }
            Balloon::Level | Balloon::Short { .. } => short,
        }
    }

    /// Oneiros: remaps as many layers as cover what is missing, if their copies hide.
    fn remap_own(&mut self, missing: u32, out: &mut Vec<Action>) -> Prepared {
        let declined =
            |chunks: &u32| self.change.is_declined(RemapKind::Hidden, self.counters.steps(), *chunks);
        let Some(chunks) = self.chunks_of_layers(missing).filter(|chunks| !declined(chunks)) else {
            return self.shortfall(missing);
        };
        if !self.step_stats.compute_known() {
            // Not cached: the next step may measure it.
            self.count(Reason::DeclinedUnmeasured);
            return self.shortfall(missing);
        }
        match self.layout_for(chunks, self.cost().allowance_ns()) {
            Ok(layout) => {
                self.start_transition(TransitionTarget::Layout(layout), Reason::RemapOwn, missing, out)
            }
            Err(reason) => self.decline(reason, chunks, missing),
        }
    }

    /// Chunks that own layers must give for `missing` layer blocks; none if KV may not grow by them, or not now.
    pub(super) fn chunks_of_layers(&self, missing: u32) -> Option<u32> {
        let (per, usable_free) = (self.sizes.layer_blocks_per_chunk, self.free_kv_chunks());
        let chunks = missing.div_ceil(per) - usable_free.min(missing / per);
        let room = self.sizes.kv_limit - self.kv.chunk_pool().backed();
        (!self.in_backoff() && chunks + usable_free <= room).then_some(chunks)
    }

    /// The layout with the fewest moving layers that gives these chunks within the stall; else why there is none.
    pub(super) fn layout_for(&self, chunks: u32, allowance_ns: u64) -> Result<Layout, Reason> {
        let current = self.weights.layout();
        let weights = self.sizes.weights(current);
        let mut wanted = current.alpha() + (chunks / self.sizes.largest_slab()).max(1) as u16;
        loop {
            let choice = self.choose(current, wanted, allowance_ns);
            if let Some(reason) = choice.declined {
                return Err(reason);
            }
            if self.sizes.weights(&choice.layout) + chunks <= weights {
                return Ok(choice.layout);
            }
            wanted = wanted.max(choice.layout.alpha()) + 1;
        }
    }

    fn decline(&mut self, reason: Reason, chunks: u32, missing: u32) -> Prepared {
        self.count(reason);
        self.change.decline(RemapKind::Hidden, self.counters.steps(), chunks);
        self.shortfall(missing)
    }

    /// The layout that moves `wanted_alpha` layers with the least stall, within the cap.
    pub(super) fn choose(&self, current: &Layout, wanted_alpha: u16, allowance_ns: u64) -> Choice {
        self.cost().choose(current, wanted_alpha, self.sizes.cap_m, allowance_ns)
    }
}
