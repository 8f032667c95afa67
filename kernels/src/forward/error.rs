//! Why a model or a step is refused.

use thiserror::Error;

/// A model shape that cannot be computed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ModelError {
    /// A size is zero or does not divide another.
    #[error("model shape: {0}")]
    Shape(&'static str),
    /// A layer-block is larger than a chunk.
    #[error("a layer-block of {block_bytes} bytes does not fit a chunk of {chunk_bytes} bytes")]
    BlockExceedsChunk {
        /// Bytes of a layer-block.
        block_bytes: u64,
        /// Bytes of a chunk.
        chunk_bytes: u64,
    },
    /// The compute threads could not be started.
    #[error("cannot start {threads} compute threads: {reason}")]
    Threads {
        /// Threads asked for.
        threads: usize,
        /// The system's words.
        reason: String,
    },
}

/// A step that was refused or ended early.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ForwardError {
    /// No sequence, or more tokens than 32 bits count.
    #[error("the batch has no sequence")]
    EmptyBatch,
    /// One sequence cannot be computed; the others could without it.
    #[error("sequence {sequence}: {problem}")]
    Sequence {
        /// Index in the batch.
        sequence: usize,
        /// What is wrong with it.
        problem: SequenceError,
    },
    /// The ranges are not those of this model.
    #[error("{given} layer ranges for a model of {layers} layers")]
    LayerCount {
        /// Ranges given.
        given: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// The step needs more activation space than is backed.
    #[error("the step needs {needed_bytes} bytes of activations, {limit_bytes} are backed")]
    ActivationLimit {
        /// Bytes needed.
        needed_bytes: u64,
        /// Bytes backed.
        limit_bytes: u64,
    },
    /// [`super::LayerHooks::before_layer`] ended the step.
    #[error("aborted before layer {layer}")]
    Aborted {
        /// The layer that was not computed.
        layer: usize,
    },
}

/// What is wrong with one sequence of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SequenceError {
    /// A sequence without tokens.
    #[error("it has no tokens")]
    Empty,
    /// A token id beyond the vocabulary.
    #[error("token {token} at index {index} is not below the vocabulary's {vocab}")]
    TokenOutOfRange {
        /// Index in the sequence's tokens.
        index: usize,
        /// The id.
        token: u32,
        /// Tokens of the vocabulary.
        vocab: u32,
    },
    /// A position beyond the model's length.
    #[error("position {position} is not below the model's {max_positions}")]
    PositionOutOfRange {
        /// The last position asked for.
        position: u64,
        /// Positions of the model.
        max_positions: u32,
    },
    /// More logit rows than tokens.
    #[error("{wanted} rows of logits wanted of {tokens} tokens")]
    TooManyLogitRows {
        /// Rows wanted.
        wanted: usize,
        /// Tokens of the sequence.
        tokens: usize,
    },
    /// The block table ends before the sequence does.
    #[error("no block for layer {layer}, column {column}")]
    BlockMissing {
        /// Layer.
        layer: usize,
        /// Column.
        column: usize,
    },
    /// A block id beyond the KV arena.
    #[error("block {block} of layer {layer}, column {column} is not below {blocks}")]
    BlockOutOfRange {
        /// Layer.
        layer: usize,
        /// Column.
        column: usize,
        /// The id.
        block: u32,
        /// Blocks of the arena.
        blocks: u32,
    },
}
