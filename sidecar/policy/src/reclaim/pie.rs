//! `Pie`: the KV of some layers, the same for every request, resides in the host tier; its controller
//! ([`crate::pie::expansion`]) moves as many layers as hide and help.

use super::{PlacementRule, PolicySettings, ReclaimPolicy, ReclaimStep};

/// Places KV by Pie's controller. Reclaims nothing more.
#[derive(Debug)]
pub struct Pie;

impl ReclaimPolicy for Pie {
    fn steps(&self) -> &'static [ReclaimStep] {
        &[]
    }

    fn placement_rule(&self, _settings: &PolicySettings) -> PlacementRule {
        PlacementRule::Uniform
    }
}
