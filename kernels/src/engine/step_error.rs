//! Why the engine refuses a step as a whole.

use sluice_memory::cuda;
use thiserror::Error;

use super::memory::UnmappedAddress;
use crate::forward::ForwardError;

/// Why a step is refused as a whole; a problem of one sequence is a `FailedSequence`. All errors but
/// [`StepError::Overtaken`], [`StepError::KvOvertaken`] and [`StepError::StaleEpoch`] are found before the step writes
/// anything. Those three may leave KV at the step's own positions, in blocks of the step's requests.
#[derive(Debug, Error)]
pub(super) enum StepError {
    /// An address that is not backed.
    #[error(transparent)]
    Unmapped(#[from] UnmappedAddress),
    /// The order names a layer that the model does not have.
    #[error("a generation for layer {layer}, but the model has {layers} layers")]
    Layer {
        /// Layer that the order names.
        layer: u16,
        /// Layers of the model.
        layers: u16,
    },
    /// Two sequences would write the same row.
    #[error("row {0} appears twice in the step")]
    RowTwice(u32),
    /// The sidecar reused a slot before this step had read it.
    #[error("layer {layer} was overwritten before it was read: its slot was reused too early")]
    Overtaken {
        /// Layer whose weights were overwritten.
        layer: u16,
    },
    /// The sidecar reused a KV buffer before this step had read it.
    #[error("KV of layer {layer} was overwritten before it was read: its buffer was reused too early")]
    KvOvertaken {
        /// Layer whose KV was overwritten.
        layer: u16,
    },
    /// The time slice of the step is over on the GPU.
    #[error("time slice {epoch} has ended")]
    StaleEpoch {
        /// Epoch of the step.
        epoch: u64,
    },
    /// The GPU failed. The state of its context is lost, so this worker ends.
    #[error("the GPU failed: {0}")]
    Gpu(#[from] cuda::Error),
    /// The forward pass failed.
    #[error(transparent)]
    Forward(#[from] ForwardError),
}
