//! Checks orders of the host tier against the backend's table: swaps in the serial queue, and fetches, spills
//! and write-backs outside it.

use sluice_policy::action::{Fetch, LayerBlockSwap, Spill};
use sluice_policy::event::Failure;

use super::DeviceMemory;
use super::layer_block_reservations::LayerBlockUse;
use super::operation_refs::all_distinct;
use crate::tier::TierCopy;
use crate::transfers::TransferOrder;

impl DeviceMemory {
    /// Checks all blocks before it reserves any. The blocks lose their generation before the first byte is
    /// copied, and get the new one only if the job succeeds.
    pub(super) fn swap_out(&mut self, swaps: &[LayerBlockSwap]) -> Result<Vec<TierCopy>, Failure> {
        let copies = self.tier_copies(swaps, LayerBlockUse::Read)?;
        if self.tier.reserve_write(&copies, None) { Ok(copies) } else { Err(Failure::Refused) }
    }

    pub(super) fn swap_in(&self, swaps: &[LayerBlockSwap]) -> Result<Vec<TierCopy>, Failure> {
        let copies = self.tier_copies(swaps, LayerBlockUse::Write)?;
        if self.tier.has_no_pending_write(&copies, None) { Ok(copies) } else { Err(Failure::Refused) }
    }

    /// The generations of the host blocks are checked when the copy starts.
    pub(super) fn fetch_order(&mut self, fetch: Fetch) -> Result<TransferOrder, Failure> {
        let copies = self.tier_copies(&fetch.layer_blocks, LayerBlockUse::Fetch)?;
        let layers = usize::from(self.geometry.layers());
        let named = fetch.after.iter().map(|(layer, _)| *layer).chain([fetch.layer]);
        if !named.into_iter().all(|layer| layer.index() < layers)
            || !self.tier.has_no_pending_write(&copies, Some(fetch.buffer))
        {
            return Err(Failure::Refused);
        }
        self.reservations.begin(&copies, LayerBlockUse::Fetch);
        Ok(TransferOrder::Fetch(fetch, copies))
    }

    pub(super) fn write_back_order(&mut self, swaps: &[LayerBlockSwap]) -> Result<TransferOrder, Failure> {
        let copies = self.tier_copies(swaps, LayerBlockUse::Read)?;
        if !self.tier.reserve_write(&copies, None) {
            return Err(Failure::Refused);
        }
        self.reservations.begin(&copies, LayerBlockUse::Read);
        Ok(TransferOrder::WriteBack(copies))
    }

    pub(super) fn spill_order(&mut self, spill: Spill) -> Result<TransferOrder, Failure> {
        let copies = self.tier_copies(&spill.layer_blocks, LayerBlockUse::Fetch)?;
        let layer = spill.layer.index() < usize::from(self.geometry.layers());
        if !layer || !self.tier.reserve_write(&copies, Some(spill.buffer)) {
            return Err(Failure::Refused);
        }
        self.reservations.begin(&copies, LayerBlockUse::Fetch);
        Ok(TransferOrder::Spill(spill, copies))
    }

    /// Checks that every block is where the order says, that both sides are available, and that no block is
    /// named twice.
    fn tier_copies(&self, swaps: &[LayerBlockSwap], to: LayerBlockUse) -> Result<Vec<TierCopy>, Failure> {
        let copies: Option<Vec<TierCopy>> = swaps.iter().map(|swap| self.tier_copy(swap, to)).collect();
        let copies = copies.ok_or(Failure::Refused)?;
        let once = all_distinct(copies.iter().map(|copy| copy.host))
            && all_distinct(copies.iter().map(|copy| copy.device));
        if once { Ok(copies) } else { Err(Failure::Refused) }
    }

    fn tier_copy(&self, swap: &LayerBlockSwap, to: LayerBlockUse) -> Option<TierCopy> {
        let device = self.layer_block_location(swap.layer_block, swap.chunk, to)?;
        let copy = TierCopy { host: swap.host, generation: swap.generation, device };
        self.tier.contains(swap.host).then_some(copy)
    }
}
