//! Changing who holds what while the tenant serves.
//!
//! Every change is one transaction between two steps. Chunks that KV gives up are drained first, copies into slots have
//! ended before, and nothing new is created: what arrives somewhere has left somewhere else in the same transaction, so it
//! is feasible with zero spare chunks. Nothing is written down before the backend has said that it happened.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::MemoryManager;
use crate::action::{Action, BlockMove, FillTarget, Work};
use crate::change::{Transition, TransitionTarget};
use crate::chunk_table::{Owner, Ownership, State};
use crate::event::Outcome;
use crate::ids::{ChunkId, FrameId, Generation, LayerId, SlotId};
use crate::kv::compact::Drain;
use crate::pending::{Change, Pending};
use crate::reason::Reason;
use crate::step_model::{Layout, MAX_BETA};
use crate::weights::Placement;

/// How a goal came on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransitionProgress {
    /// An action was ordered.
    Ordered,
    /// There is no room for it; it was given up.
    Aborted,
}

impl MemoryManager {
    /// Takes the goal one action further.
    pub(super) fn advance_transition(&mut self, out: &mut Vec<Action>) -> TransitionProgress {
        let goal = self.change.transition().cloned().expect("a goal is pursued");
        let from_kv = self.transition_shortfall(&goal.target);
        if from_kv + self.sizes.kv_guaranteed > self.kv.frames().backed() && from_kv > 0 {
            return self.abort_transition();
        }
        self.drain(from_kv);
        match self.free_buffers() {
            Some(true) => return TransitionProgress::Ordered,
            Some(false) => {
                // What is fetched into them ends by itself; for want of room a request has to go.
                if self.kv.fetches() == 0 {
                    self.has_no_room(goal.reason);
                }
                return self.abort_transition();
            }
            None => {}
        }
        let (drain, evicted) = self.kv.make_room();
        self.count_many(Reason::PrefixEvicted, evicted);
        match drain {
            Drain::NoRoom => match self.evict_paused_for(goal.reason, out) {
                Some(0) => return self.abort_transition(),
                Some(_) => return self.advance_transition(out),
                None => {
                    self.has_no_room(goal.reason);
                    return self.abort_transition();
                }
            },
            Drain::Movable => return self.order_moves(out),
            Drain::Empty if goal.target.moves_weights() && self.pending.fills() > 0 => {
                self.drop_fills(goal.reason, out);
            }
            Drain::Empty => self.order_goal(&goal, out),
        }
        TransitionProgress::Ordered
    }

    /// Chunks that KV must give up for it.
    fn transition_shortfall(&self, target: &TransitionTarget) -> u32 {
        let (before, after) = match target {
            TransitionTarget::Layout(layout) => (self.weights_held(), self.sizes.weights(layout)),
            TransitionTarget::Activation(chunks) => (self.ownership.activation.len() as u32, *chunks),
            TransitionTarget::Frames(_) => (0, 0),
            TransitionTarget::Vacate { frames, .. } => return *frames,
        };
        after.saturating_sub(before + self.chunk_table.count(Owner::Free))
    }

    /// Gives the goal up; every frame takes blocks again.
    pub(super) fn abort_transition(&mut self) -> TransitionProgress {
        self.change.give_up(self.boundaries);
        self.drain(0);
        TransitionProgress::Aborted
    }

    /// Makes `count` frames drain, in KV's table and in the ledger.
    fn drain(&mut self, count: u32) {
        for frame in self.kv.drain(count) {
            let chunk = self.ownership.frames[frame.index()].expect("a backed frame has a chunk");
            self.chunk_table.set_draining(chunk, self.kv.frames().draining().contains(&frame));
        }
    }

    /// Blocks move out of draining frames. Where only such are left that are being written to the host tier, the change is for
    /// another time.
    fn order_moves(&mut self, out: &mut Vec<Action>) -> TransitionProgress {
        let limit = (self.params.compact_budget_bytes / self.geometry.block_bytes).clamp(1, 1 << 20) as u32;
        let planned = self.kv.plan_moves(limit);
        if planned.is_empty() {
            return self.abort_transition();
        }
        let chunk_of = |block| self.chunk_of(block);
        let moves: Vec<_> = planned
            .into_iter()
            .map(|(from, to)| BlockMove { from, from_chunk: chunk_of(from), to, to_chunk: chunk_of(to) })
            .collect();
        self.change.moves_blocks(self.steps);
        self.order(Work::MoveBlocks(moves.clone()), Reason::Compact, Pending::Move(moves), out);
        TransitionProgress::Ordered
    }

    pub(super) fn moved(&mut self, moves: &[BlockMove], outcome: Outcome) {
        let done = matches!(outcome, Outcome::Done { .. });
        self.kv.finish_moves(moves.iter().map(|m| (m.from, m.to)), done);
        if !done {
            self.count(Reason::BackendFailed);
            self.change.failed(self.boundaries);
            self.abort_transition();
        }
    }

    fn order_goal(&mut self, goal: &Transition, out: &mut Vec<Action>) {
        let (next, layout) = match &goal.target {
            TransitionTarget::Layout(layout) => (self.ownership_for_layout(layout), Some(layout.clone())),
            TransitionTarget::Activation(chunks) => (self.ownership_for_activation(*chunks), None),
            TransitionTarget::Frames(chunks) => {
                let mut next = self.ownership.clone();
                let free: Vec<_> = self.chunk_table.free().take(*chunks as usize).collect();
                self.map_frames(&mut next, free);
                (next, None)
            }
            TransitionTarget::Vacate { layers, .. } => self.vacated(*layers),
        };
        let kept = layout.as_ref().map_or(Vec::new(), |_| self.preserved_chunks(&next));
        self.order_change(Change { next, layout, reason: goal.reason }, &kept, out);
    }

    /// Holdings without drained frames and without the last `layers` own layers.
    fn vacated(&self, layers: u16) -> (Ownership, Option<Layout>) {
        let mut next = self.ownership.clone();
        self.kv.drained().into_iter().for_each(|frame| next.frames[frame.index()] = None);
        let going = self.last_own_layers(layers);
        going.iter().for_each(|layer| next.layers[layer.index()].clear());
        (next, (layers > 0).then(|| self.weights.layout().clone()))
    }

    /// Orders the transaction that leads to `change`.
    pub(super) fn order_change(&mut self, mut change: Change, kept: &[ChunkId], out: &mut Vec<Action>) {
        self.carry_deferred(&mut change.next, change.reason);
        let transaction = self.ownership.transaction(&change.next, kept);
        let reason = change.reason;
        self.order(Work::Reback(transaction), reason, Pending::Reback(Box::new(change)), out);
    }

    /// Holdings under another layout. Holders that stay keep their chunks; a new slot takes those of its first layer, a
    /// layer takes those of a slot that goes while it holds that layer; the rest comes from what was released, from free
    /// chunks, from drained frames, in this order. What is left becomes KV.
    fn ownership_for_layout(&self, layout: &Layout) -> Ownership {
        let mut next = self.ownership.clone();
        self.assign_slots(layout, &mut next);
        let mut pool = self.release_for(layout, &mut next);
        let released = pool.len();
        pool.extend(self.chunk_table.free());
        let mut drained = self.kv.drained().into_iter();
        let mut given = 0;
        let mut fill = |chunks: &mut Vec<ChunkId>, size: u32, next_frames: &mut Vec<Option<ChunkId>>| {
            while chunks.len() < size as usize {
                let from_kv =
                    || next_frames[drained.next().expect("enough frames were drained").index()].take();
                let chunk = pool.get(given).copied().or_else(from_kv);
                given += 1;
                chunks.push(chunk.expect("a drained frame has a chunk"));
            }
        };
        for s in 0..layout.beta {
            let size = self.sizes.slot(layout, SlotId(s));
            fill(&mut next.slots[usize::from(s)], size, &mut next.frames);
        }
        for l in (0..next.layers.len()).filter(|l| next.slot_of[*l].is_none()).collect::<Vec<_>>() {
            fill(&mut next.layers[l], self.sizes.slabs[l], &mut next.frames);
        }
        let left: Vec<_> = pool[..released].iter().copied().skip(given).collect();
        self.map_frames(&mut next, left);
        next
    }

    /// Notes who uses which slot.
    pub(super) fn assign_slots(&self, layout: &Layout, next: &mut Ownership) {
        next.slot_of.fill(None);
        for (index, layer) in layout.moving.iter().enumerate() {
            next.slot_of[layer.index()] = Some(layout.slot(index));
        }
    }

    /// Takes from `next` what holders no longer need, after those that can go on with the same chunks got them.
    fn release_for(&self, layout: &Layout, next: &mut Ownership) -> Vec<ChunkId> {
        let mut pool = Vec::new();
        let mut leaving: Vec<Vec<ChunkId>> =
            next.slots.split_off(next.slots.len().min(usize::from(layout.beta)));
        let kept_slots = next.slots.len();
        for (chunks, content) in leaving.iter_mut().zip(&self.weights.slots().contents()[kept_slots..]) {
            let heir = content.map(|(layer, _)| layer).filter(|layer| next.slot_of[layer.index()].is_none());
            if let Some(layer) = heir {
                next.layers[layer.index()] = core::mem::take(chunks);
            }
        }
        for s in kept_slots..usize::from(layout.beta) {
            let first = layout.moving[s];
            next.slots.push(core::mem::take(&mut next.layers[first.index()]));
        }
        for layer in &layout.moving {
            pool.append(&mut next.layers[layer.index()]);
        }
        let slots =
            next.slots.iter_mut().enumerate().map(|(s, c)| (c, self.sizes.slot(layout, SlotId(s as u8))));
        let layers = next.layers.iter_mut().zip(self.sizes.slabs.iter().copied());
        for (chunks, size) in slots.chain(layers) {
            pool.extend(chunks.drain((size as usize).min(chunks.len())..));
        }
        pool.extend(leaving.into_iter().flatten());
        pool
    }

    fn ownership_for_activation(&self, chunks: u32) -> Ownership {
        let mut next = self.ownership.clone();
        let held = next.activation.len();
        if (chunks as usize) < held {
            let idle = next.activation.split_off(chunks as usize);
            self.map_frames(&mut next, idle);
            return next;
        }
        let drained = self.kv.drained();
        let from_kv =
            drained.iter().map(|frame| self.ownership.frames[frame.index()].expect("a backed frame"));
        let more: Vec<_> = self.chunk_table.free().chain(from_kv).take(chunks as usize - held).collect();
        for frame in drained {
            let chunk = &mut next.frames[frame.index()];
            *chunk = chunk.filter(|c| !more.contains(c));
        }
        next.activation.extend(more);
        next
    }

    /// Backs the first frames without chunks, up to the limit of KV; what is left is free.
    fn map_frames(&self, next: &mut Ownership, chunks: Vec<ChunkId>) {
        for (frame, chunk) in next.unbacked_frames(chunks.len() as u32).into_iter().zip(chunks) {
            next.frames[frame.index()] = Some(chunk);
        }
    }

    /// Layers whose contents stay readable at their addresses across the change.
    fn preserved_layers(&self, next: &Ownership) -> Vec<(LayerId, Generation)> {
        let layers = (0..self.sizes.layers).map(LayerId);
        let whole = layers.filter_map(|layer| {
            Some((layer, self.weights.content_of(layer, self.ownership.slot_of[layer.index()])?))
        });
        whole.filter(|(layer, _)| self.ownership.layer_chunks(*layer) == next.layer_chunks(*layer)).collect()
    }

    /// Chunks that carry a layer's contents to a new owner: they must not be overwritten on the way.
    fn preserved_chunks(&self, next: &Ownership) -> Vec<ChunkId> {
        self.preserved_layers(next).iter().flat_map(|(layer, _)| next.layer_chunks(*layer).to_vec()).collect()
    }

    /// A transaction has ended.
    pub(super) fn on_remapped(&mut self, change: Change, outcome: Outcome, out: &mut Vec<Action>) {
        if matches!(outcome, Outcome::Done { .. }) {
            self.apply(change);
        } else {
            self.count(Reason::BackendFailed);
            if self.nothing_mapped() && !self.loaded {
                self.first_mapping_failed(out);
                return;
            }
            self.change.failed(self.boundaries);
            self.abort_transition();
        }
        self.order_fills(out);
    }

    fn apply(&mut self, change: Change) {
        let Change { next, layout, reason } = change;
        let changes = self.ownership.changes(&next);
        if !reason.is_trade() {
            self.count_moved(reason, changes.len() as u32);
        }
        for (chunk, from, to) in changes {
            self.chunk_table.hand_over(chunk, from, to);
        }
        for f in 0..next.frames.len() {
            match (self.ownership.frames[f], next.frames[f]) {
                (None, Some(_)) => self.kv.frames_mut().back(FrameId(f as u32)),
                (Some(_), None) => self.kv.frames_mut().unback(FrameId(f as u32)),
                _ => {}
            }
        }
        let preserved = self.preserved_layers(&next);
        self.ownership = next;
        self.change.applied(layout.is_some().then_some(reason), self.steps);
        if let Some(layout) = layout {
            self.place_weights(layout, preserved, reason);
        }
        self.on_awake();
        self.drain(0);
    }

    /// Puts a layout in force: layers and slots that lost their contents are filled.
    fn place_weights(&mut self, layout: Layout, preserved: Vec<(LayerId, Generation)>, reason: Reason) {
        let placement = Placement {
            layout,
            has_global: !self.ownership.global.is_empty(),
            homes: (0..self.sizes.layers).map(|l| self.ownership.home(LayerId(l))).collect(),
            preserved,
            reason,
        };
        self.weights.place(placement, &mut self.generations);
        self.absent_layer_count = self.ownership.absent_layers();
        self.record_all_contents();
    }

    fn record_all_contents(&mut self) {
        self.record_contents(FillTarget::Global);
        for l in 0..self.sizes.layers {
            self.record_contents(FillTarget::Resident(LayerId(l)));
        }
        self.record_slots();
    }

    /// Writes what the slots contain into the ledger.
    pub(super) fn record_slots(&mut self) {
        for slot in (0..MAX_BETA).map(SlotId) {
            if slot.0 < self.weights.layout().beta {
                self.record_contents(FillTarget::Slot(slot, LayerId(0)));
            } else {
                self.chunk_table.set_contents(Owner::Slot(slot), State::Idle);
            }
        }
    }
}
