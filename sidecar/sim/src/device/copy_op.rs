//! Copies to the device and out of buffers, as values.

use sluice_policy::action::{Fetch, Fill, LayerBlockSwap, Spill};
use sluice_policy::ids::{ActionId, ChunkId, LayerId, Nanos};
use sluice_ports::fake_memory::LayerBlockTokens;

use crate::direction::Direction;
use crate::machine::LinkTransfer;

/// A copy to the device, or out of a buffer.
#[derive(Clone, Debug)]
pub(super) enum CopyOp {
    Slab(Fill),
    Kv(Fetch),
    Spill(Spill),
}

/// A waiting copy.
#[derive(Clone, Debug)]
pub(super) struct QueuedCopy {
    pub(super) id: ActionId,
    pub(super) copy: CopyOp,
    /// When it is needed, if an operation waits for it.
    pub(super) due: Option<Nanos>,
    /// Since when the copy waits only for the link.
    pub(super) since: Option<Nanos>,
}

/// A copy on the link.
#[derive(Clone, Debug)]
pub(super) struct RunningCopy {
    pub(super) id: ActionId,
    pub(super) copy: CopyOp,
    /// Copied KV, as it was when the copy began.
    pub(super) tokens: Vec<LayerBlockTokens>,
    pub(super) transfer: LinkTransfer,
    pub(super) should_fail: bool,
}

/// A target that copies must change in submission order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CopyTarget {
    Chunk(ChunkId),
    /// A block, by its chunk and its position there.
    LayerBlock(ChunkId, u32),
    Buffer(u8),
    KvReady(LayerId),
}

impl CopyOp {
    /// Returns the chunks of a slab.
    pub(super) fn chunks(&self) -> &[ChunkId] {
        match self {
            CopyOp::Slab(fill) => &fill.chunks,
            CopyOp::Kv(_) | CopyOp::Spill(_) => &[],
        }
    }

    /// Returns the layer blocks.
    pub(super) fn layer_blocks(&self) -> &[LayerBlockSwap] {
        match self {
            CopyOp::Slab(_) => &[],
            CopyOp::Kv(fetch) => &fetch.layer_blocks,
            CopyOp::Spill(spill) => &spill.layer_blocks,
        }
    }

    /// Returns the KV buffer that the copy fills or empties.
    pub(super) fn buffer(&self) -> Option<u8> {
        match self {
            CopyOp::Slab(_) => None,
            CopyOp::Kv(fetch) => Some(fetch.buffer),
            CopyOp::Spill(spill) => Some(spill.buffer),
        }
    }

    pub(super) fn direction(&self) -> Direction {
        if matches!(self, CopyOp::Spill(_)) { Direction::Out } else { Direction::In }
    }

    pub(super) fn targets(&self, layer_blocks_per_chunk: u32) -> Vec<CopyTarget> {
        match self {
            CopyOp::Slab(fill) => fill.chunks.iter().map(|chunk| CopyTarget::Chunk(*chunk)).collect(),
            CopyOp::Kv(fetch) => {
                let layer_blocks = fetch.layer_blocks.iter();
                let layer_blocks = layer_blocks.map(|swap| {
                    CopyTarget::LayerBlock(swap.chunk, swap.layer_block.0 % layer_blocks_per_chunk)
                });
                layer_blocks
                    .chain([CopyTarget::Buffer(fetch.buffer), CopyTarget::KvReady(fetch.layer)])
                    .collect()
            }
            CopyOp::Spill(spill) => vec![CopyTarget::Buffer(spill.buffer)],
        }
    }

    /// Whether this copy must wait for `earlier`. A cheaper check than `targets` for slabs of hundreds of chunks: the
    /// first chunk identifies a slot or the slab of a layer.
    pub(super) fn depends_on(&self, earlier: &CopyOp) -> bool {
        match (self, earlier) {
            (CopyOp::Slab(this), CopyOp::Slab(that)) => this.chunks.first() == that.chunks.first(),
            (CopyOp::Kv(this), CopyOp::Kv(that)) => this.buffer == that.buffer || this.layer == that.layer,
            _ => self.buffer().is_some() && self.buffer() == earlier.buffer(),
        }
    }
}
