//! The copies of the tenant's weights on the device: what each holder contains, what is due, what a step may read.
//!
//! A holder is the global part (embeddings, head, final norm), a layer with chunks of its own, or a slot that several
//! moving layers share (Oneiros 4.2). [`Weights`] knows generations and progress, no chunk and no
//! copy. [`WeightCopies`] orders the copies that are due and reports how they ended.

use alloc::vec;
use alloc::vec::Vec;

use crate::action::FillTarget;
use crate::chunk_table::{LayerLocation, State};
use crate::ids::{Generation, LayerId, SlotId};
use crate::reason::Reason;
use crate::slots::{CopyProgress, DueCopy, Generations, Slots};
use crate::step_model::Layout;

mod copies;
#[cfg(test)]
mod tests;

pub use copies::{FillFailed, WeightCopies, owner_of};

/// Copies in a row that may fail before the tenant counts as failed.
pub const FILL_RETRIES: u32 = 8;

/// The contents of a holder with its own chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slab {
    generation: Generation,
    progress: CopyProgress,
}

impl Slab {
    fn due(generations: &mut Generations) -> Slab {
        Slab { generation: generations.next_generation(), progress: CopyProgress::Due }
    }

    fn state(self) -> State {
        match self.progress {
            CopyProgress::Due => State::Idle,
            CopyProgress::Ordered => State::Filling(self.generation),
            CopyProgress::Filled => State::Filled(self.generation),
        }
    }
}

/// A layout and the memory behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Which layers move, and through how many slots.
    pub layout: Layout,
    /// The global part has chunks.
    pub has_global: bool,
    /// By layer.
    pub locations: Vec<LayerLocation>,
    /// Complete copies that keep their chunks, by layer.
    pub preserved: Vec<(LayerId, Generation)>,
    /// Why the layout was chosen: the reason of the copies that it needs.
    pub reason: Reason,
}

/// Contents of all holders, and the generations that steps were promised.
#[derive(Clone, Debug)]
pub struct Weights {
    global: Option<Slab>,
    /// None for a layer without chunks of its own.
    layers: Vec<Option<Slab>>,
    /// Every slab is filled. Cached: every step asks.
    settled: bool,
    slots: Slots,
    /// By layer: the newest generation that a lease named. Its reader may be done with everything up to it.
    leased: Vec<Generation>,
    load_reason: Reason,
    /// Copies in a row that failed.
    failures: u32,
    /// Copies that had to be repeated since the start.
    retries: u64,
}

impl Weights {
    /// Weights of `layers` layers, none of which has memory yet.
    pub fn new(layers: u16) -> Weights {
        Weights {
            global: None,
            layers: vec![None; usize::from(layers)],
            settled: false,
            slots: Slots::default(),
            leased: vec![Generation(0); usize::from(layers)],
            load_reason: Reason::Load,
            failures: 0,
            retries: 0,
        }
    }

    /// The layout in force.
    pub fn layout(&self) -> &Layout {
        self.slots.layout()
    }

    /// Why the layout in force was chosen.
    pub fn load_reason(&self) -> Reason {
        self.load_reason
    }

    /// The copies through slots, for the audit and the digest.
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    /// By layer: the newest generation that a lease named.
    pub fn leased(&self) -> &[Generation] {
        &self.leased
    }

    /// Copies that had to be repeated since the start.
    pub fn retries(&self) -> u64 {
        self.retries
    }

    /// No holder with its own chunks waits for a copy.
    pub fn is_settled(&self) -> bool {
        self.settled
    }

    /// The global part has memory, whatever it contains.
    pub fn has_global(&self) -> bool {
        self.global.is_some()
    }

    /// The global part is complete.
    pub fn is_global_loaded(&self) -> bool {
        self.global.is_some_and(|slab| slab.progress == CopyProgress::Filled)
    }

    /// Every holder is complete: each slab, and the first layer of each slot.
    pub fn all_loaded(&self) -> bool {
        self.all_filled() && self.slots.loaded()
    }

    /// The layer has chunks of its own.
    pub fn is_resident(&self, layer: LayerId) -> bool {
        self.layers[layer.index()].is_some()
    }

    /// Generation of the layer's complete copy: in `slot` if it has one, else in chunks of its own.
    pub fn content_of(&self, layer: LayerId, slot: Option<SlotId>) -> Option<Generation> {
        match slot {
            Some(slot) => {
                let (shown, generation) = (*self.slots.contents().get(slot.index())?)?;
                (shown == layer).then_some(generation)
            }
            None => {
                let slab = self.layers[layer.index()]?;
                (slab.progress == CopyProgress::Filled).then_some(slab.generation)
            }
        }
    }

    /// What the chunks of a holder contain.
    pub fn state(&self, target: FillTarget) -> State {
        match target {
            FillTarget::Slot(slot, _) => self.slot_state(slot),
            _ => self.slab(target).map_or(State::Idle, Slab::state),
        }
    }

    fn slot_state(&self, slot: SlotId) -> State {
        let ordered = self.slots.window().find(|i| i.slot == slot && i.progress == CopyProgress::Ordered);
        match (ordered, self.slots.contents()[slot.index()]) {
            (Some(instance), _) => State::Filling(instance.generation),
            (None, Some((_, generation))) => State::Filled(generation),
            (None, None) => State::Idle,
        }
    }

    /// Copies into chunks of their own that are due: the global part, then layers front first.
    pub fn due(&self) -> Vec<(FillTarget, Generation)> {
        if self.settled {
            return Vec::new();
        }
        let due = self.slabs().filter(|(_, slab)| slab.progress == CopyProgress::Due);
        due.map(|(target, slab)| (target, slab.generation)).collect()
    }

    /// The copies through slots reach to the first layer of each slot in the next step.
    pub fn extend_early(&mut self, generations: &mut Generations) {
        self.slots.extend_early(generations);
    }

    /// Takes the copies into slots that are due, in order. They count as ordered from now on.
    pub fn take_due_slots(&mut self) -> Vec<DueCopy> {
        self.slots.take_due()
    }

    /// A copy into chunks of their own was ordered. Copies into slots count as ordered when they are taken.
    pub fn on_ordered(&mut self, target: FillTarget) {
        if let Some(slab) = self.slab_mut(target) {
            slab.progress = CopyProgress::Ordered;
        }
    }

    /// A copy is complete.
    pub fn on_filled(&mut self, target: FillTarget, generation: Generation) {
        self.failures = 0;
        if let FillTarget::Slot(slot, layer) = target {
            self.slots.on_filled(slot, layer, generation);
        } else if let Some(slab) = self.slab_mut(target).filter(|slab| slab.generation == generation) {
            slab.progress = CopyProgress::Filled;
            self.settled = self.all_filled();
        }
    }

    /// A copy did not happen and is due again. `clean`: the holder still contains what it did. A copy that a running
    /// step (`in_step`) waits for keeps its generation, which no reader has seen; others take a new one.
    pub fn on_incomplete(
        &mut self,
        target: FillTarget,
        generation: Generation,
        (clean, in_step): (bool, bool),
        generations: &mut Generations,
    ) {
        if let FillTarget::Slot(slot, _) = target {
            return self.slots.incomplete(slot, generation, clean, in_step, generations);
        }
        let next = if in_step { generation } else { generations.next_generation() };
        if let Some(slab) = self.slab_mut(target).filter(|slab| slab.generation == generation) {
            *slab = Slab { generation: next, progress: CopyProgress::Due };
            self.settled = false;
        }
    }

    /// Counts a copy that the backend failed. `false` = more than [`FILL_RETRIES`] failed in a row.
    pub fn can_retry(&mut self) -> bool {
        self.retries += 1;
        self.failures += 1;
        self.failures <= FILL_RETRIES
    }

    /// Later copies into the same slot wait for the one of `generation`.
    pub fn has_copies_behind(&self, target: FillTarget, generation: Generation) -> bool {
        matches!(target, FillTarget::Slot(slot, _) if self.slots.queued_behind(slot, generation))
    }

    /// A step begins: the copies through slots cover it and the first layer of each slot in the next one.
    pub fn begin_step(&mut self, generations: &mut Generations) {
        self.slots.extend_step(generations);
    }

    /// Generation that each layer must show before the step reads it, in layer order: moving layers, and resident ones
    /// that are still loading.
    pub fn lease(&mut self) -> Vec<(LayerId, Generation)> {
        let mut lease: Vec<_> = self.slots.lease().collect();
        if !self.settled {
            lease.extend(self.loading());
            lease.sort_unstable();
        }
        for (layer, generation) in &lease {
            self.leased[layer.index()] = *generation;
        }
        lease
    }

    /// Resident layers that a step has to wait for.
    fn loading(&self) -> impl Iterator<Item = (LayerId, Generation)> + '_ {
        self.slabs().filter_map(|(target, slab)| match target {
            FillTarget::Resident(layer) if slab.progress != CopyProgress::Filled => {
                Some((layer, slab.generation))
            }
            _ => None,
        })
    }

    /// The step is over: all of its readers are done. Whether the end of a copy is still to be reported.
    pub fn finish_step(&mut self) -> bool {
        self.slots.finish_step()
    }

    /// The engine is lost: what slots contain is unknown, every moving layer is copied again.
    pub fn on_engine_lost(&mut self) {
        self.slots.reset();
    }

    /// Another layout is in force. Holders that lost their contents are due.
    pub fn place(&mut self, placement: Placement, generations: &mut Generations) {
        let Placement { layout, has_global, locations, preserved, reason } = placement;
        if !has_global {
            self.global = None;
        } else if self.global.is_none() {
            self.global = Some(Slab::due(generations));
        }
        let mut contents = vec![None; usize::from(layout.beta)];
        for (l, location) in locations.into_iter().enumerate() {
            let layer = LayerId(l as u16);
            let content =
                preserved.iter().find(|(kept, _)| *kept == layer).map(|(_, generation)| *generation);
            self.layers[l] = match (location, content) {
                (LayerLocation::Slot(slot), content) => {
                    // A copy that was read before cannot hold back the next one in its slot: its reader is done.
                    // Unless the layer has the slot to itself, it is copied again.
                    let alone = slot.index() + usize::from(layout.beta) >= layout.moving.len();
                    if let Some(generation) = content.filter(|g| alone || *g > self.leased[l]) {
                        contents[slot.index()] = Some((layer, generation));
                    }
                    None
                }
                (LayerLocation::Absent, _) => None,
                (LayerLocation::Resident, Some(generation)) => {
                    Some(Slab { generation, progress: CopyProgress::Filled })
                }
                (LayerLocation::Resident, None) => Some(Slab::due(generations)),
            };
        }
        self.slots = Slots::new(layout, contents);
        self.settled = self.all_filled();
        self.load_reason = reason;
    }

    /// Checks that what is cached agrees with the copies; panics with a message when it does not.
    pub fn check(&self) {
        self.slots.check();
        let waits = self.loading().next().is_some();
        assert!(!(waits && self.settled), "settled weights wait for no resident layer");
    }

    fn all_filled(&self) -> bool {
        self.slabs().all(|(_, slab)| slab.progress == CopyProgress::Filled)
    }

    fn slabs(&self) -> impl Iterator<Item = (FillTarget, Slab)> + '_ {
        let layers = self.layers.iter().enumerate();
        let layers = layers.filter_map(|(l, slab)| Some((FillTarget::Resident(LayerId(l as u16)), (*slab)?)));
        self.global.map(|slab| (FillTarget::Global, slab)).into_iter().chain(layers)
    }

    fn slab(&self, target: FillTarget) -> Option<Slab> {
        match target {
            FillTarget::Global => self.global,
            FillTarget::Resident(layer) => self.layers[layer.index()],
            FillTarget::Slot(..) => None,
        }
    }

    fn slab_mut(&mut self, target: FillTarget) -> Option<&mut Slab> {
        match target {
            FillTarget::Global => self.global.as_mut(),
            FillTarget::Resident(layer) => self.layers[layer.index()].as_mut(),
            FillTarget::Slot(..) => None,
        }
    }
}
