//! The contents of slots, now and over the next step: the cyclic sequence of copies of one layout.
//!
//! Moving layer number `i` of every step uses slot `i % beta`. A copy into a slot waits for the reader of the copy
//! before it; readers are named by layer and generation, and no generation names two contents.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use crate::ids::{Generation, LayerId, SlotId};
use crate::step_model::Layout;

/// Source of generations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Generations(u64);

impl Generations {
    /// A generation that was never used.
    pub fn next_generation(&mut self) -> Generation {
        self.0 += 1;
        Generation(self.0)
    }

    /// Generations used so far.
    pub const fn used(&self) -> u64 {
        self.0
    }
}

/// The progress of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyProgress {
    /// It has to be ordered.
    Due,
    /// It was ordered and has not ended.
    Ordered,
    /// It is complete.
    Filled,
}

/// A layer in a slot, for one step. A layer that is alone in its slot stays under one generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The layer.
    pub layer: LayerId,
    /// Its slot.
    pub slot: SlotId,
    /// Names the contents.
    pub generation: Generation,
    /// Progress of its copy.
    pub progress: CopyProgress,
}

/// A copy to order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueCopy {
    /// The copy.
    pub instance: Instance,
    /// The reader that it waits for.
    pub after: Option<(LayerId, Generation)>,
    /// It is for the step after the present one, or after the next one.
    pub early: bool,
}

/// The slots under one layout.
#[derive(Clone, Debug, Default)]
pub struct Slots {
    layout: Layout,
    /// From the first moving layer of the present step (or, at a boundary, of the next) on.
    window: VecDeque<Instance>,
    /// What each slot contains before the window begins, complete and without readers.
    base: Vec<Option<(LayerId, Generation)>>,
    /// The last complete copy of each slot. None after a copy that failed half way.
    contents: Vec<Option<(LayerId, Generation)>>,
}

impl Slots {
    /// Slots for `layout` with these complete contents, none if unknown.
    pub fn new(layout: Layout, contents: Vec<Option<(LayerId, Generation)>>) -> Slots {
        assert_eq!(contents.len(), usize::from(layout.beta), "one content for each slot");
        Slots { layout, window: VecDeque::new(), base: contents.clone(), contents }
    }

    /// The layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Instances of the present step and those ordered early.
    pub fn window(&self) -> impl Iterator<Item = &Instance> {
        self.window.iter()
    }

    /// The last complete copy of each slot.
    pub fn contents(&self) -> &[Option<(LayerId, Generation)>] {
        &self.contents
    }

    fn moving(&self) -> usize {
        self.layout.moving.len()
    }

    /// Extends the sequence to the first layer of each slot in the next step.
    pub fn extend_early(&mut self, generations: &mut Generations) {
        self.extend(usize::from(self.layout.beta), generations);
    }

    /// Extends the sequence over this step and the first layer of each slot in the next one.
    pub fn extend_step(&mut self, generations: &mut Generations) {
        self.extend(self.moving() + usize::from(self.layout.beta), generations);
    }

    /// Extends the sequence over this step only.
    pub fn extend_one_step(&mut self, generations: &mut Generations) {
        self.extend(self.moving(), generations);
    }

    fn extend(&mut self, length: usize, generations: &mut Generations) {
        while self.window.len() < length {
            let index = self.window.len() % self.moving();
            let (layer, slot) = (self.layout.moving[index], self.layout.slot(index));
            let (generation, progress) = match self.before(self.window.len(), slot) {
                Some(previous) if previous.layer == layer => (previous.generation, previous.progress),
                _ => (generations.next_generation(), CopyProgress::Due),
            };
            self.window.push_back(Instance { layer, slot, generation, progress });
        }
    }

    /// The contents of `slot` before instance number `at` of the window.
    fn before(&self, at: usize, slot: SlotId) -> Option<Instance> {
        let earlier = self.window.range(..at).rev().find(|i| i.slot == slot).copied();
        earlier.or_else(|| {
            let (layer, generation) = self.base[slot.index()]?;
            Some(Instance { layer, slot, generation, progress: CopyProgress::Filled })
        })
    }

    /// Takes the due copies, in order. They count as ordered from now on.
    pub fn take_due(&mut self) -> Vec<DueCopy> {
        let mut due = Vec::with_capacity(self.window.len());
        let mut readers: Vec<Option<(LayerId, Generation)>> = vec![None; self.base.len()];
        for at in 0..self.window.len() {
            let instance = self.window[at];
            if instance.progress == CopyProgress::Due {
                let after = readers[instance.slot.index()];
                // A layer alone in its slot stays there: one copy serves all of its steps.
                if after.is_none_or(|(_, generation)| generation != instance.generation) {
                    due.push(DueCopy { instance, after, early: at >= self.moving() });
                }
                self.window[at].progress = CopyProgress::Ordered;
            }
            readers[instance.slot.index()] = Some((instance.layer, instance.generation));
        }
        due
    }

    fn mark(&mut self, generation: Generation, progress: CopyProgress) {
        for instance in self.window.iter_mut().filter(|i| i.generation == generation) {
            instance.progress = progress;
        }
    }

    /// A copy is complete. Its step may be over already: `done` can overtake `ready`.
    pub fn on_filled(&mut self, slot: SlotId, layer: LayerId, generation: Generation) {
        self.mark(generation, CopyProgress::Filled);
        let newer = self.contents[slot.index()].is_none_or(|(_, shown)| shown < generation);
        if newer {
            self.contents[slot.index()] = Some((layer, generation));
        }
    }

    /// A copy did not happen. `clean`: the slot still contains what it did. A copy that no lease names takes a new
    /// generation; one that a running step waits for keeps its own, which no reader has seen, so that the step can
    /// continue.
    pub fn incomplete(
        &mut self,
        slot: SlotId,
        generation: Generation,
        clean: bool,
        leased: bool,
        names: &mut Generations,
    ) {
        if !clean {
            self.contents[slot.index()] = None;
        }
        let promised = if leased { self.moving().min(self.window.len()) } else { 0 };
        let keeps = self.window.range(..promised).any(|i| i.generation == generation);
        let generation = if keeps { generation } else { self.rename(generation, names) };
        self.mark(generation, CopyProgress::Due);
    }

    fn rename(&mut self, generation: Generation, names: &mut Generations) -> Generation {
        let fresh = names.next_generation();
        for instance in self.window.iter_mut().filter(|i| i.generation == generation) {
            instance.generation = fresh;
        }
        fresh
    }

    /// Whether copies that were ordered later into `slot` wait behind the one of `generation`.
    pub fn queued_behind(&self, slot: SlotId, generation: Generation) -> bool {
        let mut behind = self.window.iter().filter(|i| i.slot == slot && i.generation != generation);
        behind.any(|i| i.progress == CopyProgress::Ordered)
    }

    /// Generations of this step's moving layers, in layer order.
    pub fn lease(&self) -> impl Iterator<Item = (LayerId, Generation)> + '_ {
        assert!(self.window.len() >= self.moving(), "a lease covers the whole step");
        self.window.range(..self.moving()).map(|i| (i.layer, i.generation))
    }

    /// The step is over: all of its readers are done. Returns whether the end of a copy is still to be reported, which
    /// the end of its reader can overtake.
    pub fn finish_step(&mut self) -> bool {
        assert!(self.window.len() >= self.moving(), "a step that ends was leased");
        let late = self.window.range(..self.moving()).any(|i| i.progress != CopyProgress::Filled);
        for instance in self.window.drain(..self.moving()) {
            self.base[instance.slot.index()] = Some((instance.layer, instance.generation));
        }
        late
    }

    /// Starts over with unknown contents: everything is copied again.
    pub fn reset(&mut self) {
        self.window.clear();
        self.base.fill(None);
        self.contents.fill(None);
    }

    /// The first instance of each slot is complete.
    pub fn loaded(&self) -> bool {
        let beta = usize::from(self.layout.beta);
        let first = self.window.len() >= beta
            && self.window.range(..beta).all(|i| i.progress == CopyProgress::Filled);
        beta == 0 || first
    }

    /// Checks the sequence.
    pub fn check(&self) {
        for (at, instance) in self.window.iter().enumerate() {
            let index = at % self.moving();
            assert_eq!(
                instance.layer, self.layout.moving[index],
                "moving layers follow each other in layer order"
            );
            assert_eq!(instance.slot, self.layout.slot(index), "a moving layer keeps its slot");
            let Some(previous) = self.before(at, instance.slot) else { continue };
            let newer = previous.generation < instance.generation;
            assert!(
                newer || previous.layer == instance.layer,
                "generations rise in a slot, unless the layer stays"
            );
        }
    }
}
