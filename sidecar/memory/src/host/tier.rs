//! The host tier: room for KV in host memory. The owner knows which generation each block of it carries ([`Tier`]); the
//! bytes belong to the pool's thread ([`Room`]), which copies them in the serial queue and needs no engine for it.

use std::ops::Range;

use sluice_policy::action::BlockSwap;
use sluice_policy::event::Failure;
use sluice_policy::ids::{ChunkId, Generation, HostBlockId};

use super::chores::Chore;
use super::fills::distinct;
use super::{HostError, HostMemory};
use crate::faults::SharedFaults;
use crate::pool::{Pool, PoolError};
use crate::region::Region;
use crate::transfers::{Link, Links};

/// What each block of the tier carries: `None` = nothing that anybody may read.
#[derive(Debug)]
pub(super) struct Tier {
    generations: Vec<Option<Generation>>,
}

impl Tier {
    pub(super) fn new(blocks: usize) -> Tier {
        Tier { generations: vec![None; blocks] }
    }

    /// All bytes of these swaps are there: their blocks carry their generations from now on.
    pub(super) fn name(&mut self, swaps: &[BlockSwap]) {
        swaps.iter().for_each(|swap| self.generations[swap.host.index()] = Some(swap.generation));
    }

    fn forget(&mut self, swaps: &[BlockSwap]) {
        swaps.iter().for_each(|swap| self.generations[swap.host.index()] = None);
    }

    fn has(&self, block: HostBlockId) -> bool {
        block.index() < self.generations.len()
    }

    fn carries(&self, swap: &BlockSwap) -> bool {
        self.generations[swap.host.index()] == Some(swap.generation)
    }
}

/// One block between a place in a chunk, `(chunk, offset)`, and one in the tier.
#[derive(Clone, Copy, Debug)]
pub(super) struct TierCopy {
    host: HostBlockId,
    device: (ChunkId, u64),
}

impl HostMemory {
    /// Checked as a whole first. The blocks lose what they carried before the first byte is copied, and carry the new
    /// generation only once the chore has ended well.
    pub(super) fn swap_out(&mut self, swaps: &[BlockSwap]) -> Result<Chore, Failure> {
        let copies = self.tier_copies(swaps)?;
        self.tier.forget(swaps);
        Ok(Chore::SwapOut(copies))
    }

    pub(super) fn swap_in(&self, swaps: &[BlockSwap]) -> Result<Chore, Failure> {
        let copies = self.tier_copies(swaps)?;
        let all_there = swaps.iter().all(|swap| self.tier.carries(swap));
        if all_there { Ok(Chore::SwapIn(copies)) } else { Err(Failure::Refused) }
    }

    /// Every block is where the order says, on both sides, and none is named twice.
    fn tier_copies(&self, swaps: &[BlockSwap]) -> Result<Vec<TierCopy>, Failure> {
        let copies: Option<Vec<TierCopy>> = swaps.iter().map(|swap| self.tier_copy(swap)).collect();
        let copies = copies.ok_or(Failure::Refused)?;
        let once =
            distinct(copies.iter().map(|copy| copy.host)) && distinct(copies.iter().map(|copy| copy.device));
        if once { Ok(copies) } else { Err(Failure::Refused) }
    }

    fn tier_copy(&self, swap: &BlockSwap) -> Option<TierCopy> {
        let device = self.block_place(swap.block, swap.chunk)?;
        self.tier.has(swap.host).then_some(TierCopy { host: swap.host, device })
    }
}

/// The tier's bytes, and the links between it and the device. All of it is taken when it is made.
#[derive(Debug)]
pub(super) struct Room {
    region: Region,
    block_bytes: usize,
    links: Links,
}

impl Room {
    /// As many whole blocks as `bytes` hold.
    pub(super) fn new(bytes: u64, block_bytes: u64, links: Links) -> Result<Room, HostError> {
        let bytes = bytes - bytes % block_bytes;
        let region = Region::new(bytes).map_err(|source| HostError::Tier { bytes, source })?;
        Ok(Room { region, block_bytes: block_bytes as usize, links })
    }

    pub(super) fn blocks(&self) -> usize {
        self.region.bytes().len() / self.block_bytes
    }

    /// Copies blocks to the host. `stops` = the memory is going away.
    pub(super) fn swap_out(
        &mut self,
        pool: &Pool,
        copies: &[TierCopy],
        faults: &SharedFaults,
        stops: impl Fn() -> bool,
    ) -> Result<u64, Failure> {
        let Room { region, block_bytes, links } = self;
        let bytes = region.bytes_mut();
        carry(&links.to_host, *block_bytes, copies, faults, stops, |copy, piece| {
            let ((chunk, offset), host) = (copy.device, place(copy.host, *block_bytes, &piece));
            pool.read(chunk, offset + piece.start as u64, &mut bytes[host])
        })
    }

    /// Copies blocks to the device. `stops` = the memory is going away.
    pub(super) fn swap_in(
        &self,
        pool: &Pool,
        copies: &[TierCopy],
        faults: &SharedFaults,
        stops: impl Fn() -> bool,
    ) -> Result<u64, Failure> {
        let bytes = self.region.bytes();
        carry(&self.links.to_device, self.block_bytes, copies, faults, stops, |copy, piece| {
            let ((chunk, offset), host) = (copy.device, place(copy.host, self.block_bytes, &piece));
            pool.write(chunk, offset + piece.start as u64, &bytes[host])
        })
    }
}

/// Where a piece of a block lies in the tier.
fn place(block: HostBlockId, block_bytes: usize, piece: &Range<usize>) -> Range<usize> {
    let start = block.index() * block_bytes;
    start + piece.start..start + piece.end
}

/// One transfer over the link, block after block; the bytes that it moved.
fn carry(
    link: &Link,
    block_bytes: usize,
    copies: &[TierCopy],
    faults: &SharedFaults,
    stops: impl Fn() -> bool,
    mut copy: impl FnMut(&TierCopy, Range<usize>) -> Result<(), PoolError>,
) -> Result<u64, Failure> {
    let fails = faults.copy_fails();
    link.begin();
    for (at, one) in copies.iter().enumerate() {
        faults.slow();
        let last = at + 1 == copies.len();
        link.carry(block_bytes, last, |piece| copy(one, piece)).map_err(|_| Failure::CopyFailed)?;
        if fails || stops() {
            return Err(Failure::CopyFailed);
        }
    }
    Ok((copies.len() * block_bytes) as u64)
}
