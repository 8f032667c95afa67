//! `Ellm`: idle activation chunks become KV (eLLM, Algorithm 1). Prompts without space for their KV are computed all
//! the same, and their KV goes to the host tier (eLLM 4.4.2).

use super::{PlacementRule, PolicySettings, ReclaimPolicy, ReclaimStep};
use crate::geometry::StepShape;

/// Inflates KV, then shrinks the batch.
#[derive(Debug)]
pub struct Ellm;

impl ReclaimPolicy for Ellm {
    fn steps(&self) -> &'static [ReclaimStep] {
        &[ReclaimStep::InflateKv]
    }

    fn kept_activations(&self, smallest: StepShape) -> Option<StepShape> {
        Some(smallest)
    }

    fn placement_rule(&self, _settings: &PolicySettings) -> PlacementRule {
        PlacementRule::Prefills
    }
}
