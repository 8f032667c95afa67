//! Where an engine that schedules by itself keeps its KV blocks, and the extents by which KV is given and taken back.

use serde::{Deserialize, Serialize};
use sluice_policy::ids::KvChunkId;
use thiserror::Error;

/// Where KV blocks lie in the KV range: block `b` of layer `l` has `block_bytes` bytes from byte
/// `l * layer_stride_bytes + b * block_stride_bytes` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KvLayout {
    /// Layers with KV. A layer whose keys and values lie apart counts as two.
    pub layers: u32,
    /// Blocks for which the engine has addresses.
    pub blocks: u32,
    /// Bytes of a block in one layer.
    pub block_bytes: u64,
    /// Bytes from a block to the same block of the next layer.
    pub layer_stride_bytes: u64,
    /// Bytes from a block to the next block of the same layer.
    pub block_stride_bytes: u64,
    /// Tokens of a block.
    pub block_tokens: u32,
}

/// How KV is divided: extent `e` are the blocks `e * extent_blocks .. (e + 1) * extent_blocks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KvExtents {
    /// The fewest consecutive blocks that fill whole chunks in every layer.
    pub extent_blocks: u32,
    /// Whole extents. Blocks behind the last one never have memory.
    pub extents: u32,
}

/// A layout whose blocks cannot be given and taken back by chunks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KvLayoutError {
    /// A number is zero.
    #[error("{0} is zero")]
    Zero(&'static str),
    /// Blocks share bytes.
    #[error(
        "blocks of {} bytes overlap: strides are {} bytes to the next layer and {} to the next block",
        .0.block_bytes, .0.layer_stride_bytes, .0.block_stride_bytes
    )]
    Overlap(KvLayout),
    /// The layers do not begin at chunks.
    #[error("layers lie {layer_stride_bytes} bytes apart, which is no multiple of a chunk of {chunk_bytes}")]
    Unaligned {
        /// Bytes from a layer to the next.
        layer_stride_bytes: u64,
        /// Bytes of a chunk.
        chunk_bytes: u64,
    },
    /// The blocks exceed the range.
    #[error("the blocks need {needed} bytes of the KV range, which has {range_bytes}")]
    Range {
        /// Bytes up to the end of the last block; `u64::MAX` if they exceed 64 bits.
        needed: u64,
        /// Bytes of the range.
        range_bytes: u64,
    },
    /// There are fewer blocks than one extent needs.
    #[error("{blocks} blocks are fewer than the {extent_blocks} blocks that fill whole chunks")]
    NoExtent {
        /// Blocks of the layout.
        blocks: u32,
        /// Blocks of an extent.
        extent_blocks: u64,
    },
}

impl KvLayout {
    /// Divides a KV range of `kv_chunks` chunks into extents.
    ///
    /// # Errors
    /// The layout does not fit the range, or no number of its blocks fills whole chunks.
    ///
    /// # Panics
    /// A chunk has no bytes.
    pub fn extents(&self, chunk_bytes: u64, kv_chunks: u32) -> Result<KvExtents, KvLayoutError> {
        assert!(chunk_bytes > 0, "a chunk has bytes");
        self.check_numbers()?;
        self.check_range(u64::from(kv_chunks) * chunk_bytes)?;
        self.check_strides()?;
        if self.is_by_layer() && self.layers > 1 && !self.layer_stride_bytes.is_multiple_of(chunk_bytes) {
            let layer_stride_bytes = self.layer_stride_bytes;
            return Err(KvLayoutError::Unaligned { layer_stride_bytes, chunk_bytes });
        }
        let extent_blocks = chunk_bytes / greatest_divisor(chunk_bytes, self.block_stride_bytes);
        let blocks = self.blocks;
        match u32::try_from(extent_blocks) {
            Ok(extent_blocks) if extent_blocks <= blocks => {
                Ok(KvExtents { extent_blocks, extents: blocks / extent_blocks })
            }
            _ => Err(KvLayoutError::NoExtent { blocks, extent_blocks }),
        }
    }

    /// Returns the positions of the KV range that hold extent `extent` of all layers, in the order of addresses.
    ///
    /// # Panics
    /// `extents` is not what [`KvLayout::extents`] gave for this chunk, or it has no such extent.
    pub fn extent_chunks(&self, chunk_bytes: u64, extents: KvExtents, extent: u32) -> Vec<KvChunkId> {
        assert!(extent < extents.extents, "extent {extent} is one of {}", extents.extents);
        let bytes = u64::from(extents.extent_blocks) * self.block_stride_bytes;
        assert!(bytes.is_multiple_of(chunk_bytes), "an extent of {bytes} bytes fills whole chunks");
        let runs = if self.is_by_layer() { u64::from(self.layers) } else { 1 };
        let starts = (0..runs).map(|layer| layer * self.layer_stride_bytes + u64::from(extent) * bytes);
        let chunks = starts.flat_map(|start| start / chunk_bytes..(start + bytes) / chunk_bytes);
        chunks.map(|chunk| KvChunkId(chunk as u32)).collect()
    }

    fn check_numbers(&self) -> Result<(), KvLayoutError> {
        let numbers = [
            ("layers", u64::from(self.layers)),
            ("blocks", u64::from(self.blocks)),
            ("block_bytes", self.block_bytes),
            ("block_tokens", u64::from(self.block_tokens)),
        ];
        match numbers.into_iter().find(|(_, number)| *number == 0) {
            Some((name, _)) => Err(KvLayoutError::Zero(name)),
            None => Ok(()),
        }
    }

    fn check_range(&self, range_bytes: u64) -> Result<(), KvLayoutError> {
        // A whole stride for the last block: its extent's chunks lie in the range too.
        let blocks = u128::from(self.blocks) * u128::from(self.block_stride_bytes.max(self.block_bytes));
        let layers = u128::from(self.layers - 1) * u128::from(self.layer_stride_bytes);
        let needed = if self.is_by_layer() { layers.saturating_add(blocks) } else { blocks };
        let needed = u64::try_from(needed).unwrap_or(u64::MAX);
        if needed <= range_bytes { Ok(()) } else { Err(KvLayoutError::Range { needed, range_bytes }) }
    }

    fn check_strides(&self) -> Result<(), KvLayoutError> {
        let (inner, count, outer) = if self.is_by_layer() {
            (self.block_stride_bytes, self.blocks, self.layer_stride_bytes)
        } else {
            (self.layer_stride_bytes, self.layers, self.block_stride_bytes)
        };
        let outer_bytes = u128::from(count - 1) * u128::from(inner) + u128::from(self.block_bytes);
        let is_inner_apart = count == 1 || inner >= self.block_bytes;
        let is_outer_apart = self.layers == 1 || u128::from(outer) >= outer_bytes;
        if is_inner_apart && is_outer_apart && self.block_stride_bytes >= self.block_bytes {
            Ok(())
        } else {
            Err(KvLayoutError::Overlap(*self))
        }
    }

    /// Whether all blocks of a layer lie together; else all layers of a block do.
    fn is_by_layer(&self) -> bool {
        self.layers == 1 || self.layer_stride_bytes >= self.block_stride_bytes
    }
}

/// Returns the greatest common divisor of two numbers, of which the first is not zero.
fn greatest_divisor(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { greatest_divisor(other, one % other) }
}
