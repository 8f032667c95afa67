//! `Unified`: every reclaim option, those without cost first, then the one with the lowest predicted cost per byte.
//!
//! A byte that an own layer frees costs one link byte per step, as a byte of offloaded KV does; but KV must be written
//! back, and placed again for each batch. So where own layers may move they move instead of KV, and a plan places KV
//! only where they may not.

use super::{
    KvPlacementMode, PolicySettings, ReclaimPolicy, ReclaimStep, ReclaimView, pause_before_preempting,
};
use crate::cost::price::{ReclaimOption, least};
use crate::geometry::StepShape;

/// Inflates KV, evicts KV of paused requests, remaps own weights that hide, then takes the option of least cost.
#[derive(Debug)]
pub struct Unified;

impl ReclaimPolicy for Unified {
    fn next(&self, view: &ReclaimView) -> ReclaimStep {
        let evicts = self.pauses(&view.settings) && !view.in_backoff;
        match view.tried {
            None => ReclaimStep::InflateKv,
            Some(ReclaimStep::InflateKv) if evicts => ReclaimStep::EvictPaused,
            Some(ReclaimStep::InflateKv | ReclaimStep::EvictPaused) if !view.is_layout_forced => {
                ReclaimStep::RemapWeights
            }
            Some(_) => ReclaimStep::ShrinkBatch,
        }
    }

    fn movable_layers(&self, cap: u16) -> Option<u16> {
        Some(cap)
    }

    fn kept_activations(&self, smallest: StepShape) -> Option<StepShape> {
        Some(smallest)
    }

    fn kv_placement(&self, settings: &PolicySettings) -> KvPlacementMode {
        if settings.may_move_weights { KvPlacementMode::Device } else { KvPlacementMode::PerRequest }
    }

    /// If layers move, only under deadline scheduling: a plan's pauses delay waiting requests in favour of the queue
    /// head.
    fn pauses(&self, settings: &PolicySettings) -> bool {
        !settings.may_move_weights || self.serves_by_deadline(settings)
    }

    /// Plans then decide only where KV resides, not admissions and pauses.
    fn serves_by_deadline(&self, settings: &PolicySettings) -> bool {
        settings.has_objectives
    }

    /// The least loss per byte of all options.
    fn evict(&self, settings: &PolicySettings, options: &[ReclaimOption]) -> Option<ReclaimOption> {
        if self.compares_costs(settings) {
            least(options.iter().copied())
        } else {
            pause_before_preempting(options)
        }
    }

    fn compares_costs(&self, settings: &PolicySettings) -> bool {
        settings.reclaim_by_cost
    }

    fn restores_by_cost(&self) -> bool {
        true
    }

    fn predicts_next_use(&self, settings: &PolicySettings) -> bool {
        settings.next_use_by_arrivals
    }
}
