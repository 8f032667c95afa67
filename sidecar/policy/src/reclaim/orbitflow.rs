//! `OrbitFlow`: a plan places the KV of each request layer by layer (OrbitFlow 4), and excess requests are paused with
//! their KV instead of being computed again (token deposit, OrbitFlow 5).

use super::{PlacementRule, PolicySettings, ReclaimPolicy, ReclaimStep};

/// Places KV per request, evicts KV of paused requests, then shrinks the batch.
#[derive(Debug)]
pub struct OrbitFlow;

impl ReclaimPolicy for OrbitFlow {
    fn steps(&self) -> &'static [ReclaimStep] {
        &[ReclaimStep::EvictPaused]
    }

    fn placement_rule(&self, _settings: &PolicySettings) -> PlacementRule {
        PlacementRule::PerRequest
    }

    fn longest_pause_ns(&self, settings: &PolicySettings) -> Option<u64> {
        Some(settings.pause_bound_ns)
    }
}
