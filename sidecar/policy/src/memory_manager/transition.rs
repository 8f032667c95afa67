//! Carries out transitions: chunks change their owner while the tenant serves.
//!
//! Every transition is one transaction between two steps. Chunks that KV gives up are drained first, copies into slots
//! have ended before, and nothing new is created: a chunk that arrives at an owner leaves another in the same
//! transaction, so a transition is feasible with zero spare chunks. Nothing is recorded before the backend has reported
//! that it happened.
//!
//! [`TransitionFacts`] decides the next step of a transition from counts, and `take_action` carries it out. Nothing is
//! drained or evicted for a transition before it is known to fit as memory is now. The exception is a transition that
//! must happen: KV of paused requests may be evicted before it fits.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::MemoryManager;
use crate::action::{Action, LayerBlockMove, Work};
use crate::chunk_table::Ownership;
use crate::chunks::Applied;
use crate::event::Outcome;
use crate::ids::{ChunkId, Generation, LayerId};
use crate::offload::EvictedPaused;
use crate::orders::pending::{Pending, PendingTransaction};
use crate::reason::Reason;
use crate::transition::step::{
    Misfit, TransitionAction, TransitionFacts, TransitionStart, TransitionStep, TransitionWork,
};
use crate::transition::{Transition, TransitionTarget};

impl MemoryManager {
    /// The next step of a transition that is under way or may begin.
    fn next_transition_step(&self, transition: &Transition) -> TransitionStep {
        let from_kv = self.transition_shortfall(&transition.target);
        let keeps_guarantee = from_kv == 0 || from_kv <= self.kv.chunk_pool().above(self.sizes.kv_guaranteed);
        let drain = keeps_guarantee.then(|| self.kv.plan_drain(from_kv));
        let missing = drain.map_or(0, |drain| drain.overfull_layer_blocks);
        let facts = TransitionFacts {
            drain,
            fetches: self.kv.layer_offload().fetches() > 0,
            evicts_paused: transition.reason.must_happen()
                && self.offload_view().can_evict_paused_for_transition(missing),
            copies_weights: transition.target.moves_weights() && self.orders.pending().fills() > 0,
        };
        facts.next_step()
    }

    /// The transition with its first action, if it fits as memory is now.
    pub(super) fn transition_start(&self, transition: Transition) -> Option<TransitionStart> {
        match self.next_transition_step(&transition) {
            TransitionStep::Act(action) => Some(TransitionStart { transition, action }),
            TransitionStep::EvictPaused { .. } | TransitionStep::GiveUp(_) => None,
        }
    }

    /// Decides a transition that fits and orders its first action. Nothing has changed since it was planned.
    pub(super) fn start_transition(&mut self, start: TransitionStart, out: &mut Vec<Action>) {
        self.transitions.decide(Some(start.transition.clone()));
        self.take_action(&start.transition, start.action, out);
    }

    /// Takes the transition under way one action further, or gives it up.
    pub(super) fn advance_transition(&mut self, out: &mut Vec<Action>) {
        let transition = self.transitions.current().cloned().expect("a transition is under way");
        loop {
            match self.next_transition_step(&transition) {
                TransitionStep::Act(action) => return self.take_action(&transition, action, out),
                TransitionStep::GiveUp(misfit) => return self.give_up_transition(transition.reason, misfit),
                TransitionStep::EvictPaused { missing } => {
                    match self.offloading().evict_paused_for_transition(missing, out) {
                        Some(EvictedPaused::Freed) => {}
                        Some(EvictedPaused::UnderWay) => {
                            return self.give_up_transition(transition.reason, Misfit::CopiesUnderWay);
                        }
                        None => return self.give_up_transition(transition.reason, Misfit::NoRoom),
                    }
                }
            }
        }
    }

    /// Carries out the next action of a transition.
    fn take_action(&mut self, transition: &Transition, action: TransitionAction, out: &mut Vec<Action>) {
        let TransitionAction { drain, work } = action;
        self.drain(drain.kv_chunks);
        self.kv.evict_oldest(drain.evictions);
        self.orders.count_many(Reason::PrefixEvicted, drain.evictions);
        if drain.buffer_layer_blocks > 0 {
            self.kv.move_buffers();
        }
        match work {
            TransitionWork::MoveLayerBlocks => self.order_moves(out),
            TransitionWork::DropCopies => self.orders.drop_copies(transition.reason, out),
            TransitionWork::Transaction => self.order_transition(transition, out),
        }
    }

    /// Gives the transition up because it does not fit. Copies that are in its way end by themselves.
    fn give_up_transition(&mut self, reason: Reason, misfit: Misfit) {
        if misfit == Misfit::NoRoom {
            self.loans.on_no_room(reason);
        }
        self.abort_transition();
    }

    /// Chunks that KV must give up for it.
    fn transition_shortfall(&self, target: &TransitionTarget) -> u32 {
        let (before, after) = match target {
            TransitionTarget::Layout(layout) => (self.chunks.weights_held(), self.sizes.weights(layout)),
            TransitionTarget::Activation(chunks) => (self.chunks.activation_chunks(), *chunks),
            TransitionTarget::KvChunks(_) => (0, 0),
            TransitionTarget::Vacate { kv_chunks, .. } => return *kv_chunks,
        };
        after.saturating_sub(before + self.chunks.free_count())
    }

    /// Gives the transition up; every KV chunk takes blocks again.
    pub(super) fn abort_transition(&mut self) {
        self.transitions.give_up(self.orders.boundaries());
        self.drain(0);
    }

    /// Lets `count` KV chunks drain, in the tables of KV and of chunks.
    fn drain(&mut self, count: u32) {
        for kv_chunk in self.kv.chunk_pool_mut().drain(count) {
            self.chunks.set_draining(kv_chunk, self.kv.chunk_pool().draining().contains(&kv_chunk));
        }
    }

    /// Moves blocks out of draining chunks.
    fn order_moves(&mut self, out: &mut Vec<Action>) {
        let limit =
            (self.params.compact_budget_bytes / self.geometry.layer_block_bytes).clamp(1, 1 << 20) as u32;
        let planned = self.kv.plan_moves(limit);
        let chunk_of =
            |layer_block| self.chunks.ownership().chunk_of(layer_block, self.sizes.layer_blocks_per_chunk);
        let moves: Vec<_> = planned
            .into_iter()
            .map(|(from, to)| LayerBlockMove { from, from_chunk: chunk_of(from), to, to_chunk: chunk_of(to) })
            .collect();
        self.transitions.moves_layer_blocks(self.orders.steps());
        self.orders.order(Work::MoveLayerBlocks(moves.clone()), Reason::Compact, Pending::Move(moves), out);
    }

    pub(super) fn on_moved(&mut self, moves: &[LayerBlockMove], outcome: Outcome) {
        let done = matches!(outcome, Outcome::Done { .. });
        self.kv.finish_moves(moves.iter().map(|m| (m.from, m.to)), done);
        if !done {
            self.transitions.on_backend_failed(&mut self.orders);
            self.abort_transition();
        }
    }

    fn order_transition(&mut self, transition: &Transition, out: &mut Vec<Action>) {
        let drained = self.kv.chunk_pool().drained();
        let (next, layout) = match &transition.target {
            TransitionTarget::Layout(layout) => {
                let next = self.chunks.with_layout(layout, self.weights.slots().contents(), &drained);
                (next, Some(layout.clone()))
            }
            TransitionTarget::Activation(chunks) => (self.chunks.with_activations(*chunks, &drained), None),
            TransitionTarget::KvChunks(chunks) => (self.chunks.with_kv_chunks(*chunks), None),
            TransitionTarget::Vacate { layers, .. } => {
                let next = self.chunks.vacated(&self.loans().lendable_layers().first(*layers), &drained);
                (next, (*layers > 0).then(|| self.weights.layout().clone()))
            }
        };
        let kept = layout.as_ref().map_or(Vec::new(), |_| self.preserved_chunks(&next));
        self.order_transaction(PendingTransaction { next, layout, reason: transition.reason }, &kept, out);
    }

    /// Orders the transaction after which `pending` takes effect.
    pub(super) fn order_transaction(
        &mut self,
        mut pending: PendingTransaction,
        kept: &[ChunkId],
        out: &mut Vec<Action>,
    ) {
        let reason = pending.reason;
        let defers_unmap = reason == Reason::Inflate && self.params.defers_unmap;
        pending.next = self.chunks.with_stale(pending.next, defers_unmap);
        let transaction = self.chunks.ownership().transaction(&pending.next, kept);
        self.orders.order(
            Work::Transaction(transaction),
            reason,
            Pending::Transaction(Box::new(pending)),
            out,
        );
    }

    /// Layers whose contents stay readable at their addresses across the transition.
    fn preserved_layers(&self, next: &Ownership) -> Vec<(LayerId, Generation)> {
        let ownership = self.chunks.ownership();
        let slots = ownership.slot_of.iter().enumerate();
        let complete = slots.map(|(l, slot)| self.weights.content_of(LayerId(l as u16), *slot));
        ownership.preserved(next, &complete.collect::<Vec<_>>())
    }

    /// Chunks that carry a layer's contents to a new owner: they must not be overwritten.
    fn preserved_chunks(&self, next: &Ownership) -> Vec<ChunkId> {
        self.preserved_layers(next).iter().flat_map(|(layer, _)| next.layer_chunks(*layer).to_vec()).collect()
    }

    pub(super) fn apply(&mut self, ended: PendingTransaction) {
        let PendingTransaction { next, layout, reason } = ended;
        let preserved = self.preserved_layers(&next);
        let Applied { moved_chunks, kv_chunks } = self.chunks.apply(next);
        if !reason.is_trade() {
            self.orders.count_moved(reason, moved_chunks);
        }
        for (kv_chunk, backed) in kv_chunks {
            if backed {
                self.kv.chunk_pool_mut().back(kv_chunk)
            } else {
                self.kv.chunk_pool_mut().unback(kv_chunk)
            }
        }
        self.transitions.applied(layout.is_some().then_some(reason), self.orders.steps());
        if let Some(layout) = layout {
            self.weight_copies().place(layout, preserved, reason);
        }
        self.on_awake();
        self.drain(0);
    }
}
