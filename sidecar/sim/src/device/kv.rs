//! Copies of KV concurrent with steps: fetches into buffers, spills out of them, and write-backs to the host tier.

use std::collections::BTreeSet;

use sluice_policy::action::{Fetch, LayerBlockSwap, Spill};
use sluice_policy::event::Failure;
use sluice_policy::ids::{ActionId, ChunkId, HostBlockId, Nanos};
use sluice_ports::fake_memory::{HostBlock, LayerBlockTokens};

use super::copy_op::CopyOp;
use super::write_back::{QueuedWriteBack, RunningWriteBack};
use super::{Detail, SimDevice, completion};
use crate::direction::Direction;

/// How an operation accesses a block of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LayerBlockAccess {
    /// Reads it: no other operation may write it.
    Read,
    /// Writes it, one operation at a time.
    Write,
    /// Writes it; other fetches may write it too, one after the other.
    Fetch,
}

impl SimDevice {
    pub(crate) fn queue_fetch(&mut self, (id, due): (ActionId, Option<Nanos>), fetch: Fetch) {
        let layers = self.geometry.layers();
        let layer = fetch.after.iter().map(|(layer, _)| *layer).chain([fetch.layer]).all(|l| l.0 < layers);
        let settled = self.has_no_pending_writes_for(&fetch.layer_blocks, Some(fetch.buffer));
        if layer && self.check_swaps(&fetch.layer_blocks, LayerBlockAccess::Fetch).is_ok() && settled {
            self.queue_copy((id, due), CopyOp::Kv(fetch));
        } else {
            self.fail(id, Failure::Refused);
        }
    }

    pub(crate) fn queue_spill(&mut self, (id, due): (ActionId, Option<Nanos>), spill: Spill) {
        let layer = spill.layer.0 < self.geometry.layers();
        if layer
            && self.check_swaps(&spill.layer_blocks, LayerBlockAccess::Fetch).is_ok()
            && self.has_no_pending_writes(&spill.layer_blocks)
        {
            self.queue_copy((id, due), CopyOp::Spill(spill));
        } else {
            self.fail(id, Failure::Refused);
        }
    }

    pub(crate) fn queue_write_back(
        &mut self,
        (id, due): (ActionId, Option<Nanos>),
        swaps: Vec<LayerBlockSwap>,
    ) {
        if self.check_swaps(&swaps, LayerBlockAccess::Read).is_ok() && self.has_no_pending_writes(&swaps) {
            self.write_backs.push_back(QueuedWriteBack { id, swaps, due, since: self.clock() });
            self.kick();
        } else {
            self.fail(id, Failure::Refused);
        }
    }

    /// Returns the blocks of buffers that copies read or write.
    fn buffer_swaps(&self) -> impl Iterator<Item = &LayerBlockSwap> {
        self.all_copies().flat_map(CopyOp::layer_blocks)
    }

    /// Returns the blocks that spills out of buffers other than `buffer` copy to the host.
    fn spill_swaps(&self, buffer: Option<u8>) -> impl Iterator<Item = &LayerBlockSwap> {
        self.all_copies().flat_map(move |copy| match copy {
            CopyOp::Spill(spill) if Some(spill.buffer) != buffer => &spill.layer_blocks[..],
            _ => &[],
        })
    }

    fn write_back_swaps(&self) -> impl Iterator<Item = &LayerBlockSwap> {
        let running = self.running_write_back.iter().flat_map(|writing| &writing.swaps);
        running.chain(self.write_backs.iter().flat_map(|one| &one.swaps))
    }

    /// Returns the chunks with a block in a running or waiting fetch, spill or write-back.
    pub(crate) fn kv_chunks(&self) -> BTreeSet<ChunkId> {
        self.buffer_swaps().chain(self.write_back_swaps()).map(|swap| swap.chunk).collect()
    }

    /// Whether no running or waiting write-back or spill names one of these host blocks.
    pub(crate) fn has_no_pending_writes(&self, swaps: &[LayerBlockSwap]) -> bool {
        self.has_no_pending_writes_for(swaps, None)
    }

    /// Ignores spills out of `buffer`, because the operation starts after they end.
    fn has_no_pending_writes_for(&self, swaps: &[LayerBlockSwap], buffer: Option<u8>) -> bool {
        if self.detail == Detail::Times {
            return true;
        }
        let promised = self.write_back_swaps().chain(self.spill_swaps(buffer)).map(|swap| swap.host);
        let promised: BTreeSet<HostBlockId> = promised.collect();
        swaps.iter().all(|swap| !promised.contains(&swap.host))
    }

    /// Returns the blocks, as chunk and position, that concurrent copies exclude from this access.
    pub(crate) fn busy_layer_blocks(&self, to: LayerBlockAccess) -> BTreeSet<(ChunkId, u32)> {
        let place = |swap: &LayerBlockSwap| self.place(swap);
        match to {
            LayerBlockAccess::Read => self.buffer_swaps().map(place).collect(),
            LayerBlockAccess::Fetch => self.write_back_swaps().map(place).collect(),
            LayerBlockAccess::Write => {
                self.buffer_swaps().chain(self.write_back_swaps()).map(place).collect()
            }
        }
    }

    /// Returns the contents that a fetch copies, or `None` if a host block does not have the expected generation.
    pub(super) fn read_host_blocks(&self, swaps: &[LayerBlockSwap]) -> Option<Vec<LayerBlockTokens>> {
        if self.detail == Detail::Times {
            return Some(Vec::new());
        }
        let tokens = |(at, swap): (usize, &LayerBlockSwap)| {
            self.host_tokens(swap.host, self.faults.swap_in_wrong_layer_block && at == 0)
        };
        swaps.iter().all(|swap| self.is_carried(swap)).then(|| swaps.iter().enumerate().map(tokens).collect())
    }

    pub(super) fn write_layer_blocks(&mut self, swaps: &[LayerBlockSwap], tokens: &[LayerBlockTokens]) {
        for (swap, tokens) in swaps.iter().zip(tokens) {
            let layer_block = self.memory.chunk_layer_block_mut(self.place(swap));
            *layer_block.expect("a chunk stays while its blocks are copied") = *tokens;
        }
    }

    /// Starts the first write-back.
    pub(super) fn start_write_back(&mut self) {
        let Some(QueuedWriteBack { id, swaps, .. }) = self.write_backs.pop_front() else { return };
        let bytes = swaps.len() as u64 * self.geometry.layer_block_bytes;
        let passage = self.start_transfer(self.clock, Direction::Out, bytes);
        let fails = self.rng.chance(self.faults.copy_fails_permille);
        let tokens = self.start_host_write(&swaps);
        self.running_write_back =
            Some(RunningWriteBack { id, swaps, tokens, transfer: passage, should_fail: fails });
    }

    /// Returns the contents to copy. The host blocks have no generation until the copy ends.
    pub(super) fn start_host_write(&mut self, swaps: &[LayerBlockSwap]) -> Vec<LayerBlockTokens> {
        let layer_blocks = if self.detail == Detail::Fingerprints { swaps } else { &[] };
        let tokens = layer_blocks.iter().map(|swap| self.tokens(swap)).collect();
        layer_blocks.iter().for_each(|swap| self.memory.set_host_block(swap.host, HostBlock::default()));
        tokens
    }

    /// Stores the copied contents. Blocks that were overwritten during the copy are torn and stored as empty.
    pub(super) fn finish_host_write(&mut self, swaps: &[LayerBlockSwap], tokens: Vec<LayerBlockTokens>) {
        for (swap, tokens) in swaps.iter().zip(tokens) {
            let torn = self.tokens(swap) != tokens;
            let tokens = if torn { LayerBlockTokens::default() } else { tokens };
            let layer_block = HostBlock { generation: Some(swap.generation), tokens };
            self.memory.set_host_block(swap.host, layer_block);
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
        let bytes = swaps.len() as u64 * self.geometry.layer_block_bytes;
        self.completions.push_back(completion(id, bytes, passage.ns));
    }
}
