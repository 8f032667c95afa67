//! Copies of slabs to the device, and of KV into buffers and out of them. The link runs one at a time in each
//! direction.

use std::collections::BTreeSet;

use sluice_policy::action::{Fill, FillTarget};
use sluice_policy::event::{Completion, Failure, Outcome};
use sluice_policy::ids::{ActionId, ChunkId, Generation, Nanos};
use sluice_ports::fake_memory::LayerBlockTokens;

use super::copy_op::{CopyOp, QueuedCopy, RunningCopy};
use super::{Detail, SimDevice, completion};
use crate::direction::Direction;

impl SimDevice {
    /// Queues a copy of a slab that is needed at `due`.
    pub fn queue_fill(&mut self, (id, due): (ActionId, Option<Nanos>), fill: Fill) {
        if self.fits(&fill) {
            self.queue_copy((id, due), CopyOp::Slab(fill));
        } else {
            self.fail(id, Failure::Refused);
        }
    }

    pub(super) fn queue_copy(&mut self, (id, due): (ActionId, Option<Nanos>), copy: CopyOp) {
        self.copies.push_back(QueuedCopy { id, copy, due, since: None });
        self.kick();
    }

    pub(super) fn fail(&mut self, id: ActionId, failure: Failure) {
        self.completions.push_back(Completion { id, outcome: Outcome::Failed(failure) });
    }

    /// Whether the slab exists, has this number of chunks, and no KV of these chunks is being copied.
    fn fits(&self, fill: &Fill) -> bool {
        let bytes = match fill.target.layer() {
            None => Some(self.geometry.global_bytes),
            Some(layer) => self.geometry.slab_bytes.get(layer.index()).copied(),
        };
        let count = bytes.map(|bytes| self.geometry.chunks_for(bytes) as usize);
        let copied = self.kv_chunks();
        let free = |chunk| self.memory.chunks.contains_key(chunk) && !copied.contains(chunk);
        count == Some(fill.chunks.len()) && fill.chunks.iter().all(free)
    }

    /// Drops every copy that has not started, except write-backs; `id` completes after the running copies.
    pub fn drop_fills(&mut self, id: ActionId) {
        let dropped: Vec<_> = self.copies.drain(..).map(|waiting| waiting.id).collect();
        dropped.into_iter().for_each(|dropped| self.fail(dropped, Failure::Dropped));
        self.pending_drops.push(id);
        self.finish_drops();
    }

    fn finish_drops(&mut self) {
        if self.running().next().is_none() {
            self.completions.extend(self.pending_drops.drain(..).map(|id| completion(id, 0, 0)));
        }
    }

    fn running(&self) -> impl Iterator<Item = &CopyOp> {
        self.running_copy.iter().chain(&self.running_spill).map(|copying| &copying.copy)
    }

    /// Returns running and waiting copies, except write-backs.
    pub(super) fn all_copies(&self) -> impl Iterator<Item = &CopyOp> {
        self.running().chain(self.copies.iter().map(|waiting| &waiting.copy))
    }

    /// Whether a copy of a slab into the chunk is running or waiting.
    pub fn is_filling(&self, chunk: ChunkId) -> bool {
        self.all_copies().any(|copy| copy.chunks().contains(&chunk))
    }

    /// Returns the chunks that running or waiting copies read or write.
    pub(crate) fn copying_chunks(&self) -> BTreeSet<ChunkId> {
        let filled = self.all_copies().flat_map(|copy| copy.chunks().iter().copied());
        filled.chain(self.kv_chunks()).collect()
    }

    /// Records since when copies wait only for the link: their reader is done, and no earlier copy must precede them.
    pub(super) fn mark_startable(&mut self) {
        let per_chunk = self.geometry.layer_blocks_per_chunk();
        let mut claimed: BTreeSet<_> = match self.detail {
            Detail::Times => BTreeSet::new(),
            Detail::Fingerprints => self.running().flat_map(|copy| copy.targets(per_chunk)).collect(),
        };
        for at in 0..self.copies.len() {
            let QueuedCopy { copy, since, .. } = &self.copies[at];
            let first = match self.detail {
                // `is_first` is the expensive check, so it is last.
                Detail::Times => since.is_some() || self.is_read(copy) && self.is_first(at),
                Detail::Fingerprints => {
                    copy.targets(per_chunk).into_iter().filter(|place| !claimed.insert(*place)).count() == 0
                }
            };
            if since.is_none() && first && self.is_read(copy) {
                self.copies[at].since = Some(self.clock);
            }
        }
    }

    /// Whether no earlier copy must precede this one.
    fn is_first(&self, at: usize) -> bool {
        let this = &self.copies[at].copy;
        let mut earlier = self.copies.range(..at).map(|waiting| &waiting.copy).chain(self.running());
        !earlier.any(|earlier| this.depends_on(earlier))
    }

    /// Whether the reader of the overwritten contents, or the writer of the copied contents, is done.
    fn is_read(&self, copy: &CopyOp) -> bool {
        let (done, after) = match copy {
            CopyOp::Slab(fill) => (&self.done, fill.after),
            CopyOp::Kv(fetch) => (&self.kv_done, fetch.after),
            CopyOp::Spill(spill) => (&self.kv_done, Some((spill.layer, spill.after))),
        };
        let reached = |(layer, generation)| done.get(&layer).is_some_and(|d| *d >= generation);
        let ignored =
            self.faults.ignore_after || (self.faults.spill_early && copy.direction() == Direction::Out);
        ignored || after.is_none_or(reached)
    }

    /// Starts a copy and invalidates its target. Refuses a fetch if a host block does not have the expected generation.
    pub(super) fn start_copy(&mut self, id: ActionId, copy: CopyOp) {
        let tokens = match &copy {
            CopyOp::Slab(_) => Vec::new(),
            CopyOp::Kv(fetch) => match self.read_host_blocks(&fetch.layer_blocks) {
                Some(tokens) => tokens,
                None => return self.fail(id, Failure::Refused),
            },
            CopyOp::Spill(spill) => self.start_host_write(&spill.layer_blocks),
        };
        let passage = self.start_transfer(self.clock, copy.direction(), self.copy_bytes(&copy));
        let fails = self.rng.chance(self.faults.copy_fails_permille);
        if matches!(copy, CopyOp::Spill(_)) {
            self.running_spill =
                Some(RunningCopy { id, copy, tokens, transfer: passage, should_fail: fails });
            return;
        }
        if self.detail == Detail::Fingerprints {
            self.invalidate(&copy);
        }
        if self.faults.publish_early {
            self.publish(&copy);
        }
        self.running_copy = Some(RunningCopy { id, copy, tokens, transfer: passage, should_fail: fails });
    }

    fn invalidate(&mut self, copy: &CopyOp) {
        match copy {
            CopyOp::Slab(fill) => self.memory.poison(&fill.chunks),
            CopyOp::Kv(fetch) => self.write_layer_blocks(
                &fetch.layer_blocks,
                &vec![LayerBlockTokens::default(); fetch.layer_blocks.len()],
            ),
            CopyOp::Spill(_) => {}
        }
    }

    pub(super) fn end_copy(&mut self) {
        let Some(RunningCopy { id, copy, tokens, transfer: passage, should_fail: fails }) =
            self.running_copy.take()
        else {
            return;
        };
        if fails {
            self.fail(id, Failure::CopyFailed);
        } else {
            if self.detail == Detail::Fingerprints {
                match &copy {
                    CopyOp::Slab(fill) => self.write_slab(fill),
                    CopyOp::Kv(fetch) => self.write_layer_blocks(&fetch.layer_blocks, &tokens),
                    CopyOp::Spill(_) => {}
                }
            }
            self.publish(&copy);
            self.completions.push_back(completion(id, self.copy_bytes(&copy), passage.ns));
        }
        self.finish_drops();
    }

    pub(super) fn end_spill(&mut self) {
        let Some(RunningCopy { id, copy, tokens, transfer: passage, should_fail: fails }) =
            self.running_spill.take()
        else {
            return;
        };
        if fails {
            self.fail(id, Failure::CopyFailed);
        } else {
            self.finish_host_write(copy.layer_blocks(), tokens);
            self.completions.push_back(completion(id, self.copy_bytes(&copy), passage.ns));
        }
        self.finish_drops();
    }

    fn write_slab(&mut self, fill: &Fill) {
        let layer = fill.target.layer();
        let flip = std::mem::take(&mut self.faults.flip_next_fill);
        let generation = Generation(fill.generation.0 ^ u64::from(flip) << 63);
        self.memory.write_slab(layer, generation, &fill.chunks);
    }

    fn publish(&mut self, copy: &CopyOp) {
        match copy {
            CopyOp::Kv(fetch) => drop(self.kv_ready.insert(fetch.layer, fetch.generation)),
            CopyOp::Spill(_) => {}
            CopyOp::Slab(fill) => match fill.target.layer() {
                None => self.ready_global = fill.generation,
                Some(layer) => drop(self.ready.insert(layer, fill.generation)),
            },
        }
    }

    fn copy_bytes(&self, copy: &CopyOp) -> u64 {
        match copy {
            CopyOp::Slab(fill) => self.slab_bytes(fill.target),
            CopyOp::Kv(_) | CopyOp::Spill(_) => {
                copy.layer_blocks().len() as u64 * self.geometry.layer_block_bytes
            }
        }
    }

    fn slab_bytes(&self, target: FillTarget) -> u64 {
        target.layer().map_or(self.geometry.global_bytes, |l| self.geometry.slab_bytes[l.index()])
    }
}
