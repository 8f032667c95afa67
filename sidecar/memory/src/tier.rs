//! The host tier: host memory for KV, and the generation of each of its blocks. The serial worker and the
//! copy lanes share it.
//!
//! Only the one order that reserved a block writes it, after all readers have finished. From then until the
//! last byte is written the block has no generation, so no new reader starts.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;

use sluice_policy::copy_priority::CopyPriority;
use sluice_policy::event::{Failure, Outcome};
use sluice_policy::ids::{ChunkId, Generation, HostBlockId};

use crate::backing::{Caching, Region};
use crate::faults::SharedFaults;
use crate::pool::PoolError;
use crate::pool_lane::PoolLane;
use crate::transfers::{PacedLink, PacedLinks};

/// A copy of one block between the device, `(chunk, offset)`, and the tier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TierCopy {
    pub(crate) host: HostBlockId,
    /// Generation of the host block's contents.
    pub(crate) generation: Generation,
    pub(crate) device: (ChunkId, u64),
}

/// An order that has reserved a host block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PendingWrite {
    /// Buffer from which it copies; fetches into that buffer run after it.
    buffer: Option<u8>,
}

/// State of a host block.
#[derive(Clone, Copy, Debug, Default)]
struct LayerBlock {
    /// `None` = no readable contents.
    generation: Option<Generation>,
    /// Order that writes the block now or later.
    pending_write: Option<PendingWrite>,
    /// Number of copies that read it now.
    readers: u32,
}

/// The tier's memory, the state of its blocks, and the links to the device. All memory is allocated at
/// construction.
#[derive(Debug)]
pub(crate) struct HostTier {
    region: Region,
    layer_block_bytes: usize,
    links: PacedLinks,
    faults: SharedFaults,
    layer_blocks: Mutex<Vec<LayerBlock>>,
    /// Signals that a copy from the tier has ended.
    reader_done: Condvar,
    stopping: AtomicBool,
}

impl HostTier {
    /// Creates a tier in `region`, whose size is a multiple of the block size.
    pub(crate) fn new(
        region: Region,
        layer_block_bytes: u64,
        links: PacedLinks,
        faults: SharedFaults,
    ) -> HostTier {
        let layer_blocks = vec![LayerBlock::default(); region.bytes().len() / layer_block_bytes as usize];
        HostTier {
            region,
            layer_block_bytes: layer_block_bytes as usize,
            links,
            faults,
            layer_blocks: Mutex::new(layer_blocks),
            reader_done: Condvar::new(),
            stopping: AtomicBool::new(false),
        }
    }

    /// Stops all copies immediately, regardless of the link's pace, because the memory is about to be
    /// dropped.
    pub(crate) fn stop(&self) {
        let layer_blocks = self.lock();
        self.stopping.store(true, Ordering::Relaxed);
        drop(layer_blocks);
        self.reader_done.notify_all();
        self.links.close();
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    pub(crate) fn contains(&self, layer_block: HostBlockId) -> bool {
        layer_block.index() < self.lock().len()
    }

    /// Whether no order has reserved one of these blocks, except orders that copy from `buffer`.
    pub(crate) fn has_no_pending_write(&self, copies: &[TierCopy], buffer: Option<u8>) -> bool {
        let layer_blocks = self.lock();
        let mut promises = copies.iter().filter_map(|copy| layer_blocks[copy.host.index()].pending_write);
        promises.all(|promise| promise.buffer.is_some() && promise.buffer == buffer)
    }

    /// Reserves all of these blocks for one order, which runs in [`HostTier::copy_out`] and may copy from a
    /// buffer. Returns false if another order has reserved one of them.
    pub(crate) fn reserve_write(&self, copies: &[TierCopy], buffer: Option<u8>) -> bool {
        let mut layer_blocks = self.lock();
        let free = copies.iter().all(|copy| layer_blocks[copy.host.index()].pending_write.is_none());
        if free {
            let promised = Some(PendingWrite { buffer });
            copies.iter().for_each(|copy| layer_blocks[copy.host.index()].pending_write = promised);
        }
        free
    }

    /// Cancels the reservation of an order that will not run; the blocks keep their contents.
    pub(crate) fn cancel_write(&self, copies: &[TierCopy]) {
        let mut layer_blocks = self.lock();
        copies.iter().for_each(|copy| layer_blocks[copy.host.index()].pending_write = None);
    }

    /// Copies blocks to the host that this order has reserved. They lose their generation before the first
    /// byte is copied and get the new one after the last byte of all.
    pub(crate) fn copy_out(
        &self,
        lane: &mut PoolLane<'_>,
        rank: CopyPriority,
        copies: &[TierCopy],
    ) -> Outcome {
        let may = self.begin_write(copies);
        let outcome = match may {
            true => self.transfer((&self.links.to_host, rank), lane, copies, |lane, copy, piece| {
                let (chunk, offset) = copy.device;
                // SAFETY: only this order has reserved the block, it had no readers when `begin_write`
                // returned, and it has no generation since then, so no reader starts. `transfer` waits for the copy.
                unsafe {
                    let bytes = self.bytes_mut(copy.host, &piece);
                    lane.download(chunk, offset + piece.start as u64, bytes)
                }
            }),
            false => Outcome::Failed(Failure::CopyFailed),
        };
        let mut layer_blocks = self.lock();
        for copy in copies {
            let layer_block = &mut layer_blocks[copy.host.index()];
            layer_block.pending_write = None;
            if matches!(outcome, Outcome::Done { .. }) {
                layer_block.generation = Some(copy.generation);
            }
        }
        outcome
    }

    /// Waits until the blocks have no readers and clears their generations. Returns false if the tier is
    /// stopping.
    fn begin_write(&self, copies: &[TierCopy]) -> bool {
        let is_read = |layer_blocks: &mut Vec<LayerBlock>| {
            !self.is_stopping() && copies.iter().any(|copy| layer_blocks[copy.host.index()].readers > 0)
        };
        let layer_blocks = self.reader_done.wait_while(self.lock(), is_read);
        let mut layer_blocks = layer_blocks.expect("no copy panics with the tier locked");
        copies.iter().for_each(|copy| layer_blocks[copy.host.index()].generation = None);
        !self.is_stopping()
    }

    /// Copies blocks to the device. Refused if one does not have the expected generation at this moment.
    pub(crate) fn copy_in(
        &self,
        lane: &mut PoolLane<'_>,
        rank: CopyPriority,
        copies: &[TierCopy],
    ) -> Outcome {
        if !self.begin_read(copies) {
            return Outcome::Failed(Failure::Refused);
        }
        let outcome = self.transfer((&self.links.to_device, rank), lane, copies, |lane, copy, piece| {
            let (chunk, offset) = copy.device;
            // SAFETY: this copy counts as a reader of the block, and a writer waits until it has ended. `transfer`
            // waits for the copy.
            unsafe {
                let bytes = self.bytes(copy.host, &piece);
                lane.upload(&[chunk], offset + piece.start as u64, bytes, Caching::Ordinary)
            }
        });
        if let Some(at) = self.faults.corrupt_index(copies.len()) {
            self.invert_layer_block(lane, copies[at].device);
        }
        let mut layer_blocks = self.lock();
        copies.iter().for_each(|copy| layer_blocks[copy.host.index()].readers -= 1);
        drop(layer_blocks);
        self.reader_done.notify_all();
        outcome
    }

    /// Inverts the bytes that were copied (an injected fault).
    fn invert_layer_block(&self, lane: &mut PoolLane<'_>, (chunk, offset): (ChunkId, u64)) {
        let mut bytes = vec![0; self.layer_block_bytes];
        let read = lane.read(chunk, offset, &mut bytes);
        bytes.iter_mut().for_each(|byte| *byte = !*byte);
        let written = read.and_then(|()| lane.write(chunk, offset, &bytes, Caching::Ordinary));
        written.expect("what was just copied is there");
    }

    fn begin_read(&self, copies: &[TierCopy]) -> bool {
        let mut layer_blocks = self.lock();
        let there =
            copies.iter().all(|copy| layer_blocks[copy.host.index()].generation == Some(copy.generation));
        if there {
            copies.iter().for_each(|copy| layer_blocks[copy.host.index()].readers += 1);
        }
        there
    }

    /// Runs one transfer over the link, block by block, and waits for its end.
    fn transfer(
        &self,
        (link, rank): (&PacedLink, CopyPriority),
        lane: &mut PoolLane<'_>,
        copies: &[TierCopy],
        copy: impl Fn(&mut PoolLane<'_>, &TierCopy, Range<usize>) -> Result<(), PoolError>,
    ) -> Outcome {
        let begun = Instant::now();
        let (fails, bytes) = (self.faults.should_fail_copy(), copies.len() * self.layer_block_bytes);
        let mut transfer = link.begin(rank);
        let passed = transfer.transfer(bytes, true, |piece| {
            split_at_blocks(piece, self.layer_block_bytes).try_for_each(|(at, part)| {
                if part.start == 0 {
                    self.faults.delay();
                }
                let whole = part.end == self.layer_block_bytes;
                let copied = copy(lane, &copies[at], part).is_ok();
                if copied && !(fails && whole) && !self.is_stopping() {
                    Ok(())
                } else {
                    Err(Failure::CopyFailed)
                }
            })
        });
        // Also after a failure: the copies that began still use the blocks.
        let finished = lane.finish().map_err(|_| Failure::CopyFailed);
        match passed.and(finished) {
            Ok(()) => {
                let taken = begun.elapsed().saturating_sub(transfer.waited());
                Outcome::Done { bytes: bytes as u64, duration_ns: taken.as_nanos() as u64 }
            }
            Err(failure) => Outcome::Failed(failure),
        }
    }

    /// Returns part of a block.
    ///
    /// # Safety
    /// The block is not written during the slice's lifetime.
    unsafe fn bytes(&self, layer_block: HostBlockId, part: &Range<usize>) -> &[u8] {
        // SAFETY: the range is within the region; the caller excludes writes.
        unsafe { std::slice::from_raw_parts(self.layer_block_ptr(layer_block, part), part.len()) }
    }

    /// Returns part of a block.
    ///
    /// # Safety
    /// The block is not accessed in any other way during the slice's lifetime.
    #[expect(clippy::mut_from_ref, reason = "the tier hands out disjoint blocks")]
    unsafe fn bytes_mut(&self, layer_block: HostBlockId, part: &Range<usize>) -> &mut [u8] {
        // SAFETY: the range is within the region; the caller excludes other accesses.
        unsafe { std::slice::from_raw_parts_mut(self.layer_block_ptr(layer_block, part), part.len()) }
    }

    /// Returns the address of a part of a block.
    fn layer_block_ptr(&self, layer_block: HostBlockId, part: &Range<usize>) -> *mut u8 {
        assert!(part.end <= self.layer_block_bytes, "a part lies within its block");
        self.region.at(layer_block.index() * self.layer_block_bytes + part.start, part.len())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<LayerBlock>> {
        self.layer_blocks.lock().expect("no copy panics with the tier locked")
    }
}

/// Splits `range` of consecutive blocks into the number of each block and the part of it.
fn split_at_blocks(
    range: Range<usize>,
    layer_block_bytes: usize,
) -> impl Iterator<Item = (usize, Range<usize>)> {
    let Range { mut start, end } = range;
    std::iter::from_fn(move || {
        let (at, from) = (start / layer_block_bytes, start % layer_block_bytes);
        let to = layer_block_bytes.min(from + (end - start));
        start += to - from;
        (to > from).then_some((at, from..to))
    })
}

#[cfg(test)]
mod tests {
    use super::split_at_blocks;

    #[test]
    fn a_piece_of_a_transfer_is_cut_where_layer_blocks_end() {
        let cut = |range| split_at_blocks(range, 10).collect::<Vec<_>>();
        assert_eq!(cut(0..10), [(0, 0..10)]);
        assert_eq!(cut(7..23), [(0, 7..10), (1, 0..10), (2, 0..3)]);
        assert_eq!(cut(30..30), []);
    }
}
