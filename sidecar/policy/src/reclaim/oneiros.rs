//! `Oneiros`: own weight layers become KV while their copies hide behind compute (Oneiros 4.3), before any request is
//! computed again.

use super::{ReclaimPolicy, ReclaimStep};

/// Remaps own weights, then shrinks the batch.
#[derive(Debug)]
pub struct Oneiros;

impl ReclaimPolicy for Oneiros {
    fn steps(&self) -> &'static [ReclaimStep] {
        &[ReclaimStep::RemapWeights]
    }

    fn movable_layers(&self, cap: u16) -> Option<u16> {
        Some(cap)
    }
}
