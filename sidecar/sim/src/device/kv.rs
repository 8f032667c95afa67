//! KV that is copied beside steps: into buffers, and back to the host tier on the link's other direction.

use std::collections::BTreeSet;

use sluice_policy::action::{BlockSwap, Fetch, Spill};
use sluice_policy::event::Failure;
use sluice_policy::ids::{ActionId, ChunkId, HostBlockId, Nanos};

use super::copies::CopyOp;
use super::{Detail, Device, HostBlock, Tokens, completion};
use crate::machine::{Direction, LinkTransfer};

/// KV that is to go to the host.
#[derive(Clone, Debug)]
pub(super) struct QueuedWriteBack {
    pub(super) id: ActionId,
    swaps: Vec<BlockSwap>,
    /// When its blocks are needed, if anybody waits for them.
    pub(super) due: Option<Nanos>,
    pub(super) since: Nanos,
}

/// KV on its way to the host.
#[derive(Clone, Debug)]
pub(super) struct RunningWriteBack {
    id: ActionId,
    swaps: Vec<BlockSwap>,
    /// What it was when the copy began.
    tokens: Vec<Tokens>,
    pub(super) transfer: LinkTransfer,
    should_fail: bool,
}

/// What an order does to a block of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockAccess {
    /// Reads it: nobody may write it meanwhile.
    Read,
    /// Writes it, one order at a time.
    Write,
    /// Writes it; other fetches may too, one after the other.
    Fetch,
}

impl Device {
    /// Queues a fetch.
    pub(crate) fn queue_fetch(&mut self, (id, due): (ActionId, Option<Nanos>), fetch: Fetch) {
        let layers = self.geometry.layers();
        let layer = fetch.after.iter().map(|(layer, _)| *layer).chain([fetch.layer]).all(|l| l.0 < layers);
        let settled = self.has_no_pending_writes_for(&fetch.blocks, Some(fetch.buffer));
        if layer && self.check_swaps(&fetch.blocks, BlockAccess::Fetch).is_ok() && settled {
            self.queue_copy((id, due), CopyOp::Kv(fetch));
        } else {
            self.fail(id, Failure::Refused);
        }
    }

    /// Queues a spill.
    pub(crate) fn queue_spill(&mut self, (id, due): (ActionId, Option<Nanos>), spill: Spill) {
        let layer = spill.layer.0 < self.geometry.layers();
        if layer
            && self.check_swaps(&spill.blocks, BlockAccess::Fetch).is_ok()
            && self.has_no_pending_writes(&spill.blocks)
        {
            self.queue_copy((id, due), CopyOp::Spill(spill));
        } else {
            self.fail(id, Failure::Refused);
        }
    }

    /// Queues a write-back.
    pub(crate) fn queue_write_back(&mut self, (id, due): (ActionId, Option<Nanos>), swaps: Vec<BlockSwap>) {
        if self.check_swaps(&swaps, BlockAccess::Read).is_ok() && self.has_no_pending_writes(&swaps) {
            self.write_backs.push_back(QueuedWriteBack { id, swaps, due, since: self.clock() });
            self.kick();
        } else {
            self.fail(id, Failure::Refused);
        }
    }

    /// Blocks of buffers that are read or written.
    fn buffer_swaps(&self) -> impl Iterator<Item = &BlockSwap> {
        self.all_copies().flat_map(CopyOp::blocks)
    }

    /// Blocks of other buffers than this one that go to the host.
    fn spill_swaps(&self, buffer: Option<u8>) -> impl Iterator<Item = &BlockSwap> {
        self.all_copies().flat_map(move |copy| match copy {
            CopyOp::Spill(spill) if Some(spill.buffer) != buffer => &spill.blocks[..],
            _ => &[],
        })
    }

    fn write_back_swaps(&self) -> impl Iterator<Item = &BlockSwap> {
        let running = self.running_write_back.iter().flat_map(|writing| &writing.swaps);
        running.chain(self.write_backs.iter().flat_map(|one| &one.swaps))
    }

    /// Chunks of which a block is fetched or written back, now or later.
    pub(crate) fn kv_chunks(&self) -> BTreeSet<ChunkId> {
        self.buffer_swaps().chain(self.write_back_swaps()).map(|swap| swap.chunk).collect()
    }

    /// No write-back or spill that waits or runs names one of these host blocks.
    pub(crate) fn has_no_pending_writes(&self, swaps: &[BlockSwap]) -> bool {
        self.has_no_pending_writes_for(swaps, None)
    }

    /// The same for an order that comes after all spills out of this buffer.
    fn has_no_pending_writes_for(&self, swaps: &[BlockSwap], buffer: Option<u8>) -> bool {
        if self.detail == Detail::Times {
            return true;
        }
        let promised = self.write_back_swaps().chain(self.spill_swaps(buffer)).map(|swap| swap.host);
        let promised: BTreeSet<HostBlockId> = promised.collect();
        swaps.iter().all(|swap| !promised.contains(&swap.host))
    }

    /// Places, as chunk and position, that may not be used so because of copies beside steps.
    pub(crate) fn busy_blocks(&self, to: BlockAccess) -> BTreeSet<(ChunkId, u32)> {
        let per_chunk = self.geometry.blocks_per_chunk();
        let place = |swap: &BlockSwap| (swap.chunk, swap.block.0 % per_chunk);
        match to {
            BlockAccess::Read => self.buffer_swaps().map(place).collect(),
            BlockAccess::Fetch => self.write_back_swaps().map(place).collect(),
            BlockAccess::Write => self.buffer_swaps().chain(self.write_back_swaps()).map(place).collect(),
        }
    }

    /// What a fetch that begins now brings; none when a host block does not carry its generation.
    pub(super) fn read_host_blocks(&self, swaps: &[BlockSwap]) -> Option<Vec<Tokens>> {
        if self.detail == Detail::Times {
            return Some(Vec::new());
        }
        let carried = |swap: &BlockSwap| self.host[swap.host.index()].generation == Some(swap.generation);
        let tokens = |(at, swap): (usize, &BlockSwap)| {
            self.host_tokens(swap.host, self.faults.swap_in_wrong_block && at == 0)
        };
        swaps.iter().all(carried).then(|| swaps.iter().enumerate().map(tokens).collect())
    }

    pub(super) fn write_blocks(&mut self, swaps: &[BlockSwap], tokens: &[Tokens]) {
        let per_chunk = self.geometry.blocks_per_chunk();
        for (swap, tokens) in swaps.iter().zip(tokens) {
            let block = self.chunk_block_mut(swap.chunk, swap.block.0 % per_chunk);
            *block.expect("a chunk stays while its blocks are copied") = *tokens;
        }
    }

    /// The first write-back begins. Its host blocks carry nothing from now on.
    pub(super) fn start_write_back(&mut self) {
        let Some(QueuedWriteBack { id, swaps, .. }) = self.write_backs.pop_front() else { return };
        let bytes = swaps.len() as u64 * self.geometry.block_bytes;
        let passage = self.start_transfer(self.clock, Direction::Out, bytes);
        let fails = self.rng.chance(self.faults.copy_fails_permille);
        let tokens = self.start_host_write(&swaps);
        self.running_write_back =
            Some(RunningWriteBack { id, swaps, tokens, transfer: passage, should_fail: fails });
    }

    /// What goes to the host from now on. Its host blocks carry nothing meanwhile.
    pub(super) fn start_host_write(&mut self, swaps: &[BlockSwap]) -> Vec<Tokens> {
        let blocks = if self.detail == Detail::Fingerprints { swaps } else { &[] };
        let tokens = blocks.iter().map(|swap| self.tokens(swap)).collect();
        blocks.iter().for_each(|swap| self.host[swap.host.index()] = HostBlock::default());
        tokens
    }

    /// It has arrived. What somebody wrote meanwhile is torn: nobody finds it.
    pub(super) fn finish_host_write(&mut self, swaps: &[BlockSwap], tokens: Vec<Tokens>) {
        for (swap, tokens) in swaps.iter().zip(tokens) {
            let torn = self.tokens(swap) != tokens;
            let tokens = if torn { Tokens::default() } else { tokens };
            self.host[swap.host.index()] = HostBlock { generation: Some(swap.generation), tokens };
        }
    }

    pub(super) fn end_write_back(&mut self) {
        let Some(RunningWriteBack { id, swaps, tokens, transfer: passage, should_fail: fails }) =
            self.running_write_back.take()
        else {
            return;
        };
        if fails {
            return self.fail(id, Failure::CopyFailed);
        }
        self.finish_host_write(&swaps, tokens);
        let bytes = swaps.len() as u64 * self.geometry.block_bytes;
        self.completions.push_back(completion(id, bytes, passage.ns));
    }
}
