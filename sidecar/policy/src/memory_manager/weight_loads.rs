//! Copies of slabs: what is due, what was ordered, what failed.

use alloc::vec;
use alloc::vec::Vec;

use super::{Failed, MemoryManager};
use crate::action::{Action, Fill, FillTarget, Work};
use crate::chunk_table::{Owner, State};
use crate::event::{Failure, Outcome};
use crate::ids::{Generation, LayerId, Nanos, SlotId};
use crate::pending::Pending;
use crate::reason::Reason;
use crate::slots::{DueCopy, Generations, Progress};

/// Copies in a row that may fail before the tenant counts as failed.
pub const FILL_RETRIES: u32 = 8;

/// The contents of a holder with its own chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slab {
    pub generation: Generation,
    pub progress: Progress,
}

impl Slab {
    pub fn due(generations: &mut Generations) -> Slab {
        Slab { generation: generations.next_generation(), progress: Progress::Due }
    }
}

/// Contents of all holders with their own chunks.
#[derive(Clone, Debug)]
pub(super) struct WeightStates {
    pub global: Option<Slab>,
    /// None for a moving layer.
    pub layers: Vec<Option<Slab>>,
}

impl WeightStates {
    pub fn new(layers: u16) -> WeightStates {
        WeightStates { global: None, layers: vec![None; usize::from(layers)] }
    }

    pub fn get_mut(&mut self, target: FillTarget) -> Option<&mut Slab> {
        match target {
            FillTarget::Global => self.global.as_mut(),
            FillTarget::Resident(layer) => self.layers[layer.index()].as_mut(),
            FillTarget::Slot(..) => None,
        }
    }

    fn all(&self) -> impl Iterator<Item = (FillTarget, Slab)> + '_ {
        let layers = self.layers.iter().enumerate();
        let layers = layers.filter_map(|(l, slab)| Some((FillTarget::Resident(LayerId(l as u16)), (*slab)?)));
        self.global.map(|slab| (FillTarget::Global, slab)).into_iter().chain(layers)
    }

    /// Embeddings, head and final norm are there.
    pub fn global_ready(&self) -> bool {
        self.global.is_some_and(|slab| slab.progress == Progress::Committed)
    }

    pub fn all_committed(&self) -> bool {
        self.all().all(|(_, slab)| slab.progress == Progress::Committed)
    }

    /// Resident layers that a step has to wait for.
    pub fn arriving(&self) -> impl Iterator<Item = (LayerId, Generation)> + '_ {
        self.all().filter_map(|(target, slab)| match target {
            FillTarget::Resident(layer) if slab.progress != Progress::Committed => {
                Some((layer, slab.generation))
            }
            _ => None,
        })
    }
}

/// Who holds what a copy writes.
pub(super) fn owner_of(target: FillTarget) -> Owner {
    match target {
        FillTarget::Global => Owner::WeightsGlobal,
        FillTarget::Resident(layer) => Owner::WeightsLayer(layer),
        FillTarget::Slot(slot, _) => Owner::Slot(slot),
    }
}

impl MemoryManager {
    /// Orders every copy that is due, own chunks first, front layers first.
    pub(super) fn order_fills(&mut self, out: &mut Vec<Action>) {
        if self.pending.fills_blocked() || self.failure.is_some() {
            return;
        }
        let reason = if self.loaded { self.fill_reason } else { Reason::Load };
        if !self.are_slabs_loaded {
            let due: Vec<_> = self.weights.all().filter(|(_, slab)| slab.progress == Progress::Due).collect();
            let timetable = self.timetable();
            for (target, slab) in due {
                // A step reads embeddings before all layers.
                let layer = target.layer().unwrap_or(LayerId(0));
                self.order_fill(target, (slab.generation, None), timetable.layer(layer, false), reason, out);
            }
        }
        self.slots.extend_early(&mut self.generations);
        self.order_slot_fills(out);
    }

    pub(super) fn order_slot_fills(&mut self, out: &mut Vec<Action>) {
        let reason = if self.loaded { Reason::Stream } else { Reason::Load };
        let due = self.slots.take_due();
        if due.is_empty() {
            return;
        }
        let timetable = self.timetable();
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
            FillTarget::Global => self.ownership.global.clone(),
            FillTarget::Resident(layer) | FillTarget::Slot(_, layer) => {
                self.ownership.layer_chunks(layer).to_vec()
            }
        };
        if let Some(slab) = self.weights.get_mut(target) {
            slab.progress = Progress::Ordered;
        }
        let work = Work::Fill(Fill { target, generation, after, chunks });
        self.submit_with_deadline(Some(needed), work, reason, Pending::Fill { target, generation }, out);
        self.record_contents(target);
    }

    /// Writes what a holder contains into the ledger.
    pub(super) fn record_contents(&mut self, target: FillTarget) {
        let state = match target {
            FillTarget::Slot(slot, _) => self.slot_state(slot),
            _ => self.weights.get_mut(target).map_or(State::Idle, |slab| slab_state(*slab)),
        };
        self.chunk_table.set_contents(owner_of(target), state);
    }

    pub(super) fn slot_state(&self, slot: SlotId) -> State {
        let ordered = self.slots.window().find(|i| i.slot == slot && i.progress == Progress::Ordered);
        match (ordered, self.slots.contents()[slot.index()]) {
            (Some(instance), _) => State::Filling(instance.generation),
            (None, Some((_, generation))) => State::Committed(generation),
            (None, None) => State::Idle,
        }
    }

    /// A copy has ended.
    pub(super) fn filled(
        &mut self,
        target: FillTarget,
        generation: Generation,
        outcome: Outcome,
        out: &mut Vec<Action>,
    ) {
        match outcome {
            Outcome::Done { bytes, duration_ns } => {
                self.step_stats.copied(bytes, duration_ns);
                self.fill_failures = 0;
                self.fill_done(target, generation);
            }
            Outcome::Failed(failure) => self.fill_failed(target, generation, failure, out),
        }
        if !self.loaded && self.failure.is_none() {
            self.loaded = self.weights.all_committed() && self.slots.loaded();
        }
    }

    fn fill_done(&mut self, target: FillTarget, generation: Generation) {
        if let FillTarget::Slot(slot, layer) = target {
            self.slots.committed(slot, layer, generation);
        } else if let Some(slab) = self.weights.get_mut(target).filter(|slab| slab.generation == generation) {
            slab.progress = Progress::Committed;
            self.are_slabs_loaded = self.weights.all_committed();
        }
        self.record_contents(target);
    }

    fn fill_failed(
        &mut self,
        target: FillTarget,
        generation: Generation,
        failure: Failure,
        out: &mut Vec<Action>,
    ) {
        let clean = failure == Failure::Dropped;
        match target {
            FillTarget::Slot(slot, _) => {
                self.slots.incomplete(slot, generation, clean, self.in_step, &mut self.generations);
            }
            _ => self.on_fill_undone(target, generation),
        }
        self.record_contents(target);
        if self.pending.dropping() && clean {
            // By our own order: what is due is ordered again when that order has ended.
            return;
        }
        self.count(Reason::BackendFailed);
        self.fill_retries += 1;
        self.fill_failures += 1;
        if self.fill_failures > FILL_RETRIES {
            self.failure = Some(Failed::Fill { target });
            return;
        }
        let blocked =
            matches!(target, FillTarget::Slot(slot, _) if self.slots.queued_behind(slot, generation));
        if blocked { self.drop_fills(Reason::BackendFailed, out) } else { self.order_fills(out) }
    }

    /// As for slots: a copy that a running step waits for keeps its name.
    fn on_fill_undone(&mut self, target: FillTarget, generation: Generation) {
        let fresh = if self.in_step { generation } else { self.generations.next_generation() };
        if let Some(slab) = self.weights.get_mut(target).filter(|slab| slab.generation == generation) {
            *slab = Slab { generation: fresh, progress: Progress::Due };
            self.are_slabs_loaded = false;
        }
    }

    pub(super) fn drop_fills(&mut self, reason: Reason, out: &mut Vec<Action>) {
        if !self.pending.dropping() {
            self.order(Work::DropFills, reason, Pending::Drop, out);
        }
    }
}

pub(super) fn slab_state(slab: Slab) -> State {
    match slab.progress {
        Progress::Due => State::Idle,
        Progress::Ordered => State::Filling(slab.generation),
        Progress::Committed => State::Committed(slab.generation),
    }
}
