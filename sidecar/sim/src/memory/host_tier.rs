//! The host tier: swaps layer blocks out under a generation and back in.

use std::collections::BTreeSet;

use sluice_policy::action::LayerBlockSwap;
use sluice_policy::event::Failure;
use sluice_policy::ids::{ChunkId, HostBlockId};
use sluice_ports::fake_memory::{HostBlock, LayerBlockTokens};

use crate::device::{Detail, LayerBlockAccess, SimDevice};

impl SimDevice {
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
            let layer_block = HostBlock { generation, tokens: self.tokens(swap) };
            self.memory.set_host_block(swap.host, layer_block);
        }
        if fails { Err(Failure::CopyFailed) } else { Ok(()) }
    }

    /// Copies blocks from the host. A failed copy leaves the blocks empty.
    pub(super) fn swap_in(&mut self, swaps: &[LayerBlockSwap]) -> Result<(), Failure> {
        self.check_swaps(swaps, LayerBlockAccess::Write)?;
        if !self.has_no_pending_writes(swaps) {
            return Err(Failure::Refused);
        }
        if self.detail == Detail::Fingerprints && !swaps.iter().all(|swap| self.is_carried(swap)) {
            return Err(Failure::Refused);
        }
        let fails = self.rng.chance(self.faults.copy_fails_permille);
        let layer_blocks = if self.detail == Detail::Fingerprints { swaps } else { &[] };
        for (at, swap) in layer_blocks.iter().enumerate() {
            let next = self.faults.swap_in_wrong_layer_block && at == 0;
            let tokens = if fails { LayerBlockTokens::default() } else { self.host_tokens(swap.host, next) };
            *self.memory.layer_block_mut(swap.layer_block).ok_or(Failure::Refused)? = tokens;
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
            let once = hosts.insert(swap.host) && layer_blocks.insert(self.place(swap));
            once && swap.host.0 < self.memory.host_blocks() && self.is_backed(swap)
        };
        if !refused && swaps.iter().all(fits) { Ok(()) } else { Err(Failure::Refused) }
    }

    fn is_backed(&self, swap: &LayerBlockSwap) -> bool {
        self.memory.is_backed(swap.layer_block, swap.chunk) && !self.is_filling(swap.chunk)
    }

    /// Returns the chunk of the device block, and the position there.
    pub(crate) fn place(&self, swap: &LayerBlockSwap) -> (ChunkId, u32) {
        (swap.chunk, self.memory.position(swap.layer_block))
    }

    /// Whether the host block has the generation that the swap names.
    pub(crate) fn is_carried(&self, swap: &LayerBlockSwap) -> bool {
        self.memory.host_block(swap.host).generation == Some(swap.generation)
    }

    /// Returns the contents of a device block.
    pub(crate) fn tokens(&self, swap: &LayerBlockSwap) -> LayerBlockTokens {
        self.memory.tokens(self.place(swap))
    }

    /// Returns the contents of a host block, or of the next one if `next`.
    pub(crate) fn host_tokens(&self, layer_block: HostBlockId, next: bool) -> LayerBlockTokens {
        let at = (layer_block.0 + u32::from(next)) % self.memory.host_blocks();
        self.memory.host_block(HostBlockId(at)).tokens
    }
}
