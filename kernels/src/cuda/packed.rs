//! A step whose inputs are packed: what is copied to the device, and what decides the launches.

use sluice_link::activation::cuda::CudaLayout;

use super::Address;
use super::inputs::Inputs;

/// A step whose inputs are packed and whose launches are not planned yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedStep {
    /// Copied to [`PackedStep::inputs_at`] before the first kernel.
    pub inputs: Vec<u8>,
    /// Address of the inputs.
    pub inputs_at: Address,
    /// Decides the launches.
    pub layout: StepLayout,
}

/// What the launches of a step depend on besides the model and its ranges: the places and sizes of values and inputs.
/// Steps with equal layouts have equal launches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepLayout {
    pub(super) values: CudaLayout,
    pub(super) inputs: Inputs,
    /// Tokens of the step.
    pub(super) tokens: u32,
    /// Rows of logits.
    pub(super) rows: u32,
}
