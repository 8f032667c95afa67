//! The copy of one layer block.

use crate::ids::{ChunkId, Generation, HostBlockId, LayerBlockId};

/// Copies one layer block between the device and the host tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerBlockSwap {
    /// The block on the device.
    pub layer_block: LayerBlockId,
    /// The chunk that backs it.
    pub chunk: ChunkId,
    /// The block in host memory.
    pub host: HostBlockId,
    /// Identifies the contents of the host block: set on the way out, required on the way in. Never reused.
    pub generation: Generation,
}
