//! Decides which layers of which requests' KV are offloaded while they run.
//!
//! | policy | offloaded | when |
//! |---|---|---|
//! | `Ellm` | all layers, of prompts admitted without space ([`super::prefill_offload`]) | during their prefill |
//! | `FlexGen` | a fixed share of the layers, of every request | always |
//! | `Pie` | the same layers of every request, as many as hide and help ([`crate::pie::expansion`]) | KV is short |
//! | `OrbitFlow`, `Unified` if own layers may not move | planned layers of each request | KV is short |
//!
//! Positions are fixed while a placement holds, as those of moving weight layers are: F layers that pass through two
//! buffers free F - 2 (Pie). Full blocks never change, so a swap writes nothing that was written before.

use alloc::vec::Vec;

use super::{MemoryManager, PlannedAdmissions, StepTimes};
use crate::ids::LayerId;
use crate::kv::layer_offload::Placement;
use crate::offload::MIN_MOVING_LAYERS;
use crate::pie::expansion::Token;
use crate::planner::placement::spread;
use crate::planner::steps::StepTime;
use crate::reclaim::KvPlacementMode;
use crate::step_model::{Layout, MAX_BETA};

impl MemoryManager {
    /// Decides the placement at this boundary.
    pub(super) fn choose_placement(&mut self) {
        if self.sizes.host_kv_blocks == 0 || self.sizes.layers <= MIN_MOVING_LAYERS {
            return;
        }
        let layout = match self.offload.placer() {
            KvPlacementMode::Device => Layout::resident(),
            KvPlacementMode::Fixed => self.fixed_layout(),
            KvPlacementMode::Uniform => self.uniform_layout(),
            KvPlacementMode::Prompts => return self.request_prefill_placement(),
            KvPlacementMode::PerRequest => return self.request_plan(),
        };
        self.request_uniform(layout);
    }

    fn request_uniform(&mut self, layout: Layout) {
        if self.kv.placement().layout != layout {
            let some = !layout.moving.is_empty();
            let placement = some.then(|| Placement::uniform(layout, self.kv.running_requests()));
            self.offload.due = Some(placement.unwrap_or_default());
            return;
        }
        self.offload.due = None;
        if layout.moving.is_empty() {
            return;
        }
        let named = &self.kv.placement().of;
        let new: Vec<_> = self.kv.running_requests().filter(|request| !named.contains_key(request)).collect();
        new.into_iter().for_each(|request| self.kv.register(request, 0));
    }

    fn fixed_layout(&self) -> Layout {
        let layers = u32::from(self.sizes.layers);
        let away = layers * self.params.fixed_away_permille / 1000;
        moving_layout(self.sizes.layers, away.min(layers - 1) as u16)
    }

    /// Pie: the controller limits the offloaded layers, need demands them.
    fn uniform_layout(&mut self) -> Layout {
        let queue = self.offload.expansion.queue();
        let current = &self.kv.placement().layout;
        if !self.after(&PlannedAdmissions::default()).kv_is_short()
            && (current.moving.is_empty() || self.all_kv_fits())
        {
            return Layout::resident();
        }
        moving_layout(self.sizes.layers, queue)
    }

    /// Blocks that should be free beyond the next tokens.
    pub(super) fn reserve_layer_blocks(&self) -> u32 {
        let total = u64::from(self.kv.chunk_pool().total_layer_blocks());
        (total * u64::from(self.params.offload_reserve_permille) / 1000) as u32
    }

    /// All offloaded KV would fit the device and leave twice the blocks that should be free.
    pub(super) fn all_kv_fits(&self) -> bool {
        let away = self.kv.offloaded_layer_blocks();
        let needed = away.saturating_sub(self.kv.buffer_layer_blocks());
        let none = PlannedAdmissions::default();
        let now = self.after(&none);
        now.spare_layer_blocks() >= needed.saturating_add(2 * now.target_spare_layer_blocks())
    }

    /// Feeds the duration of a step to the controllers. `Pie` grows while the link has spare time: the swaps that fit
    /// the spare time count as early.
    pub(super) fn observe_step(&mut self, times: &StepTimes) {
        let busy_ns = self.offload.take_fetched_ns().min(times.total_ns);
        if !times.decode_only {
            return;
        }
        let stall_ns = times.kv_stall_ns.iter().fold(0, |all: u64, one| all.saturating_add(*one));
        self.record_kv_read(times);
        self.check_plan(StepTime { total_ns: times.total_ns, stall_ns });
        if self.offload.expansion_in_force().is_none() {
            return;
        }
        let swaps = self.kv.placement().layout.moving.len() as u32;
        let spare_ns = u128::from(times.total_ns - busy_ns);
        let early_swaps = u128::from(swaps) * spare_ns / u128::from(times.total_ns.max(1));
        let token = Token {
            total_ns: times.total_ns,
            stall_ns,
            swaps,
            early_swaps: early_swaps as u32,
            sequences: times.shape.sequences,
        };
        if swaps > 0 || self.after(&PlannedAdmissions::default()).kv_is_short() {
            self.offload.expansion.token(&token);
        }
    }
}

/// A layout with `away` layers offloaded, spread over the model, in buffers that serve at least two each; resident if
/// there are too few.
pub(super) fn moving_layout(layers: u16, away: u16) -> Layout {
    if away < MIN_MOVING_LAYERS {
        return Layout::resident();
    }
    let moving: Vec<_> = spread(layers, away.min(layers - 1)).into_iter().map(LayerId).collect();
    let beta = buffers(moving.len());
    Layout { moving, beta }
}

/// Buffers that these layers share: as many as allowed, each for at least two.
pub(super) fn buffers(layers: usize) -> u8 {
    (layers / 2).min(usize::from(MAX_BETA)) as u8
}
