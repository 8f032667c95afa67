//! The host tier: swaps layer-blocks out under a generation and back in.

use std::collections::BTreeSet;

use sluice_policy::action::{Address, BlockSwap};
use sluice_policy::event::Failure;
use sluice_policy::ids::{FrameId, HostBlockId};

use crate::device::{BlockAccess, Content, Detail, Device, HostBlock, Tokens};

impl Device {
    /// Copies blocks to the host. A failed copy leaves the host blocks without a generation.
    pub(super) fn swap_out(&mut self, swaps: &[BlockSwap]) -> Result<(), Failure> {
        self.check_swaps(swaps, BlockAccess::Read)?;
        if !self.has_no_pending_writes(swaps) {
            return Err(Failure::Refused);
        }
        let fails = self.rng.chance(self.faults.copy_fails_permille);
        let blocks = if self.detail == Detail::Fingerprints { swaps } else { &[] };
        for swap in blocks {
            let generation = Some(swap.generation).filter(|_| !fails);
            self.host[swap.host.index()] = HostBlock { generation, tokens: self.tokens(swap) };
        }
        if fails { Err(Failure::CopyFailed) } else { Ok(()) }
    }

    /// Copies blocks from the host. A failed copy leaves the blocks empty.
    pub(super) fn swap_in(&mut self, swaps: &[BlockSwap]) -> Result<(), Failure> {
        self.check_swaps(swaps, BlockAccess::Write)?;
        if !self.has_no_pending_writes(swaps) {
            return Err(Failure::Refused);
        }
        let carried = |swap: &BlockSwap| self.host[swap.host.index()].generation == Some(swap.generation);
        if self.detail == Detail::Fingerprints && !swaps.iter().all(carried) {
            return Err(Failure::Refused);
        }
        let fails = self.rng.chance(self.faults.copy_fails_permille);
        let blocks = if self.detail == Detail::Fingerprints { swaps } else { &[] };
        for (at, swap) in blocks.iter().enumerate() {
            let next = self.faults.swap_in_wrong_block && at == 0;
            let tokens = if fails { Tokens::default() } else { self.host_tokens(swap.host, next) };
            *self.block_mut(swap.block).ok_or(Failure::Refused)? = tokens;
        }
        if fails { Err(Failure::CopyFailed) } else { Ok(()) }
    }

    /// Refuses swaps unless every block is backed and free for this access, every host block exists, and no block is
    /// named twice.
    pub(crate) fn check_swaps(&mut self, swaps: &[BlockSwap], to: BlockAccess) -> Result<(), Failure> {
        let refused = self.rng.chance(self.faults.refused_permille);
        if self.detail == Detail::Times {
            return if refused { Err(Failure::Refused) } else { Ok(()) };
        }
        let (mut hosts, mut blocks) = (BTreeSet::new(), self.busy_blocks(to));
        let fits = |swap: &BlockSwap| {
            let position = swap.block.0 % self.geometry.blocks_per_chunk();
            let once = hosts.insert(swap.host) && blocks.insert((swap.chunk, position));
            once && swap.host.index() < self.host.len() && self.is_backed(swap)
        };
        if !refused && swaps.iter().all(fits) { Ok(()) } else { Err(Failure::Refused) }
    }

    fn is_backed(&self, swap: &BlockSwap) -> bool {
        let frame = Address::Kv(FrameId(swap.block.0 / self.geometry.blocks_per_chunk()));
        self.table.get(&frame) == Some(&swap.chunk) && !self.is_filling(swap.chunk)
    }

    /// Returns the contents of a device block; the chunk's content does not change.
    pub(crate) fn tokens(&self, swap: &BlockSwap) -> Tokens {
        let position = swap.block.0 % self.geometry.blocks_per_chunk();
        match self.chunks.get(&swap.chunk) {
            Some(Content::Kv(blocks)) => blocks[position as usize],
            _ => Tokens::default(),
        }
    }

    /// Returns the contents of a host block, or of the next one if `next`.
    pub(crate) fn host_tokens(&self, block: HostBlockId, next: bool) -> Tokens {
        let at = (block.index() + usize::from(next)) % self.host.len();
        self.host[at].tokens
    }
}
