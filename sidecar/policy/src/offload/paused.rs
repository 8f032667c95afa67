//! KV of paused requests leaves the device for requests that need its space (OrbitFlow 4.2).
//!
//! Blocks that the host tier has are free at once. Others are written back first; where that is impossible, whole KV
//! blocks are swapped out between two steps.

use alloc::vec::Vec;

use super::offloading::Offloading;
use super::view::OffloadView;
use crate::action::Action;
use crate::ids::KvBlockId;
use crate::kv::admissions::AdmissionEffects;

/// How KV of paused requests makes space.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PausedKv {
    /// KV is loading for a request that is admitted while none runs. It would be evicted for it and loaded again, and so
    /// on without a step.
    IsLoading,
    /// The host tier has these KV blocks.
    OnHost(Vec<KvBlockId>),
    /// To write it back would take too long.
    LeavesTooSlowly,
    /// It is written back first.
    ToWrite,
}

/// What an eviction of paused KV has led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictedPaused {
    /// Layer blocks are free now.
    Freed,
    /// They are free when copies that are under way have ended.
    UnderWay,
}

impl OffloadView<'_> {
    /// Decides how a step gets `missing` layer blocks.
    fn paused_kv(&self, missing: u32, effects: &AdmissionEffects) -> PausedKv {
        if self.kv.transfers().has_loads() && !self.offload.had_running {
            return PausedKv::IsLoading;
        }
        let on_host = self.kv.paused_on_host(missing, effects);
        if !on_host.is_empty() {
            PausedKv::OnHost(on_host)
        } else if self.offload.write_back.is_fast_enough(missing) {
            PausedKv::ToWrite
        } else {
            PausedKv::LeavesTooSlowly
        }
    }

    /// KV blocks that are swapped out for `missing` layer blocks, while nothing is written back.
    fn paused_kv_blocks_to_swap(&self, missing: u32, piece: u32) -> u32 {
        let room = self.kv.host_pool().room().saturating_sub(self.kv_blocks_to_spill());
        missing.div_ceil(self.kv.layers()).min(piece).min(room)
    }
}

impl Offloading<'_> {
    /// Evicts KV of paused requests. `None` = there is none, or it would take too long.
    pub fn evict_paused(
        &mut self,
        missing: u32,
        effects: &AdmissionEffects,
        out: &mut Vec<Action>,
    ) -> Option<EvictedPaused> {
        match self.view().paused_kv(missing, effects) {
            PausedKv::IsLoading => Some(EvictedPaused::UnderWay),
            PausedKv::OnHost(kv_blocks) => {
                self.kv.evict_hosted(&kv_blocks);
                Some(EvictedPaused::Freed)
            }
            PausedKv::LeavesTooSlowly => None,
            PausedKv::ToWrite => {
                self.write_back(Some(self.orders.now()), effects, out);
                let leaves =
                    self.kv.transfers().is_writing_back() || self.swap_paused_out(missing, effects, out);
                leaves.then_some(EvictedPaused::UnderWay)
            }
        }
    }

    /// Swaps KV of paused requests out, once a write-back has measured the link. Returns whether there is some.
    fn swap_paused_out(&mut self, missing: u32, effects: &AdmissionEffects, out: &mut Vec<Action>) -> bool {
        if self.offload.write_back.layer_block_ns().is_none() {
            return false;
        }
        let max = self.view().paused_kv_blocks_to_swap(missing, self.swap_piece());
        let swaps = self.kv.plan_paused_out(max, effects, self.generations);
        let some = !swaps.is_empty();
        if some {
            self.order_swaps_out(swaps, out);
        }
        some
    }

    /// Evicts KV of paused requests for a change that must happen. `None` = the policy does not so, or there is none, or
    /// it would take too long.
    pub fn evict_paused_for_change(&mut self, out: &mut Vec<Action>) -> Option<EvictedPaused> {
        let (view, missing) = (self.view(), self.kv.overfull_layer_blocks());
        if !(view.can_evict_paused() && view.offload.write_back.is_fast_enough(missing)) {
            return None;
        }
        let effects = AdmissionEffects::default();
        let on_host = view.kv.paused_on_host(missing, &effects);
        if !on_host.is_empty() {
            self.kv.evict_hosted(&on_host);
            return Some(EvictedPaused::Freed);
        }
        self.write_back(Some(self.orders.now()), &effects, out);
        self.kv.transfers().is_writing_back().then_some(EvictedPaused::UnderWay)
    }
}
