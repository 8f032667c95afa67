//! Errors of models and steps.

use thiserror::Error;

/// A model shape that the kernels cannot compute.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ModelError {
    /// A size is zero, too large or does not divide another.
    #[error("model shape: {0}")]
    Shape(&'static str),
    /// A layer block is larger than a chunk.
    #[error("a layer block of {layer_block_bytes} bytes does not fit into a chunk of {chunk_bytes} bytes")]
    LayerBlockExceedsChunk {
        /// Bytes of a layer block.
        layer_block_bytes: u64,
        /// Bytes of a chunk.
        chunk_bytes: u64,
    },
    /// The compute threads could not start.
    #[error("cannot start {threads} compute threads: {reason}")]
    Threads {
        /// Requested threads.
        threads: usize,
        /// Message of the system.
        reason: String,
    },
}

/// A step that was rejected or aborted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ForwardError {
    /// The batch has no sequence.
    #[error("the batch has no sequence")]
    EmptyBatch,
    /// One sequence cannot be computed. The step could run without it.
    #[error("sequence {sequence}: {problem}")]
    Sequence {
        /// Index in the batch.
        sequence: usize,
        /// The problem.
        problem: SequenceError,
    },
    /// The ranges do not match the model.
    #[error("{given} layer ranges were given, but the model has {layers} layers")]
    LayerCount {
        /// Ranges given.
        given: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// The step needs more activation space than is backed.
    #[error("the step needs {needed_bytes} bytes of activations, but {limit_bytes} are backed")]
    ActivationLimit {
        /// Bytes needed.
        needed_bytes: u64,
        /// Bytes backed.
        limit_bytes: u64,
    },
    /// [`super::LayerHooks::before_layer`] aborted the step.
    #[error("aborted before layer {layer}")]
    Aborted {
        /// The layer that was not computed.
        layer: usize,
    },
}

/// The problem of one sequence of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SequenceError {
    /// The sequence has no tokens.
    #[error("it has no tokens")]
    Empty,
    /// A token id beyond the vocabulary.
    #[error("token {token} at index {index} is not in the vocabulary of {vocab} tokens")]
    TokenOutOfRange {
        /// Index in the sequence's tokens.
        index: usize,
        /// Token id.
        token: u32,
        /// Size of the vocabulary.
        vocab: u32,
    },
    /// A position beyond the model's maximum length.
    #[error("position {position} is not below the {max_positions} positions of the model")]
    PositionOutOfRange {
        /// Last requested position.
        position: u64,
        /// Maximum positions of the model.
        max_positions: u32,
    },
    /// More logit rows than tokens.
    #[error("{wanted} rows of logits are requested, but there are {tokens} tokens")]
    TooManyLogitRows {
        /// Requested rows.
        wanted: usize,
        /// Tokens of the sequence.
        tokens: usize,
    },
    /// The block table is shorter than the sequence.
    #[error("no block for layer {layer}, KV block {kv_block}")]
    LayerBlockMissing {
        /// Layer.
        layer: usize,
        /// KV block.
        kv_block: usize,
    },
    /// A block id beyond the end of the KV arena.
    #[error("block {layer_block} of layer {layer}, KV block {kv_block} is not below {layer_blocks}")]
    LayerBlockOutOfRange {
        /// Layer.
        layer: usize,
        /// KV block.
        kv_block: usize,
        /// Block id.
        layer_block: u32,
        /// Blocks in the arena.
        layer_blocks: u32,
    },
}
