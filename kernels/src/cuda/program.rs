//! A step as a value: what is copied to the device, and which operations run in which order.

use super::Address;
use super::product::Operation;

/// The work of one step. The owner carries it out on one stream, layer after layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepProgram {
    /// Copied to [`StepProgram::inputs_at`] before the first kernel.
    pub inputs: Vec<u8>,
    /// Address of the inputs.
    pub inputs_at: Address,
    /// Embeddings and rotary angles: before the first layer.
    pub prologue: Vec<Operation>,
    /// The work of each layer. It reads the weights and the KV of that layer alone.
    pub layers: Vec<Vec<Operation>>,
    /// Final norm, logits and their largest tokens: after the last layer.
    pub head: Vec<Operation>,
    /// Address of one u32 of the inputs, which is 0: once it is another number, the layers write no KV.
    pub stopped: Address,
    /// Results.
    pub results: Results,
}

impl StepProgram {
    /// Returns all operations, in order.
    pub fn operations(&self) -> impl Iterator<Item = &Operation> {
        self.prologue.iter().chain(self.layers.iter().flatten()).chain(&self.head)
    }
}

/// Where a step leaves its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Results {
    /// f32 `[rows][vocab]`.
    pub logits: Address,
    /// u32 `[rows]`: the token of the largest logit of each row, `u32::MAX` if no logit can be chosen.
    pub tokens: Address,
    /// Rows of logits.
    pub rows: u32,
}
