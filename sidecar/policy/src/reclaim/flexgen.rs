//! `FlexGen`: a fixed share of the layers' KV of every request resides in the host tier from the start (FlexGen 4.2).

use super::{PlacementRule, PolicySettings, ReclaimPolicy, ReclaimStep};

/// Places KV by a fixed share. Reclaims nothing more.
#[derive(Debug)]
pub struct FlexGen;

impl ReclaimPolicy for FlexGen {
    fn steps(&self) -> &'static [ReclaimStep] {
        &[]
    }

    fn placement_rule(&self, _settings: &PolicySettings) -> PlacementRule {
        PlacementRule::FixedShare
    }
}
