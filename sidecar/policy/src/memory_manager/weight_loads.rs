//! Orders the copies of weights that are due, and handles their ends ([`crate::weights`]).

use alloc::vec::Vec;

use super::{Failed, MemoryManager};
use crate::action::{Action, Fill, FillTarget, Work};
use crate::chunk_table::Owner;
use crate::event::{Failure, Outcome};
use crate::ids::{Generation, LayerId, Nanos};
use crate::orders::pending::Pending;
use crate::reason::Reason;
use crate::slots::DueCopy;

/// The owner of the chunks that a copy writes.
pub(super) fn owner_of(target: FillTarget) -> Owner {
    match target {
        FillTarget::Global => Owner::WeightsGlobal,
        FillTarget::Resident(layer) => Owner::WeightsLayer(layer),
        FillTarget::Slot(slot, _) => Owner::Slot(slot),
    }
}

impl MemoryManager {
    /// Orders every due copy: own chunks first, front layers first.
    pub(super) fn order_fills(&mut self, out: &mut Vec<Action>) {
        if self.orders.pending.fills_blocked() || self.failure.is_some() {
            return;
        }
        let reason = if self.loaded { self.weights.load_reason() } else { Reason::Load };
        let due = self.weights.due();
        if !due.is_empty() {
            let timetable = self.orders.timetable(&self.step_stats);
            for (target, generation) in due {
                // A step reads embeddings before all layers.
                let layer = target.layer().unwrap_or(LayerId(0));
                self.order_fill(target, (generation, None), timetable.layer(layer, false), reason, out);
            }
        }
        self.weights.extend_early(&mut self.generations);
        self.order_slot_fills(out);
    }

    pub(super) fn order_slot_fills(&mut self, out: &mut Vec<Action>) {
        let reason = if self.loaded { Reason::Stream } else { Reason::Load };
        let due = self.weights.take_due_slots();
        if due.is_empty() {
            return;
        }
        let timetable = self.orders.timetable(&self.step_stats);
        for DueCopy { instance, after, early } in due {
            let target = FillTarget::Slot(instance.slot, instance.layer);
            let needed = timetable.layer(instance.layer, early);
            self.order_fill(target, (instance.generation, after), needed, reason, out);
        }
    }

    fn order_fill(
        &mut self,
        target: FillTarget,
        (generation, after): (Generation, Option<(LayerId, Generation)>),
        needed: Nanos,
        reason: Reason,
        out: &mut Vec<Action>,
    ) {
        let chunks = match target {
            FillTarget::Global => self.chunks.ownership().global.clone(),
            FillTarget::Resident(layer) | FillTarget::Slot(_, layer) => {
                self.chunks.ownership().layer_chunks(layer).to_vec()
            }
        };
        self.weights.on_ordered(target);
        let work = Work::Fill(Fill { target, generation, after, chunks });
        self.orders.order_by(Some(needed), work, reason, Pending::Fill { target, generation }, out);
        self.record_contents(target);
    }

    /// Records in the chunk table what a holder contains.
    pub(super) fn record_contents(&mut self, target: FillTarget) {
        self.chunks.set_contents(owner_of(target), self.weights.state(target));
    }

    /// Handles the end of a copy.
    pub(super) fn on_filled(
        &mut self,
        target: FillTarget,
        generation: Generation,
        outcome: Outcome,
        out: &mut Vec<Action>,
    ) {
        match outcome {
            Outcome::Done { bytes, duration_ns } => {
                self.step_stats.copied(bytes, duration_ns);
                self.weights.on_filled(target, generation);
                self.record_contents(target);
            }
            Outcome::Failed(failure) => self.fill_failed(target, generation, failure, out),
        }
        if !self.loaded && self.failure.is_none() {
            self.loaded = self.weights.all_loaded();
        }
    }

    fn fill_failed(
        &mut self,
        target: FillTarget,
        generation: Generation,
        failure: Failure,
        out: &mut Vec<Action>,
    ) {
        let clean = failure == Failure::Dropped;
        self.weights.on_incomplete(
            target,
            generation,
            (clean, self.orders.step.is_running()),
            &mut self.generations,
        );
        self.record_contents(target);
        if self.orders.pending.dropping() && clean {
            // The memory manager dropped it: what is due is ordered again when the drop has ended.
            return;
        }
        self.orders.count(Reason::BackendFailed);
        if !self.weights.can_retry() {
            self.failure = Some(Failed::Fill { target });
        } else if self.weights.has_copies_behind(target, generation) {
            self.drop_fills(Reason::BackendFailed, out);
        } else {
            self.order_fills(out);
        }
    }

    pub(super) fn drop_fills(&mut self, reason: Reason, out: &mut Vec<Action>) {
        if !self.orders.pending.dropping() {
            self.orders.order(Work::DropFills, reason, Pending::Drop, out);
        }
    }
}
