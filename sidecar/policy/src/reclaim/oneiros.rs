//! `Oneiros`: own weight layers become KV while their copies hide behind compute (Oneiros 4.3), before any request is
//! computed again.

use super::{ReclaimPolicy, ReclaimStep, ReclaimView};

/// Remaps own weights, then shrinks the batch.
#[derive(Debug)]
pub struct Oneiros;

impl ReclaimPolicy for Oneiros {
    fn next(&self, view: &ReclaimView) -> ReclaimStep {
        match view.tried {
            None if !view.is_layout_forced => ReclaimStep::RemapWeights,
            _ => ReclaimStep::ShrinkBatch,
        }
    }

    fn movable_layers(&self, cap: u16) -> Option<u16> {
        Some(cap)
    }
}
