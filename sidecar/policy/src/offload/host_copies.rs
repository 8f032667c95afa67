//! Copies whole KV blocks between the device and the host tier: write-backs and loads during steps, swaps between two
//! steps.

use alloc::vec::Vec;

use super::offloading::Offloading;
use crate::action::{Action, LayerBlockSwap, Work};
use crate::event::{Failure, Outcome};
use crate::ids::{Generation, Nanos};
use crate::kv::Swap;
use crate::kv::admissions::AdmissionEffects;
use crate::orders::pending::Pending;
use crate::reason::Reason;

/// Bytes of KV that one order copies to or from the host tier.
pub const SWAP_PIECE_BYTES: u64 = 32 << 20;

impl Offloading<'_> {
    /// Writes the next piece back to the host tier, by `due` if a step waits for its blocks.
    pub fn write_back(&mut self, due: Option<Nanos>, effects: &AdmissionEffects, out: &mut Vec<Action>) {
        if self.kv.transfers().is_writing_back() || !self.view().write_back_is_healthy() {
            return;
        }
        let piece = self.offload.write_back.piece(self.geometry.layer_block_bytes);
        let which = (self.offload.longest_pause_ns().is_some(), self.offload.prompts_in_force().is_none());
        let mut written = self.kv.plan_write_back(piece, which, effects, self.generations);
        if self.offload.write_back.take_probe() && written.is_empty() {
            written.extend(self.kv.plan_probe(piece, self.generations));
        }
        if written.is_empty() {
            return;
        }
        let layer_blocks = self.swapped_layer_blocks(&written);
        self.orders.order_by(
            due,
            Work::WriteBack(layer_blocks),
            Reason::WriteBack,
            Pending::WriteBack(written),
            out,
        );
    }

    /// Handles the end of a write-back.
    pub fn on_written_back(&mut self, written: &[Swap], outcome: Outcome) {
        let done = matches!(outcome, Outcome::Done { .. });
        self.kv.finish_write_back(written, done);
        if let Outcome::Done { duration_ns, .. } = outcome {
            let layer_blocks = written.iter().map(|one| one.layers.len() as u64).sum::<u64>();
            self.offload.write_back.on_written(layer_blocks, duration_ns);
        } else {
            self.orders.count(Reason::BackendFailed);
            self.offload.write_back.on_failed(self.orders.boundaries());
        }
    }

    /// Handles the end of a spill.
    pub fn on_spilled(&mut self, name: Generation, outcome: Outcome) {
        let repeated = self.orders.step().holds_lease();
        let end = match outcome {
            Outcome::Done { bytes, duration_ns } => {
                let layer_blocks = bytes / self.geometry.layer_block_bytes.max(1);
                self.offload.write_back.on_written(layer_blocks, duration_ns);
                Ok(())
            }
            Outcome::Failed(failure) => Err(failure == Failure::Dropped),
        };
        let lost = self.kv.spilled(name, end, repeated);
        if end.is_err_and(|dropped| !dropped) {
            self.orders.count(Reason::BackendFailed);
            // Once for all layers of a step.
            if self.view().write_back_is_healthy() {
                self.offload.write_back.on_failed(self.orders.boundaries());
            }
        }
        self.orders.count_many(Reason::SwapLost, lost);
    }

    /// The step of a lost engine is not repeated: the KV that it should have written is lost.
    pub fn abandon_step(&mut self) {
        if !self.orders.step().is_running() && self.kv.layer_offload().writes_to_buffers() {
            let lost = self.kv.abandon_spills();
            self.orders.count_many(Reason::SwapLost, lost);
        }
    }

    /// Plans and orders the next piece of KV that leaves the device between two steps; none if nothing is left.
    pub fn swap_out_next(&mut self, out: &mut Vec<Action>) {
        let swaps = self.kv.plan_swap_out(self.swap_piece(), self.generations);
        if !swaps.is_empty() {
            self.order_swaps_out(swaps, out);
        }
    }

    /// Orders planned copies to the host tier.
    pub(super) fn order_swaps_out(&mut self, swaps: Vec<Swap>, out: &mut Vec<Action>) {
        let layer_blocks = self.swapped_layer_blocks(&swaps);
        self.orders.order(Work::SwapOut(layer_blocks), Reason::SwapOut, Pending::SwapOut(swaps), out);
    }

    /// Loads missing KV between two steps if a running request or a new one needs it, else during steps. Returns
    /// whether steps wait for it.
    pub fn load_missing(&mut self, effects: &mut AdmissionEffects, out: &mut Vec<Action>) -> bool {
        if self.kv.missing_layer_block_count() > 0 || effects.loads_for_new() {
            let swaps = self.kv.plan_swap_in(self.swap_piece(), effects);
            self.order_swaps_in(Some(self.orders.now()), swaps, Pending::SwapIn, out);
            return true;
        }
        while effects.layer_blocks_to_load() > 0 {
            let swaps = self.kv.plan_async_swap_in(self.swap_piece(), effects);
            self.order_swaps_in(None, swaps, Pending::AsyncSwapIn, out);
        }
        false
    }

    fn order_swaps_in(
        &mut self,
        due: Option<Nanos>,
        swaps: Vec<Swap>,
        effect: fn(Vec<Swap>) -> Pending,
        out: &mut Vec<Action>,
    ) {
        let layer_blocks = self.swapped_layer_blocks(&swaps);
        self.orders.order_by(due, Work::SwapIn(layer_blocks), Reason::SwapIn, effect(swaps), out);
    }

    /// Handles the end of a load.
    pub fn on_swapped_in(&mut self, swaps: &[Swap], outcome: Outcome) {
        if let Outcome::Done { .. } = outcome {
            return self.kv.finish_swap_in(swaps);
        }
        self.orders.count(Reason::BackendFailed);
        self.orders.count_many(Reason::SwapLost, swaps.len() as u32);
        self.kv.on_swap_in_failed(swaps);
    }

    /// Reserves `kv_blocks` host blocks, evicting host cache if needed. `false` if there are too few, or not yet.
    pub fn reserve_host_places(&mut self, kv_blocks: u32, effects: &AdmissionEffects) -> bool {
        while self.kv.host_pool().room() < kv_blocks {
            let room = self.kv.host_pool().room();
            if !self.kv.evict_from_host_for(effects) {
                return false;
            }
            self.orders.count(Reason::PrefixEvicted);
            if self.kv.host_pool().room() == room {
                return false;
            }
        }
        true
    }

    fn swapped_layer_blocks(&self, swaps: &[Swap]) -> Vec<LayerBlockSwap> {
        let mut layer_blocks = Vec::with_capacity(swaps.iter().map(|swap| swap.layers.len()).sum());
        for Swap { kv_block, host_location, layers } in swaps {
            layer_blocks.extend(self.kv.blocks().layer_block_swaps(
                (*kv_block, *host_location),
                layers,
                |layer_block| self.chunk_of(layer_block),
            ));
        }
        layer_blocks
    }

    /// KV blocks that one order copies: a request that arrives waits no longer than for these.
    pub(super) fn swap_piece(&self) -> u32 {
        (SWAP_PIECE_BYTES / self.geometry.kv_block_bytes()).clamp(1, u64::from(u32::MAX)) as u32
    }
}
