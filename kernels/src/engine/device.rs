//! The device of an engine: its memory, and the forward pass over it.

use std::os::fd::OwnedFd;

use sluice_link::vocabulary::{ActivationCost, ChunkId, MapOp};
use sluice_memory::cuda;
use sluice_memory::mapping::MappingError;
use thiserror::Error;

use super::layer_waits::LayerWaits;
use super::memory::{BackedAddresses, EngineMemory};
use crate::forward::{Batch, ForwardError, LogitRow};

/// A device that computes steps over memory of the sidecar. Its backing changes between steps only.
pub(super) trait StepDevice {
    /// Its addresses.
    type Mapping: BackedAddresses;

    /// Returns the activation bytes by step shape.
    fn activation_cost(&self) -> ActivationCost;

    /// Returns what of the ranges is backed.
    fn memory(&self) -> &EngineMemory<Self::Mapping>;

    /// Imports chunks that the sidecar exported.
    fn import(&mut self, chunks: Vec<(ChunkId, OwnedFd)>) -> Result<(), MappingError>;

    /// Releases the imports of chunks that are mapped nowhere.
    fn release(&mut self, chunks: &[ChunkId]) -> Result<(), MappingError>;

    /// Applies all of `ops`, in order, or none of them. After [`MappingError::RollbackFailed`] no step may run.
    fn apply(&mut self, ops: &[MapOp]) -> Result<(), MappingError>;

    /// Fills the first `bytes` of the activation range with NaN (tests only). The caller has checked that they are
    /// backed.
    fn poison_activations(&mut self, bytes: u64) -> Result<(), cuda::Error>;

    /// Runs a step in the first `activation_bytes` of the activation range, which are backed. `takes_largest` says for
    /// each row of logits whether its token is that of the largest logit.
    fn run(
        &mut self,
        activation_bytes: u64,
        batch: &Batch<'_>,
        waits: &mut LayerWaits<'_>,
        takes_largest: &[bool],
    ) -> Result<Vec<ResultRow<'_>>, RunError>;
}

/// The result of a step for one row of logits.
pub(super) enum ResultRow<'a> {
    /// The logits.
    Logits(LogitRow<'a>),
    /// The token of the largest logit, as the device found it; `None` if no logit is a number above minus infinity.
    Largest(Option<u32>),
}

/// Why a step did not run to its end.
#[derive(Debug, Error)]
pub(super) enum RunError {
    /// The forward pass was refused or aborted.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// The GPU failed. The state of its context is lost, so this worker ends.
    #[error("the GPU failed: {0}")]
    Gpu(#[from] cuda::Error),
}
