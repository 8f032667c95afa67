//! The host tier: room for KV in host memory, and which generation each block of it carries. The pool's thread and the
//! lanes of copies share it.
//!
//! A block is written by the one order that was promised it, once nobody reads it any more; from then on until its last
//! byte is there it carries nothing, so nobody begins to read it.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;

use rustix::io::Errno;
use sluice_policy::copy_priority::CopyPriority;
use sluice_policy::event::{Failure, Outcome};
use sluice_policy::ids::{ChunkId, Generation, HostBlockId};

use crate::faults::SharedFaults;
use crate::pool::{ChunkPool, PoolError};
use crate::region::Region;
use crate::transfers::{PacedLink, PacedLinks};

/// One block between a place in a chunk, `(chunk, offset)`, and one in the tier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TierCopy {
    pub(crate) host: HostBlockId,
    /// The name of what the host block holds.
    pub(crate) generation: Generation,
    pub(crate) device: (ChunkId, u64),
}

/// An order that was given a host block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PendingWrite {
    /// It copies out of this buffer: fetches into the buffer come after it.
    buffer: Option<u8>,
}

/// What is known of a host block.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    /// `None` = nothing that anybody may read.
    generation: Option<Generation>,
    /// An order writes it, or will.
    pending_write: Option<PendingWrite>,
    /// Copies that read it now.
    readers: u32,
}

/// The tier's bytes, what they are, and the links between them and the device. All memory is taken when it is made.
#[derive(Debug)]
pub(crate) struct HostTier {
    region: Region,
    block_bytes: usize,
    links: PacedLinks,
    faults: SharedFaults,
    blocks: Mutex<Vec<Block>>,
    /// A copy out of the tier has ended.
    reader_done: Condvar,
    stopping: AtomicBool,
}

impl HostTier {
    /// `bytes` are whole blocks.
    pub(crate) fn new(
        bytes: u64,
        block_bytes: u64,
        links: PacedLinks,
        faults: SharedFaults,
    ) -> Result<HostTier, Errno> {
        let region = Region::new(bytes)?;
        let blocks = vec![Block::default(); region.bytes().len() / block_bytes as usize];
        Ok(HostTier {
            region,
            block_bytes: block_bytes as usize,
            links,
            faults,
            blocks: Mutex::new(blocks),
            reader_done: Condvar::new(),
            stopping: AtomicBool::new(false),
        })
    }

    /// The memory goes away: copies end at once, whatever the pace of the link.
    pub(crate) fn stop(&self) {
        let blocks = self.lock();
        self.stopping.store(true, Ordering::Relaxed);
        drop(blocks);
        self.reader_done.notify_all();
        self.links.close();
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    pub(crate) fn contains(&self, block: HostBlockId) -> bool {
        block.index() < self.lock().len()
    }

    /// No order writes one of these blocks or will, but for one that copies out of this buffer.
    pub(crate) fn has_no_pending_write(&self, copies: &[TierCopy], buffer: Option<u8>) -> bool {
        let blocks = self.lock();
        let mut promises = copies.iter().filter_map(|copy| blocks[copy.host.index()].pending_write);
        promises.all(|promise| promise.buffer.is_some() && promise.buffer == buffer)
    }

    /// Gives all of these blocks to one order, which [`Tier::copy_out`] will carry out, perhaps out of a buffer; false when another
    /// one has one.
    pub(crate) fn reserve_write(&self, copies: &[TierCopy], buffer: Option<u8>) -> bool {
        let mut blocks = self.lock();
        let free = copies.iter().all(|copy| blocks[copy.host.index()].pending_write.is_none());
        if free {
            let promised = Some(PendingWrite { buffer });
            copies.iter().for_each(|copy| blocks[copy.host.index()].pending_write = promised);
        }
        free
    }

    /// The order will not be carried out: the blocks carry what they carried.
    pub(crate) fn cancel_write(&self, copies: &[TierCopy]) {
        let mut blocks = self.lock();
        copies.iter().for_each(|copy| blocks[copy.host.index()].pending_write = None);
    }

    /// Copies blocks to the host that were promised to this order. They lose what they carried before the first byte and
    /// carry their generations after the last one of all.
    pub(crate) fn copy_out(&self, pool: &ChunkPool, rank: CopyPriority, copies: &[TierCopy]) -> Outcome {
        let may = self.begin_write(copies);
        let outcome = match may {
            true => self.transfer((&self.links.to_host, rank), copies, |copy, piece| {
                let (chunk, offset) = copy.device;
                // SAFETY: the block was promised to this order alone, nobody read it when `empty` returned, and from
                // then on it carries nothing, so that no reader begins.
                let bytes = unsafe { self.bytes_mut(copy.host, &piece) };
                pool.read(chunk, offset + piece.start as u64, bytes)
            }),
            false => Outcome::Failed(Failure::CopyFailed),
        };
        let mut blocks = self.lock();
        for copy in copies {
            let block = &mut blocks[copy.host.index()];
            block.pending_write = None;
            if matches!(outcome, Outcome::Done { .. }) {
                block.generation = Some(copy.generation);
            }
        }
        outcome
    }

    /// Waits until nobody reads the blocks and takes what they carry from them. False: the memory goes away.
    fn begin_write(&self, copies: &[TierCopy]) -> bool {
        let is_read = |blocks: &mut Vec<Block>| {
            !self.is_stopping() && copies.iter().any(|copy| blocks[copy.host.index()].readers > 0)
        };
        let blocks = self.reader_done.wait_while(self.lock(), is_read);
        let mut blocks = blocks.expect("no copy panics with the tier locked");
        copies.iter().for_each(|copy| blocks[copy.host.index()].generation = None);
        !self.is_stopping()
    }

    /// Copies blocks to the device. Refused when one does not carry its generation at this moment.
    pub(crate) fn copy_in(&self, pool: &ChunkPool, rank: CopyPriority, copies: &[TierCopy]) -> Outcome {
        if !self.begin_read(copies) {
            return Outcome::Failed(Failure::Refused);
        }
        let outcome = self.transfer((&self.links.to_device, rank), copies, |copy, piece| {
            let (chunk, offset) = copy.device;
            // SAFETY: this copy is counted as a reader of the block, and a writer waits until it has left.
            let bytes = unsafe { self.bytes(copy.host, &piece) };
            pool.write(chunk, offset + piece.start as u64, bytes)
        });
        if let Some(at) = self.faults.corrupt_index(copies.len()) {
            self.invert_block(pool, copies[at].device);
        }
        let mut blocks = self.lock();
        copies.iter().for_each(|copy| blocks[copy.host.index()].readers -= 1);
        drop(blocks);
        self.reader_done.notify_all();
        outcome
    }

    /// A fault: inverts what was copied.
    fn invert_block(&self, pool: &ChunkPool, (chunk, offset): (ChunkId, u64)) {
        let mut bytes = vec![0; self.block_bytes];
        let read = pool.read(chunk, offset, &mut bytes);
        bytes.iter_mut().for_each(|byte| *byte = !*byte);
        let written = read.and_then(|()| pool.write(chunk, offset, &bytes));
        written.expect("what was just copied is there");
    }

    fn begin_read(&self, copies: &[TierCopy]) -> bool {
        let mut blocks = self.lock();
        let there = copies.iter().all(|copy| blocks[copy.host.index()].generation == Some(copy.generation));
        if there {
            copies.iter().for_each(|copy| blocks[copy.host.index()].readers += 1);
        }
        there
    }

    /// One transfer over the link, block after block.
    fn transfer(
        &self,
        (link, rank): (&PacedLink, CopyPriority),
        copies: &[TierCopy],
        copy: impl Fn(&TierCopy, Range<usize>) -> Result<(), PoolError>,
    ) -> Outcome {
        let begun = Instant::now();
        let (fails, bytes) = (self.faults.should_fail_copy(), copies.len() * self.block_bytes);
        let mut transfer = link.begin(rank);
        let passed = transfer.transfer(bytes, true, |piece| {
            split_at_blocks(piece, self.block_bytes).try_for_each(|(at, part)| {
                if part.start == 0 {
                    self.faults.delay();
                }
                let whole = part.end == self.block_bytes;
                let copied = copy(&copies[at], part).is_ok();
                if copied && !(fails && whole) && !self.is_stopping() {
                    Ok(())
                } else {
                    Err(Failure::CopyFailed)
                }
            })
        });
        match passed {
            Ok(()) => {
                let taken = begun.elapsed().saturating_sub(transfer.waited());
                Outcome::Done { bytes: bytes as u64, duration_ns: taken.as_nanos() as u64 }
            }
            Err(failure) => Outcome::Failed(failure),
        }
    }

    /// Part of a block.
    ///
    /// # Safety
    /// Nobody writes the block while the slice lives.
    unsafe fn bytes(&self, block: HostBlockId, part: &Range<usize>) -> &[u8] {
        // SAFETY: the place lies within the region; the caller vouches for the bytes.
        unsafe { std::slice::from_raw_parts(self.block_ptr(block, part), part.len()) }
    }

    /// Part of a block.
    ///
    /// # Safety
    /// Nobody else reads or writes the block while the slice lives.
    #[expect(clippy::mut_from_ref, reason = "the tier hands out disjoint blocks")]
    unsafe fn bytes_mut(&self, block: HostBlockId, part: &Range<usize>) -> &mut [u8] {
        // SAFETY: the place lies within the region; the caller vouches for the bytes.
        unsafe { std::slice::from_raw_parts_mut(self.block_ptr(block, part), part.len()) }
    }

    /// Where part of a block lies.
    fn block_ptr(&self, block: HostBlockId, part: &Range<usize>) -> *mut u8 {
        assert!(part.end <= self.block_bytes, "a part lies within its block");
        self.region.at(block.index() * self.block_bytes + part.start, part.len())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Block>> {
        self.blocks.lock().expect("no copy panics with the tier locked")
    }
}

/// `range` of blocks that follow each other: the number of each block, and the part of it.
fn split_at_blocks(range: Range<usize>, block_bytes: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let Range { mut start, end } = range;
    std::iter::from_fn(move || {
        let (at, from) = (start / block_bytes, start % block_bytes);
        let to = block_bytes.min(from + (end - start));
        start += to - from;
        (to > from).then_some((at, from..to))
    })
}

#[cfg(test)]
mod tests {
    use super::split_at_blocks;

    #[test]
    fn a_piece_of_a_transfer_is_cut_where_blocks_end() {
        let cut = |range| split_at_blocks(range, 10).collect::<Vec<_>>();
        assert_eq!(cut(0..10), [(0, 0..10)]);
        assert_eq!(cut(7..23), [(0, 7..10), (1, 0..10), (2, 0..3)]);
        assert_eq!(cut(30..30), []);
    }
}
