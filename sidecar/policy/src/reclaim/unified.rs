//! `Unified`: every reclaim option, those without cost first, then the one with the lowest predicted cost per byte.
//!
//! A byte that an own layer frees costs one link byte per step, as a byte of offloaded KV does; but KV must be written
//! back, and placed again for each batch. So where own layers may move they move instead of KV, and a plan places KV
//! only where they may not.

use super::cost_rule::{CostRule, FixedOrder, LeastCost};
use super::{PlacementRule, PolicySettings, ReclaimPolicy, ReclaimStep, ServiceOrder};
use crate::geometry::StepShape;
use crate::peers::victim::NextUseEstimate;

/// Inflates KV, evicts KV of paused requests, remaps own weights that hide, then takes the option of least cost.
#[derive(Debug)]
pub struct Unified;

impl ReclaimPolicy for Unified {
    fn steps(&self) -> &'static [ReclaimStep] {
        &[ReclaimStep::InflateKv, ReclaimStep::EvictPaused, ReclaimStep::RemapWeights]
    }

    fn movable_layers(&self, cap: u16) -> Option<u16> {
        Some(cap)
    }

    fn kept_activations(&self, smallest: StepShape) -> Option<StepShape> {
        Some(smallest)
    }

    fn placement_rule(&self, settings: &PolicySettings) -> PlacementRule {
        if settings.may_move_weights { PlacementRule::Device } else { PlacementRule::PerRequest }
    }

    /// If layers move, only under deadline scheduling: a plan's pauses delay waiting requests in favour of the queue
    /// head.
    fn longest_pause_ns(&self, settings: &PolicySettings) -> Option<u64> {
        let pauses = !settings.may_move_weights || settings.has_objectives;
        pauses.then_some(settings.pause_bound_ns)
    }

    /// Plans then decide only where KV resides, not admissions and pauses.
    fn service_order(&self, settings: &PolicySettings) -> ServiceOrder {
        if settings.has_objectives { ServiceOrder::Deadline } else { ServiceOrder::Arrival }
    }

    /// The least loss per byte of all options, also for memory that is owed and for KV that layers displace.
    fn cost_rule(&self, settings: &PolicySettings) -> &'static dyn CostRule {
        if settings.ablations.reclaim_by_cost { &LeastCost } else { &FixedOrder }
    }

    /// Weighs the stall against the displaced KV.
    fn restore_rank(&self, stall_loss: u64, kv_loss: u64) -> (u64, u64) {
        (0, stall_loss.saturating_add(kv_loss))
    }

    fn next_use(&self, settings: &PolicySettings) -> NextUseEstimate {
        if settings.ablations.next_use_by_arrivals {
            NextUseEstimate::Arrivals
        } else {
            NextUseEstimate::LastUse
        }
    }
}
