//! Actions that the policy orders, as plain data: a backend executes them, a journal records them, a simulator times
//! them.

use alloc::vec::Vec;

use crate::ids::{ActionId, ChunkId, Generation, KvChunkId, LayerBlockId, LayerId, Nanos, SlotId};
use crate::peers::Peer;
use crate::peers::loans::Nonce;
use crate::reason::Reason;

mod layer_block_swap;
pub mod staging;

pub use layer_block_swap::LayerBlockSwap;
use staging::FetchLayerBlocks;

/// A chunk-sized position in one of the engine's constant virtual ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// Position in the range of embeddings, head and final norm.
    Global(u32),
    /// Position in the range of one layer's slab.
    Layer(LayerId, u32),
    /// A KV chunk.
    Kv(KvChunkId),
    /// Position in the activation range.
    Activation(u32),
    /// Position in the staging range.
    Staging(u32),
}

impl Address {
    /// Whether one chunk may back both addresses after a transaction: a slot's chunk, which layers share in sequence,
    /// or a chunk that became KV and still backs an unused activation address. Within a transaction a chunk may back
    /// any two addresses.
    pub fn may_share(self, other: Address) -> bool {
        use Address::{Activation, Kv, Layer};
        match (self, other) {
            (Layer(_, part), Layer(_, of_other)) => part == of_other,
            (Kv(_), Activation(_)) | (Activation(_), Kv(_)) => true,
            _ => false,
        }
    }
}

/// One change of the chunk that backs an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MapOp {
    /// The chunk no longer backs the address; accesses to the address fault.
    Unmap(Address, ChunkId),
    /// The chunk backs the address. A chunk may back several addresses ([`Address::may_share`]; also a move, which maps
    /// before it unmaps).
    Map(Address, ChunkId),
}

/// Changes that are applied together, in order, at a step boundary or while the engine is idle.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Transaction {
    /// The changes.
    pub ops: Vec<MapOp>,
    /// Chunks that change owner in it. A backend that poisons transferred memory poisons these before the maps.
    pub handed_over: Vec<ChunkId>,
}

/// Destination of a slab copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FillTarget {
    /// Embeddings, head and final norm.
    Global,
    /// The layer's own chunks.
    Resident(LayerId),
    /// A slot, for a moving layer.
    Slot(SlotId, LayerId),
}

impl FillTarget {
    /// Returns the layer of the slab; `None` for embeddings, head and final norm.
    pub const fn layer(self) -> Option<LayerId> {
        match self {
            FillTarget::Global => None,
            FillTarget::Resident(layer) | FillTarget::Slot(_, layer) => Some(layer),
        }
    }
}

/// A copy of one slab from the master copy in host memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fill {
    /// The destination.
    pub target: FillTarget,
    /// Identifies the contents: `ready` shows it once the copy is complete. Global fills have one too.
    pub generation: Generation,
    /// The copy may start only when the engine's `done` of this layer reaches this generation, the slot's previous
    /// reader. `None`: at once.
    pub after: Option<(LayerId, Generation)>,
    /// The chunks that receive the slab, in order.
    pub chunks: Vec<ChunkId>,
}

/// Moves one live block. The block tables hide the move from the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerBlockMove {
    /// The source block.
    pub from: LayerBlockId,
    /// The chunk that backs it.
    pub from_chunk: ChunkId,
    /// The destination block, not read yet.
    pub to: LayerBlockId,
    /// The chunk that backs it.
    pub to_chunk: ChunkId,
}

/// Loads offloaded KV of one layer into a buffer for one step (OrbitFlow, Pie). The block tables of that step name the
/// buffer's blocks, which layers share in sequence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fetch {
    /// The layer.
    pub layer: LayerId,
    /// The buffer. Fetches into one buffer run in order.
    pub buffer: u8,
    /// Identifies the contents: the layer's KV word `ready` shows it once the last byte has arrived.
    pub generation: Generation,
    /// The copy may start only when the engine's KV word `done` of this layer reaches this generation, the buffer's
    /// previous reader. `None`: at once.
    pub after: Option<(LayerId, Generation)>,
    /// Host blocks and the buffer blocks that receive them. If a host block does not have its generation, the whole
    /// fetch is refused. If empty, only the word changes.
    pub layer_blocks: FetchLayerBlocks,
}

/// Copies KV of one layer from a buffer to the host tier after a step has written it (eLLM 4.4.2). Afterwards another
/// layer uses the buffer's blocks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Spill {
    /// The layer.
    pub layer: LayerId,
    /// The buffer. Fetches and spills of one buffer run in order.
    pub buffer: u8,
    /// The copy may start only when the engine's KV word `done` of the layer reaches this generation, which identifies
    /// the step's contents of the buffer.
    pub after: Generation,
    /// Buffer blocks and the host blocks that receive them. The host blocks lose their generations at the start and get
    /// the new ones once the last byte of all has arrived.
    pub layer_blocks: Vec<LayerBlockSwap>,
}

/// Bytes in transfer between two peers, as the ledger file records them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Earmark {
    /// The other peer: the recipient or the sender.
    pub peer: Peer,
    /// The loan that the bytes belong to.
    pub nonce: Nonce,
}

/// The work of an action.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// Creates physical chunks. A backend refuses more than its capacity.
    Create(Vec<ChunkId>),
    /// Releases physical chunks, which are unmapped by then, to the device.
    Release(Vec<ChunkId>),
    /// Creates physical chunks on bytes that a peer earmarked for this tenant. After
    /// [`crate::event::Failure::OutOfMemory`] the bytes belong to this tenant, but no chunk was created; after any
    /// other failure the earmark is invalid.
    Accept {
        /// The chunks.
        chunks: Vec<ChunkId>,
        /// The peer's earmark.
        earmark: Earmark,
    },
    /// Releases physical chunks, which are unmapped by then, to the device and earmarks their bytes for a peer.
    Lend {
        /// The chunks to release.
        chunks: Vec<ChunkId>,
        /// Chunks that this tenant may create and has not created: their bytes are included.
        spare_chunks: u32,
        /// The earmark to write.
        earmark: Earmark,
    },
    /// Changes what backs some addresses.
    Transaction(Transaction),
    /// Copies a slab to the device.
    Fill(Fill),
    /// Moves blocks between KV chunks, at a step boundary.
    MoveLayerBlocks(Vec<LayerBlockMove>),
    /// Copies layer blocks to the host tier, at a step boundary. Each host block has its generation only once its last
    /// byte has arrived. The device's copies stay.
    SwapOut(Vec<LayerBlockSwap>),
    /// Copies layer blocks from the host tier, at a step boundary. Refused as a whole, without changes, if a host block
    /// does not have the required generation. The host's copies stay.
    SwapIn(Vec<LayerBlockSwap>),
    /// Copies KV of one layer into a buffer, in parallel with steps. Counts as a fill.
    Fetch(Fetch),
    /// Like `SwapOut`, but in parallel with steps: no step writes these blocks, and they are neither moved nor unmapped
    /// during the copy.
    WriteBack(Vec<LayerBlockSwap>),
    /// Copies KV of one layer out of a buffer, after the step that writes it. Counts as a fetch.
    Spill(Spill),
    /// Drops every queued fill, fetch and spill that has not started. Each dropped one completes as `Dropped`, a
    /// running one completes as usual, and only then does this action complete. Write-backs are unaffected.
    DropFills,
}

impl Work {
    /// Returns the layer blocks that it copies between the device and the host tier.
    pub fn swaps(&self) -> &[LayerBlockSwap] {
        match self {
            Work::SwapOut(swaps) | Work::SwapIn(swaps) | Work::WriteBack(swaps) => swaps,
            Work::Fetch(fetch) => &fetch.layer_blocks,
            Work::Spill(spill) => &spill.layer_blocks,
            _ => &[],
        }
    }

    /// Returns the chunks that it names, possibly with duplicates.
    pub fn chunks(&self) -> Vec<ChunkId> {
        match self {
            Work::Create(chunks)
            | Work::Release(chunks)
            | Work::Accept { chunks, .. }
            | Work::Lend { chunks, .. } => chunks.clone(),
            Work::Transaction(transaction) => {
                let chunk = |op: &MapOp| match *op {
                    MapOp::Map(_, chunk) | MapOp::Unmap(_, chunk) => chunk,
                };
                transaction.ops.iter().map(chunk).chain(transaction.handed_over.iter().copied()).collect()
            }
            Work::MoveLayerBlocks(moves) => moves.iter().flat_map(|m| [m.from_chunk, m.to_chunk]).collect(),
            Work::Fill(fill) => fill.chunks.clone(),
            Work::SwapOut(_) | Work::SwapIn(_) | Work::WriteBack(_) | Work::Fetch(_) | Work::Spill(_) => {
                self.swaps().iter().map(|swap| swap.chunk).collect()
            }
            Work::DropFills => Vec::new(),
        }
    }
}

/// An ordered action, pending until its completion arrives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Action {
    /// Identifies the completion.
    pub id: ActionId,
    /// The work.
    pub work: Work,
    /// The reason, for a metric and a log field.
    pub reason: Reason,
    /// When it is needed: the link copies in this order ([`crate::copy_priority`]). `None`: no step waits for it.
    pub due: Option<Nanos>,
}
