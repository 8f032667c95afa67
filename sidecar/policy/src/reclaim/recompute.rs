//! `Recompute`, as vLLM: evicts prefix blocks, then preempts requests and computes them again.

use super::{ReclaimPolicy, ReclaimStep};

/// Reclaims nothing: the batch gets smaller.
#[derive(Debug)]
pub struct Recompute;

impl ReclaimPolicy for Recompute {
    fn steps(&self) -> &'static [ReclaimStep] {
        &[]
    }
}
