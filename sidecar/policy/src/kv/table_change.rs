//! A change of the block tables that the engine reads.

use alloc::vec::Vec;

use crate::ids::{LayerBlockId, RequestId};

/// The layer blocks of a KV block of an open request are new or have moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableChange {
    /// The request.
    pub request: RequestId,
    /// Index of the KV block within the request.
    pub kv_block: u32,
    /// Layer block of each layer, front first.
    pub layer_blocks: Vec<LayerBlockId>,
}
