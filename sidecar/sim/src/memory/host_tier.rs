//! The host tier: swaps layer blocks out under a generation and back in.

use std::collections::BTreeSet;

use sluice_policy::action::{Address, LayerBlockSwap};
use sluice_policy::event::Failure;
use sluice_policy::ids::{HostBlockId, KvChunkId};

use crate::device::{Content, Detail, Device, HostBlock, LayerBlockAccess, Tokens};

impl Device {
    /// Copies blocks to the host. A failed copy leaves the host blocks without a generation.
    pub(super) fn swap_out(&mut self, swaps: &[LayerBlockSwap]) -> Result<(), Failure> {
        self.check_swaps(swaps, LayerBlockAccess::Read)?;
        if !self.has_no_pending_writes(swaps) {
            return Err(Failure::Refused);
        }
        let fails = self.rng.chance(self.faults.copy_fails_permille);
        let layer_blocks = if self.detail == Detail::Fingerprints { swaps } else { &[] };
        for swap in layer_blocks {
            let generation = Some(swap.generation).filter(|_| !fails);
            self.host[swap.host.index()] = HostBlock { generation, tokens: self.tokens(swap) };
        }
        if fails { Err(Failure::CopyFailed) } else { Ok(()) }
    }

    /// Copies blocks from the host. A failed copy leaves the blocks empty.
    pub(super) fn swap_in(&mut self, swaps: &[LayerBlockSwap]) -> Result<(), Failure> {
        self.check_swaps(swaps, LayerBlockAccess::Write)?;
        if !self.has_no_pending_writes(swaps) {
            return Err(Failure::Refused);
        }
        let carried =
            |swap: &LayerBlockSwap| self.host[swap.host.index()].generation == Some(swap.generation);
        if self.detail == Detail::Fingerprints && !swaps.iter().all(carried) {
            return Err(Failure::Refused);
        }
        let fails = self.rng.chance(self.faults.copy_fails_permille);
        let layer_blocks = if self.detail == Detail::Fingerprints { swaps } else { &[] };
        for (at, swap) in layer_blocks.iter().enumerate() {
            let next = self.faults.swap_in_wrong_layer_block && at == 0;
            let tokens = if fails { Tokens::default() } else { self.host_tokens(swap.host, next) };
            *self.layer_block_mut(swap.layer_block).ok_or(Failure::Refused)? = tokens;
        }
        if fails { Err(Failure::CopyFailed) } else { Ok(()) }
    }

    /// Refuses swaps unless every block is backed and free for this access, every host block exists, and no block is
    /// named twice.
    pub(crate) fn check_swaps(
        &mut self,
        swaps: &[LayerBlockSwap],
        to: LayerBlockAccess,
    ) -> Result<(), Failure> {
        let refused = self.rng.chance(self.faults.refused_permille);
        if self.detail == Detail::Times {
            return if refused { Err(Failure::Refused) } else { Ok(()) };
        }
        let (mut hosts, mut layer_blocks) = (BTreeSet::new(), self.busy_layer_blocks(to));
        let fits = |swap: &LayerBlockSwap| {
            let position = swap.layer_block.0 % self.geometry.layer_blocks_per_chunk();
            let once = hosts.insert(swap.host) && layer_blocks.insert((swap.chunk, position));
            once && swap.host.index() < self.host.len() && self.is_backed(swap)
        };
        if !refused && swaps.iter().all(fits) { Ok(()) } else { Err(Failure::Refused) }
    }

    fn is_backed(&self, swap: &LayerBlockSwap) -> bool {
        let kv_chunk = Address::Kv(KvChunkId(swap.layer_block.0 / self.geometry.layer_blocks_per_chunk()));
        self.table.get(&kv_chunk) == Some(&swap.chunk) && !self.is_filling(swap.chunk)
    }

    /// Returns the contents of a device block; the chunk's content does not change.
    pub(crate) fn tokens(&self, swap: &LayerBlockSwap) -> Tokens {
        let position = swap.layer_block.0 % self.geometry.layer_blocks_per_chunk();
        match self.chunks.get(&swap.chunk) {
            Some(Content::Kv(layer_blocks)) => layer_blocks[position as usize],
            _ => Tokens::default(),
        }
    }

    /// Returns the contents of a host block, or of the next one if `next`.
    pub(crate) fn host_tokens(&self, layer_block: HostBlockId, next: bool) -> Tokens {
        let at = (layer_block.index() + usize::from(next)) % self.host.len();
        self.host[at].tokens
    }
}
