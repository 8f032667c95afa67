//! `OrbitFlow`: a plan places the KV of each request layer by layer (OrbitFlow 4), and excess requests are paused with
//! their KV instead of being computed again (token deposit, OrbitFlow 5).

use super::{KvPlacementMode, PolicySettings, ReclaimPolicy, ReclaimStep, ReclaimView};

/// Places KV per request, evicts KV of paused requests, then shrinks the batch.
#[derive(Debug)]
pub struct OrbitFlow;

impl ReclaimPolicy for OrbitFlow {
    fn next(&self, view: &ReclaimView) -> ReclaimStep {
        match view.tried {
            None if !view.in_backoff => ReclaimStep::EvictPaused,
            _ => ReclaimStep::ShrinkBatch,
        }
    }

    fn kv_placement(&self, _settings: &PolicySettings) -> KvPlacementMode {
        KvPlacementMode::PerRequest
    }

    fn longest_pause_ns(&self, settings: &PolicySettings) -> Option<u64> {
        Some(settings.pause_bound_ns)
    }
}
