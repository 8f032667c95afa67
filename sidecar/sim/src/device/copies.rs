//! Copies of slabs to the device, and of KV into buffers and out of them. The link takes one at a time in each direction.

use std::collections::BTreeSet;

use sluice_policy::action::{BlockSwap, Fetch, Fill, FillTarget, Spill};
use sluice_policy::event::{Completion, Failure, Outcome};
use sluice_policy::ids::{ActionId, ChunkId, Generation, LayerId, Nanos};

use super::{Content, Detail, Device, Tokens, done};
use crate::machine::{Passage, Way};

/// A copy to the device, or out of a buffer.
#[derive(Clone, Debug)]
pub(super) enum Copy {
    Slab(Fill),
    Kv(Fetch),
    Spill(Spill),
}

/// One that waits.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) id: ActionId,
    pub(super) copy: Copy,
    /// When it is needed, if anybody waits for it.
    pub(super) due: Option<Nanos>,
    /// Since when nothing but the link hinders it.
    pub(super) since: Option<Nanos>,
}

/// One on the link.
#[derive(Clone, Debug)]
pub(super) struct Copying {
    id: ActionId,
    pub(super) copy: Copy,
    /// What KV is copied, as it was when the copy began.
    tokens: Vec<Tokens>,
    pub(super) passage: Passage,
    fails: bool,
}

/// Something that copies change in the order in which they were ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Chunk(ChunkId),
    /// A block, by its chunk and its position there.
    Block(ChunkId, u32),
    Buffer(u8),
    KvReady(LayerId),
}

impl Copy {
    /// Chunks of a slab.
    fn chunks(&self) -> &[ChunkId] {
        match self {
            Copy::Slab(fill) => &fill.chunks,
            Copy::Kv(_) | Copy::Spill(_) => &[],
        }
    }

    /// Layer-blocks.
    pub(super) fn blocks(&self) -> &[BlockSwap] {
        match self {
            Copy::Slab(_) => &[],
            Copy::Kv(fetch) => &fetch.blocks,
            Copy::Spill(spill) => &spill.blocks,
        }
    }

    /// The buffer of KV that it fills or empties.
    fn buffer(&self) -> Option<u8> {
        match self {
            Copy::Slab(_) => None,
            Copy::Kv(fetch) => Some(fetch.buffer),
            Copy::Spill(spill) => Some(spill.buffer),
        }
    }

    pub(super) fn way(&self) -> Way {
        if matches!(self, Copy::Spill(_)) { Way::Out } else { Way::In }
    }

    fn places(&self, blocks_per_chunk: u32) -> Vec<Place> {
        match self {
            Copy::Slab(fill) => fill.chunks.iter().map(|chunk| Place::Chunk(*chunk)).collect(),
            Copy::Kv(fetch) => {
                let blocks = fetch.blocks.iter();
                let blocks = blocks.map(|swap| Place::Block(swap.chunk, swap.block.0 % blocks_per_chunk));
                blocks.chain([Place::Buffer(fetch.buffer), Place::KvReady(fetch.layer)]).collect()
            }
            Copy::Spill(spill) => vec![Place::Buffer(spill.buffer)],
        }
    }

    /// The same where slabs have hundreds of chunks: those of a slot, or of a layer, are known by their first one.
    fn follows(&self, earlier: &Copy) -> bool {
        match (self, earlier) {
            (Copy::Slab(this), Copy::Slab(that)) => this.chunks.first() == that.chunks.first(),
            (Copy::Kv(this), Copy::Kv(that)) => this.buffer == that.buffer || this.layer == that.layer,
            _ => self.buffer().is_some() && self.buffer() == earlier.buffer(),
        }
    }
}

impl Device {
    /// Queues a copy of a slab that is needed at `due`.
    pub fn queue_fill(&mut self, (id, due): (ActionId, Option<Nanos>), fill: Fill) {
        if self.fits(&fill) {
            self.queue_copy((id, due), Copy::Slab(fill));
        } else {
            self.fail(id, Failure::Refused);
        }
    }

    pub(super) fn queue_copy(&mut self, (id, due): (ActionId, Option<Nanos>), copy: Copy) {
        self.copies.push_back(Waiting { id, copy, due, since: None });
        self.kick();
    }

    pub(super) fn fail(&mut self, id: ActionId, failure: Failure) {
        self.completed.push_back(Completion { id, outcome: Outcome::Failed(failure) });
    }

    /// The slab exists, and its chunks do, as many as it has; no KV of theirs is copied.
    fn fits(&self, fill: &Fill) -> bool {
        let bytes = match fill.target.layer() {
            None => Some(self.geometry.global_bytes),
            Some(layer) => self.geometry.slab_bytes.get(layer.index()).copied(),
        };
        let count = bytes.map(|bytes| self.geometry.chunks_for(bytes) as usize);
        let copied = self.kv_chunks();
        let free = |chunk| self.chunks.contains_key(chunk) && !copied.contains(chunk);
        count == Some(fill.chunks.len()) && fill.chunks.iter().all(free)
    }

    /// Drops every copy that has not started, but for write-backs; `id` completes after those that have.
    pub fn drop_fills(&mut self, id: ActionId) {
        let dropped: Vec<_> = self.copies.drain(..).map(|waiting| waiting.id).collect();
        dropped.into_iter().for_each(|dropped| self.fail(dropped, Failure::Dropped));
        self.drops.push(id);
        self.finish_drops();
    }

    fn finish_drops(&mut self) {
        if self.running().next().is_none() {
            self.completed.extend(self.drops.drain(..).map(|id| done(id, 0, 0)));
        }
    }

    fn running(&self) -> impl Iterator<Item = &Copy> {
        self.copying.iter().chain(&self.spilling).map(|copying| &copying.copy)
    }

    /// Copies under way and waiting, but for write-backs.
    pub(super) fn all_copies(&self) -> impl Iterator<Item = &Copy> {
        self.running().chain(self.copies.iter().map(|waiting| &waiting.copy))
    }

    /// Whether a copy of a slab into the chunk waits or runs.
    pub fn is_filling(&self, chunk: ChunkId) -> bool {
        self.all_copies().any(|copy| copy.chunks().contains(&chunk))
    }

    /// Chunks that copies which wait or run read or write.
    pub(crate) fn copied(&self) -> BTreeSet<ChunkId> {
        let filled = self.all_copies().flat_map(|copy| copy.chunks().iter().copied());
        filled.chain(self.kv_chunks()).collect()
    }

    /// Notes from when on nothing but the link hinders copies: their reader is done, and no earlier copy has to precede them.
    pub(super) fn note_startable(&mut self) {
        let per_chunk = self.geometry.blocks_per_chunk();
        let mut claimed: BTreeSet<_> = match self.detail {
            Detail::Times => BTreeSet::new(),
            Detail::Fingerprints => self.running().flat_map(|copy| copy.places(per_chunk)).collect(),
        };
        for at in 0..self.copies.len() {
            let Waiting { copy, since, .. } = &self.copies[at];
            let first = match self.detail {
                // Whoever is done with has nobody before it: that is asked last.
                Detail::Times => since.is_some() || self.is_read(copy) && self.is_first(at),
                Detail::Fingerprints => {
                    copy.places(per_chunk).into_iter().filter(|place| !claimed.insert(*place)).count() == 0
                }
            };
            if since.is_none() && first && self.is_read(copy) {
                self.copies[at].since = Some(self.clock);
            }
        }
    }

    /// No copy before this one has to precede it.
    fn is_first(&self, at: usize) -> bool {
        let this = &self.copies[at].copy;
        let mut earlier = self.copies.range(..at).map(|waiting| &waiting.copy).chain(self.running());
        !earlier.any(|earlier| this.follows(earlier))
    }

    /// Who reads what it overwrites, or writes what it copies, is done.
    fn is_read(&self, copy: &Copy) -> bool {
        let (done, after) = match copy {
            Copy::Slab(fill) => (&self.done, fill.after),
            Copy::Kv(fetch) => (&self.kv_done, fetch.after),
            Copy::Spill(spill) => (&self.kv_done, Some((spill.layer, spill.after))),
        };
        let reached = |(layer, generation)| done.get(&layer).is_some_and(|d| *d >= generation);
        let ignored = self.faults.ignore_after || (self.faults.spill_early && copy.way() == Way::Out);
        ignored || after.is_none_or(reached)
    }

    /// What was there is gone from now on. KV that its host blocks do not carry is refused, and nothing happens.
    pub(super) fn start_copy(&mut self, id: ActionId, copy: Copy) {
        let tokens = match &copy {
            Copy::Slab(_) => Vec::new(),
            Copy::Kv(fetch) => match self.fetched(&fetch.blocks) {
                Some(tokens) => tokens,
                None => return self.fail(id, Failure::Refused),
            },
            Copy::Spill(spill) => self.leaving(&spill.blocks),
        };
        let passage = self.pass(self.clock, copy.way(), self.copy_bytes(&copy));
        let fails = self.rng.chance(self.faults.copy_fails_permille);
        if matches!(copy, Copy::Spill(_)) {
            self.spilling = Some(Copying { id, copy, tokens, passage, fails });
            return;
        }
        if self.detail == Detail::Fingerprints {
            self.spoil(&copy);
        }
        if self.faults.publish_early {
            self.publish(&copy);
        }
        self.copying = Some(Copying { id, copy, tokens, passage, fails });
    }

    fn spoil(&mut self, copy: &Copy) {
        match copy {
            Copy::Slab(fill) => {
                self.chunks.extend(fill.chunks.iter().map(|chunk| (*chunk, Content::Garbage)))
            }
            Copy::Kv(fetch) => self.write_blocks(&fetch.blocks, &vec![Tokens::default(); fetch.blocks.len()]),
            Copy::Spill(_) => {}
        }
    }

    pub(super) fn end_copy(&mut self) {
        let Some(Copying { id, copy, tokens, passage, fails }) = self.copying.take() else { return };
        if fails {
            self.fail(id, Failure::CopyFailed);
        } else {
            if self.detail == Detail::Fingerprints {
                match &copy {
                    Copy::Slab(fill) => self.write_slab(fill),
                    Copy::Kv(fetch) => self.write_blocks(&fetch.blocks, &tokens),
                    Copy::Spill(_) => {}
                }
            }
            self.publish(&copy);
            self.completed.push_back(done(id, self.copy_bytes(&copy), passage.ns));
        }
        self.finish_drops();
    }

    pub(super) fn end_spill(&mut self) {
        let Some(Copying { id, copy, tokens, passage, fails }) = self.spilling.take() else { return };
        if fails {
            self.fail(id, Failure::CopyFailed);
        } else {
            self.has_left(copy.blocks(), tokens);
            self.completed.push_back(done(id, self.copy_bytes(&copy), passage.ns));
        }
        self.finish_drops();
    }

    fn write_slab(&mut self, fill: &Fill) {
        let layer = fill.target.layer();
        let flip = std::mem::take(&mut self.faults.flip_next_fill);
        for (index, chunk) in fill.chunks.iter().enumerate() {
            let generation = Generation(fill.generation.0 ^ u64::from(flip) << 63);
            let content = Content::Slab { layer, generation, index: index as u32 };
            self.chunks.insert(*chunk, content);
        }
    }

    fn publish(&mut self, copy: &Copy) {
        match copy {
            Copy::Kv(fetch) => drop(self.kv_ready.insert(fetch.layer, fetch.generation)),
            Copy::Spill(_) => {}
            Copy::Slab(fill) => match fill.target.layer() {
                None => self.ready_global = fill.generation,
                Some(layer) => drop(self.ready.insert(layer, fill.generation)),
            },
        }
    }

    fn copy_bytes(&self, copy: &Copy) -> u64 {
        match copy {
            Copy::Slab(fill) => self.slab_bytes(fill.target),
            Copy::Kv(_) | Copy::Spill(_) => copy.blocks().len() as u64 * self.geometry.block_bytes,
        }
    }

    fn slab_bytes(&self, target: FillTarget) -> u64 {
        target.layer().map_or(self.geometry.global_bytes, |l| self.geometry.slab_bytes[l.index()])
    }
}
