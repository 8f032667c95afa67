//! What the rules need of a backend under test.

use sluice_policy::action::Address;
use sluice_policy::geometry::Geometry;
use sluice_policy::ids::{Generation, LayerBlockId, LayerId, Nanos};

use crate::Memory;

/// Identifies a chunk of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabChunk {
    /// The layer; `None` = embeddings, head and final norm.
    pub layer: Option<LayerId>,
    /// Index of the chunk in the slab, front first.
    pub chunk: u32,
}

/// A backend under test together with an engine that sees its memory.
pub trait Backend {
    /// The backend's memory.
    type Memory: Memory;

    /// Returns the size of a chunk, in bytes: the smallest that the backend can have, at least 64 KiB.
    fn chunk_bytes() -> u64 {
        64 << 10
    }

    /// Creates a backend of this geometry with a host tier of `host_blocks` layer blocks. No chunk exists, no
    /// host block has contents, an engine is attached, and every `done` and `ready` is 0, of weights and of
    /// KV.
    fn start(geometry: &Geometry, host_blocks: u32) -> Self;

    /// Returns the memory.
    fn memory(&mut self) -> &mut Self::Memory;

    /// Returns the current time.
    fn now(&mut self) -> Nanos;

    /// Advances time, including the engine's work: a simulated backend advances to the next completion, a
    /// real one waits briefly. Returns false when nothing more ends by itself (a real backend: after a long
    /// wait without any completion).
    fn advance(&mut self) -> bool;

    /// While `held`, the engine acknowledges no transaction.
    fn hold_engine(&mut self, held: bool);

    /// Marks that the engine has finished reading `generation` of `layer`.
    fn set_done(&mut self, layer: LayerId, generation: Generation);

    /// Marks that the engine has finished reading `generation` of the KV of `layer`.
    fn set_kv_done(&mut self, layer: LayerId, generation: Generation);

    /// Returns the published `ready` of a layer's KV.
    fn kv_ready(&mut self, layer: LayerId) -> Generation;

    /// Returns the published `ready` of a layer; `None` selects the global slab.
    fn ready(&mut self, layer: Option<LayerId>) -> Generation;

    /// Returns what the engine reads at `address`; `None` if no chunk backs it or it is not part of a slab.
    fn contents(&mut self, address: Address) -> Option<SlabChunk>;

    /// Writes a recognisable block as the engine.
    fn write_layer_block(&mut self, layer_block: LayerBlockId, tag: u32);

    /// Returns the tag of the block as the engine reads it; `None` if no chunk backs it or no tag was
    /// written.
    fn layer_block(&mut self, layer_block: LayerBlockId) -> Option<u32>;
}
