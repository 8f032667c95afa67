//! Checks of every shape, index and limit, made before a step writes anything.

use sluice_link::model::ModelSpec;

use super::{Batch, ForwardError, ModelError, RangeParts, Sequence, SequenceError};
use crate::ops::kv::BLOCK_TOKENS;

/// Rejects shapes that the kernels cannot compute.
pub(crate) fn shape(spec: &ModelSpec, chunk_bytes: u64) -> Result<(), ModelError> {
    let sizes = [spec.vocab, spec.hidden, spec.intermediate, spec.heads, spec.kv_heads, spec.head_dim];
    let rules = [
        (sizes.iter().all(|size| *size > 0) && spec.layers > 0, "a size is zero"),
        (spec.max_positions > 0, "max_positions is zero"),
        (spec.head_dim.is_multiple_of(2), "head_dim must be even"),
        (spec.kv_heads > 0 && spec.heads.is_multiple_of(spec.kv_heads), "kv_heads must divide heads"),
        (sizes.iter().all(|size| *size < 1 << 24), "a size is beyond 2^24"),
    ];
    if let Some((_, message)) = rules.iter().find(|(holds, _)| !holds) {
        return Err(ModelError::Shape(message));
    }
    let layer_block_bytes = spec.layer_block_bytes();
    if layer_block_bytes > chunk_bytes {
        return Err(ModelError::LayerBlockExceedsChunk { layer_block_bytes, chunk_bytes });
    }
    Ok(())
}

/// Panics if an address is not aligned.
pub(super) fn addresses(parts: &RangeParts) {
    let bases = parts.layers.iter().chain([&parts.global]).map(|base| base.addr());
    let aligned = |address: usize| address.is_multiple_of(64);
    assert!(
        bases.chain([parts.kv.addr(), parts.activations.addr()]).all(aligned),
        "`Ranges::new` was promised addresses that are multiples of 64"
    );
}

/// Rejects ids and positions out of range, for `layer_ranges` ranges of layers and an arena of `arena_blocks` blocks.
pub(crate) fn batch(
    spec: &ModelSpec,
    layer_ranges: usize,
    arena_blocks: u32,
    batch: &Batch<'_>,
) -> Result<(), ForwardError> {
    let layers = usize::from(spec.layers);
    if layer_ranges != layers {
        return Err(ForwardError::LayerCount { given: layer_ranges, layers });
    }
    if batch.sequences.is_empty() {
        return Err(ForwardError::EmptyBatch);
    }
    for (index, sequence) in batch.sequences.iter().enumerate() {
        tokens(spec, sequence)
            .and_then(|()| layer_blocks(layers, arena_blocks, sequence))
            .map_err(|problem| ForwardError::Sequence { sequence: index, problem })?;
    }
    Ok(())
}

fn tokens(spec: &ModelSpec, part: &Sequence<'_>) -> Result<(), SequenceError> {
    let tokens = part.tokens.len();
    if tokens == 0 {
        return Err(SequenceError::Empty);
    }
    if part.logit_rows > tokens {
        return Err(SequenceError::TooManyLogitRows { wanted: part.logit_rows, tokens });
    }
    let position = u64::from(part.start) + tokens as u64 - 1;
    if position >= u64::from(spec.max_positions) {
        return Err(SequenceError::PositionOutOfRange { position, max_positions: spec.max_positions });
    }
    match part.tokens.iter().position(|token| *token >= spec.vocab) {
        Some(index) => {
            Err(SequenceError::TokenOutOfRange { index, token: part.tokens[index], vocab: spec.vocab })
        }
        None => Ok(()),
    }
}

fn layer_blocks(layers: usize, layer_blocks: u32, part: &Sequence<'_>) -> Result<(), SequenceError> {
    let kv_blocks = (part.start as usize + part.tokens.len()).div_ceil(BLOCK_TOKENS);
    for layer in 0..layers {
        for kv_block in 0..kv_blocks {
            match part.layer_blocks.id(layer, kv_block) {
                None => return Err(SequenceError::LayerBlockMissing { layer, kv_block }),
                Some(layer_block) if layer_block >= layer_blocks => {
                    return Err(SequenceError::LayerBlockOutOfRange {
                        layer,
                        kv_block,
                        layer_block,
                        layer_blocks,
                    });
                }
                Some(_) => {}
            }
        }
    }
    Ok(())
}

/// Rejects a step that needs more activation bytes than are backed.
pub(crate) fn activations(needed_bytes: u64, limit_bytes: u64) -> Result<(), ForwardError> {
    if needed_bytes > limit_bytes {
        return Err(ForwardError::ActivationLimit { needed_bytes, limit_bytes });
    }
    Ok(())
}
