//! The fetches of each step, what they cover, and what the tables say of it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{StagingSlot, by_seats};
use crate::action::staging::{FetchBlocks, StagedRange};
use crate::ids::{BlockId, ChunkId, Generation, HostBlockId, LayerId, SlotId};
use crate::kv::Kv;
use crate::layer_set::LayerSet;
use crate::slots::{DueCopy, Generations};

impl Kv {
    /// A step begins: its fetches and, if `early`, the first ones of the next. Tables name the buffers where they cover.
    pub fn begin_fetches(&mut self, early: bool, generations: &mut Generations) -> Vec<DueCopy> {
        if self.stream.seats.is_empty() || self.stream.rests {
            return Vec::new();
        }
        if early {
            self.stream.slots.extend_step(generations);
        } else {
            self.stream.slots.extend_one_step(generations);
        }
        let due = self.due_fetches();
        self.tell_tables();
        self.begin_spills(generations);
        due
    }

    /// The steps from now on read nothing from buffers, or do so again.
    pub fn rest_buffers(&mut self, rests: bool) {
        self.stream.rests = rests;
    }

    /// Fetches that are due, once more those that failed.
    pub fn due_fetches(&mut self) -> Vec<DueCopy> {
        let due = self.stream.slots.take_due();
        let seats = self.stream.spills.first_seat().unwrap_or(self.stream.seats.len() as u32);
        for DueCopy { instance, .. } in &due {
            self.stream.covered.note(instance.generation, seats);
            self.stream.note_fetch(instance.generation);
        }
        due
    }

    fn tell_tables(&mut self) {
        let mut shared = BTreeSet::new();
        for ([from, to], layers) in self.newly_covered() {
            for seat in self.stream.seats[from as usize..to as usize].iter().flatten() {
                if (self.stream.sets[usize::from(seat.set)].members & layers).is_empty() {
                    continue;
                }
                // Its first user may have gone since.
                let user = self.sequences.get(&seat.user.0).and_then(|s| s.columns.get(seat.user.1 as usize));
                if self.columns.get(seat.column).refs == 1 && user == Some(&seat.column) {
                    self.dirty.insert(seat.user);
                } else {
                    shared.insert(seat.column);
                }
            }
        }
        self.touch(&shared);
    }

    /// Seats that the tables place in buffers from now on, from one to before another, each time with the layers of which they do.
    fn newly_covered(&mut self) -> BTreeMap<[u32; 2], LayerSet> {
        let stream = &mut self.stream;
        let lease = stream.slots.lease().map(|(_, generation)| generation);
        let layers = stream.placement.layout.moving.iter().zip(stream.covered.walk(lease));
        by_seats(layers.map(|(layer, covered)| {
            let covered = covered.expect("a lease names fetches that were ordered");
            let told = &mut stream.told[layer.index()];
            (*layer, [core::mem::replace(told, covered.max(*told)), covered])
        }))
    }

    /// Generation that the KV of each moving layer must show in this step, in layer order.
    pub fn fetch_lease(&self) -> Vec<(LayerId, Generation)> {
        let none = self.stream.seats.is_empty() || self.stream.rests;
        if none { Vec::new() } else { self.stream.slots.lease().collect() }
    }

    /// What a fetch copies. No block of a buffer changes its chunk while the buffer stays where it is.
    pub fn fetch_blocks(&mut self, due: &DueCopy, chunk: impl Fn(BlockId) -> ChunkId) -> FetchBlocks {
        let covered = self.stream.covered.get(due.instance.generation).expect("what is due is known");
        if self.stream.given_up {
            return Vec::new().into();
        }
        self.tell_seats(chunk);
        FetchBlocks::of(self.stream.table.clone(), due.instance.layer, due.instance.slot, covered)
    }

    /// The table has every seat.
    fn tell_seats(&mut self, chunk: impl Fn(BlockId) -> ChunkId) {
        let stream = &mut self.stream;
        let (told, seats) = (stream.table.seats.len(), stream.seats.len());
        if told == seats {
            return;
        }
        let seated = |seat: StagingSlot| {
            let stowed = self.columns.get(seat.column).stowed.expect("a seated column has a place");
            let host = HostBlockId(stowed.place * self.layers);
            StagedRange { set: seat.set, host, generation: stowed.generation }
        };
        let table = Arc::make_mut(&mut stream.table);
        table.seats.extend(stream.seats[told..].iter().map(|seat| seat.map(seated)));
        table.sets.extend(stream.sets[table.sets.len()..].iter().map(|set| set.members));
        table.buffers.resize(stream.buffers.len(), Vec::new());
        for (known, buffer) in table.buffers.iter_mut().zip(&stream.buffers) {
            known.extend(buffer[told..seats].iter().map(|block| (*block, chunk(*block))));
        }
    }

    /// The step is over.
    pub fn end_fetches(&mut self) {
        if self.stream.seats.is_empty() || self.stream.rests {
            return;
        }
        self.stream.slots.finish_step();
        self.forget_coverage();
        self.close_spills();
    }

    fn forget_coverage(&mut self) {
        let oldest = self.stream.slots.window().map(|instance| instance.generation).min();
        self.stream.covered.forget_before(oldest);
    }

    /// A fetch has ended. `leased`: a step is under way or will be repeated.
    pub fn fetched(
        &mut self,
        (layer, slot): (LayerId, SlotId),
        generation: Generation,
        done: Result<(), bool>,
        leased: bool,
        generations: &mut Generations,
    ) {
        self.stream.fetching.retain(|known| *known != generation);
        let known = slot.0 < self.stream.placement.layout.beta;
        match done {
            Ok(()) if known => self.stream.slots.committed(slot, layer, generation),
            Err(clean) if known => self.stream.slots.incomplete(slot, generation, clean, leased, generations),
            _ => {}
        }
        self.return_parted();
    }

    /// Whether fetches that were ordered later into this buffer, or spills out of it, wait behind the one of `generation`.
    pub fn fetches_behind(&self, slot: SlotId, generation: Generation) -> bool {
        self.stream.slots.queued_behind(slot, generation) || self.stream.spills.wait_behind(slot, generation)
    }

    /// The engine is gone: every fetch is ordered anew.
    pub fn forget_fetches(&mut self) {
        self.stream.slots.reset();
        self.stream.covered.forget_before(None);
        self.stream.spills.begin_anew();
    }

    pub(super) fn return_parted(&mut self) {
        let oldest = self.stream.fetching.front().copied();
        let parted = core::mem::take(&mut self.stream.parted);
        let (over, still): (Vec<_>, Vec<_>) =
            parted.into_iter().partition(|(newest, _)| oldest.is_none_or(|oldest| oldest > *newest));
        over.into_iter().for_each(|(_, place)| self.tier.give(place));
        self.stream.parted = still;
    }

    /// The column's place in the host tier is free, at once or when no fetch reads it any more.
    pub(in crate::kv) fn part(&mut self, seat: Option<u32>, place: u32) {
        seat.into_iter().for_each(|seat| self.stream.vacate(seat));
        if self.stream.fetching.is_empty() {
            self.tier.give(place);
        } else {
            self.stream.parted.push((self.stream.newest, place));
        }
    }

    /// Fetches and spills under way.
    pub fn fetches(&self) -> u32 {
        self.stream.fetching.len() as u32
    }
}
