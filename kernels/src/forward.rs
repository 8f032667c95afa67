//! One step: a forward pass over a mixed batch of prefills and decodes. A step with more tokens than a chunk passes
//! each layer chunk by chunk. The whole step passes one layer before the next, so a layer that has just been loaded
//! serves the whole step.
//!
//! The engine owns no memory. Weights are read in place at the offsets of [`sluice_link::slab::slab_layout`]. K and V
//! reside in a flat arena of layer blocks. Intermediate values reside in the activation arena, whose size is a monotone
//! function of the step's shape ([`Model::activation_cost`]).
//!
//! **Batch invariance**. The bits of a sequence's logits and KV depend on its tokens and the weights alone,
//! never on the other sequences, the chunking, the block ids or the number of threads.

mod batch;
pub(crate) mod check;
pub(crate) mod chunk;
pub(crate) mod error;
mod layer_hooks;
pub(crate) mod layer_ops;
mod layer_pass;
mod logits;
mod model;
mod ranges;
mod run;
mod step;

pub use crate::ops::kv::BLOCK_TOKENS;
pub use batch::{Batch, BlockTable, Sequence};
pub use error::{ForwardError, ModelError, SequenceError};
pub use layer_hooks::{LayerHooks, NoHooks};
pub use logits::{LogitRow, LogitsView};
pub use model::Model;
pub use ranges::{RangeParts, Ranges};
pub use sluice_link::vocabulary::{ActivationCost, StepShape};
