//! Carries out what `prepare_plan` decides about the memory of a step, until there is an answer.

use alloc::vec::Vec;

use super::prepare_plan::{Attempt, MemoryStep, ReclaimAction, StepDemand, Tried};
use super::transition::TransitionProgress;
use super::{MemoryManager, Prepared, StepNeed};
use crate::action::Action;
use crate::change::{RemapKind, Transition};
use crate::reason::Reason;

/// What a step towards memory has led to.
enum Progress {
    /// The engine step has its memory, waits for it or does not get it.
    Answered(Prepared),
    /// Memory has changed: the attempt begins again.
    Changed,
    /// Nothing was gained: the attempt goes on.
    Nothing(Tried),
}

impl MemoryManager {
    pub(super) fn prepare_step(&mut self, need: &StepNeed, out: &mut Vec<Action>) -> Prepared {
        let mut attempt = Attempt { demand: self.demand(need), tried: Tried::Nothing };
        loop {
            let step = self.plan_memory(need, &attempt);
            match self.carry_out(step, need, attempt.demand, out) {
                Progress::Answered(answer) => return answer,
                Progress::Changed => {
                    attempt = Attempt { demand: self.demand(need), tried: Tried::Nothing };
                }
                Progress::Nothing(tried) => attempt.tried = tried,
            }
        }
    }

    fn demand(&mut self, need: &StepNeed) -> StepDemand {
        StepDemand {
            to_load: self.kv.missing_layer_block_count(),
            layer_blocks: self.layer_blocks_of(need),
            activation: self.geometry.chunks_for(self.geometry.activation.bytes(need.shape)),
        }
    }

    /// Layer blocks that the step adds, and those that are loaded for it.
    pub(super) fn layer_blocks_of(&mut self, need: &StepNeed) -> u32 {
        let added =
            need.kv_blocks.iter().map(|(request, count)| count * self.kv.kv_block_layer_blocks(*request));
        added.sum::<u32>() + self.kv.missing_layer_block_count()
    }

    fn carry_out(
        &mut self,
        step: MemoryStep,
        need: &StepNeed,
        demand: StepDemand,
        out: &mut Vec<Action>,
    ) -> Progress {
        match step {
            MemoryStep::Answer(answer) => Progress::Answered(answer),
            MemoryStep::Allocate => {
                self.evict_until(demand.layer_blocks);
                Progress::Answered(self.allocate(need, out))
            }
            MemoryStep::AbortTransition => {
                self.abort_transition();
                Progress::Changed
            }
            MemoryStep::CompactStaging => {
                self.compact_staging();
                Progress::Changed
            }
            MemoryStep::Start { transition, or } => {
                let began = self.start_transition(transition, out);
                Progress::Answered(if began { Prepared::Wait } else { or })
            }
            MemoryStep::Recreate(chunks) => {
                self.order_recreation(chunks, out);
                Progress::Answered(Prepared::Wait)
            }
            MemoryStep::AskPeers { sizes, missing } => {
                self.loans.demand.ask(sizes);
                match self.borrow_request() {
                    Some(_) => Progress::Answered(Prepared::Wait),
                    None => Progress::Nothing(Tried::Peers { missing }),
                }
            }
            MemoryStep::Reclaim { missing, step, action } => self
                .reclaim(action, missing, out)
                .unwrap_or(Progress::Nothing(Tried::Reclaim { missing, step })),
        }
    }

    /// Does what the policy proposes. None = nothing was gained.
    fn reclaim(&mut self, action: ReclaimAction, missing: u32, out: &mut Vec<Action>) -> Option<Progress> {
        match action {
            ReclaimAction::Start(transition) => {
                self.start_transition(transition, out).then_some(Progress::Answered(Prepared::Wait))
            }
            ReclaimAction::EvictPaused => Some(match self.evict_paused(missing, out)? {
                Prepared::Ready => Progress::Changed,
                waits => Progress::Answered(waits),
            }),
            ReclaimAction::Decline { reason, remember } => {
                self.count(reason);
                if let Some(chunks) = remember {
                    self.change.decline(RemapKind::Hidden, self.counters.steps(), chunks);
                }
                None
            }
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

    fn evict_until(&mut self, layer_blocks: u32) {
        while self.kv.chunk_pool().free_layer_blocks() < layer_blocks && self.kv.evict() {
            self.count(Reason::PrefixEvicted);
        }
    }

    /// Decides a change and orders its first action. Returns false if it was given up.
    pub(super) fn start_transition(&mut self, transition: Transition, out: &mut Vec<Action>) -> bool {
        self.change.decide(Some(transition));
        self.advance_transition(out) == TransitionProgress::Ordered
    }
}
