//! What the policy orders. Plain data: a backend carries it out, a journal keeps it, a simulator times it.

use alloc::vec::Vec;

use crate::ids::{ActionId, BlockId, ChunkId, FrameId, Generation, HostBlockId, LayerId, Nanos, SlotId};
use crate::peers::Peer;
use crate::peers::loans::Nonce;
use crate::reason::Reason;

pub mod staging;

use staging::FetchBlocks;

/// A chunk-sized position in one of the engine's constant virtual ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// Position in the range of embeddings, head and final norm.
    Global(u32),
    /// Position in the range of one layer's slab.
    Layer(LayerId, u32),
    /// A frame of the KV arena.
    Kv(FrameId),
    /// Position in the activation range.
    Activation(u32),
    /// Position in the staging range.
    Staging(u32),
}

impl Address {
    /// One chunk may be behind both when a transaction has ended: it is a slot's, which layers use in turn, or it has become KV
    /// and is still behind the activation address that nobody touches any more. Within a transaction it may be behind any two.
    pub fn may_share(self, other: Address) -> bool {
        use Address::{Activation, Kv, Layer};
        match (self, other) {
            (Layer(_, part), Layer(_, of_other)) => part == of_other,
            (Kv(_), Activation(_)) | (Activation(_), Kv(_)) => true,
            _ => false,
        }
    }
}

/// One change of what backs an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reback {
    /// The chunk stops backing the address, which reads as a fault from then on.
    Unmap(Address, ChunkId),
    /// The chunk backs the address. A chunk may back several addresses ([`Address::may_share`]; a move, which maps before it
    /// unmaps).
    Map(Address, ChunkId),
}

/// Changes that happen together, at a step boundary or while the engine is idle, in this order (DESIGN 4, rule b).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Transaction {
    /// The changes.
    pub ops: Vec<Reback>,
    /// Chunks that change owner in it: a backend that poisons handed-over memory poisons these, before the maps.
    pub handed_over: Vec<ChunkId>,
}

/// Where a slab is copied to.
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
    /// The layer whose slab it is; none for embeddings, head and final norm.
    pub const fn layer(self) -> Option<LayerId> {
        match self {
            FillTarget::Global => None,
            FillTarget::Resident(layer) | FillTarget::Slot(_, layer) => Some(layer),
        }
    }
}

/// A copy of one slab from the host's master copy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fill {
    /// What is filled.
    pub target: FillTarget,
    /// The contents' name: `ready` shows it once the copy is complete. Global fills carry one too.
    pub generation: Generation,
    /// The copy may start only when the engine's `done` of this layer has reached this generation: the slot's
    /// previous reader. `None` = at once.
    pub after: Option<(LayerId, Generation)>,
    /// The chunks that receive the slab, front first.
    pub chunks: Vec<ChunkId>,
}

/// One live block moves; the block tables hide it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockMove {
    /// The block read.
    pub from: BlockId,
    /// The chunk behind it.
    pub from_chunk: ChunkId,
    /// The block written, which nobody reads yet.
    pub to: BlockId,
    /// The chunk behind it.
    pub to_chunk: ChunkId,
}

/// One layer-block changes between the device and the host tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockSwap {
    /// The block on the device.
    pub block: BlockId,
    /// The chunk behind it.
    pub chunk: ChunkId,
    /// The block in host memory.
    pub host: HostBlockId,
    /// The name of what the host block holds: given to it on the way out, asked of it on the way in. Never reused.
    pub generation: Generation,
}

/// KV of one layer that is not on the device comes into a buffer for one step (OrbitFlow, Pie): the block tables of that step
/// name the buffer's blocks, which layers use in turn.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fetch {
    /// The layer.
    pub layer: LayerId,
    /// The buffer: fetches into one buffer happen in the order given.
    pub buffer: u8,
    /// The contents' name: the layer's KV word `ready` shows it once the last byte is there.
    pub generation: Generation,
    /// The copy may start only when the engine's KV word `done` of this layer has reached this generation: the buffer's
    /// previous reader. `None` = at once.
    pub after: Option<(LayerId, Generation)>,
    /// Host blocks and the blocks of the buffer that receive them. A host block that does not carry its generation
    /// refuses the whole fetch. May be empty: then only the word changes.
    pub blocks: FetchBlocks,
}

/// KV of one layer that a step writes into a buffer goes to the host tier behind the step (eLLM 4.4.2): the blocks of the
/// buffer are another layer's afterwards.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Spill {
    /// The layer.
    pub layer: LayerId,
    /// The buffer: fetches and spills of one buffer happen in the order given.
    pub buffer: u8,
    /// The step's contents of the buffer: the copy may start only when the engine's KV word `done` of the layer has reached this
    /// generation.
    pub after: Generation,
    /// Blocks of the buffer and the host blocks that receive them. Each carries its generation once the last byte of all is
    /// there, and none from the first on.
    pub blocks: Vec<BlockSwap>,
}

/// Bytes on their way from one neighbour to another, as the ledger file knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Earmark {
    /// The other side: for whom, or from whom.
    pub peer: Peer,
    /// The grant, of which these are the bytes, or a part that goes back.
    pub nonce: Nonce,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// Create physical chunks (a backend refuses what its capacity does not hold).
    Create(Vec<ChunkId>),
    /// Give physical chunks back to the device. They are unmapped by then.
    Release(Vec<ChunkId>),
    /// Create physical chunks on bytes that a neighbour has earmarked for this tenant. [`crate::event::Failure::OutOfMemory`]
    /// says that the bytes are this tenant's and no chunk was made of them; any other failure, that the promise does not
    /// hold.
    Accept {
        /// The chunks.
        chunks: Vec<ChunkId>,
        /// The neighbour's promise.
        earmark: Earmark,
    },
    /// Give physical chunks, unmapped by then, back to the device and their bytes to a neighbour.
    Lend {
        /// The chunks that go.
        chunks: Vec<ChunkId>,
        /// Chunks that this tenant may create and has not: their bytes go with the others.
        spare_chunks: u32,
        /// The promise to write.
        earmark: Earmark,
    },
    /// Change what backs some addresses.
    Reback(Transaction),
    /// Copy a slab in.
    Fill(Fill),
    /// Move blocks between frames, at a step boundary.
    MoveBlocks(Vec<BlockMove>),
    /// Copy layer-blocks to the host tier, at a step boundary. Each host block carries its generation once its last byte is
    /// there, and none before. The device's copies stay as they are.
    SwapOut(Vec<BlockSwap>),
    /// Copy layer-blocks back from the host tier, at a step boundary. Refused as a whole, and nothing changed, when a host
    /// block does not carry the generation that is asked for. The host's copies stay as they are.
    SwapIn(Vec<BlockSwap>),
    /// Copy KV of one layer into a buffer, beside steps. Counts as a fill.
    Fetch(Fetch),
    /// As `SwapOut`, but beside steps: no step writes these blocks, and nothing moves or unmaps them meanwhile.
    WriteBack(Vec<BlockSwap>),
    /// Copy KV of one layer out of a buffer, behind the step that writes it. Counts as a fetch.
    Spill(Spill),
    /// Drop every queued fill, fetch and spill that has not started. Each dropped one completes as `Dropped`, one that runs
    /// completes as usual, and only then does this action complete. Write-backs are left alone.
    DropFills,
}

impl Work {
    /// The layer-blocks that it copies between the device and the host tier.
    pub fn swaps(&self) -> &[BlockSwap] {
        match self {
            Work::SwapOut(swaps) | Work::SwapIn(swaps) | Work::WriteBack(swaps) => swaps,
            Work::Fetch(fetch) => &fetch.blocks,
            Work::Spill(spill) => &spill.blocks,
            _ => &[],
        }
    }

    /// The chunks that it names, some perhaps twice.
    pub fn chunks(&self) -> Vec<ChunkId> {
        match self {
            Work::Create(chunks)
            | Work::Release(chunks)
            | Work::Accept { chunks, .. }
            | Work::Lend { chunks, .. } => chunks.clone(),
            Work::Reback(transaction) => {
                let chunk = |op: &Reback| match *op {
                    Reback::Map(_, chunk) | Reback::Unmap(_, chunk) => chunk,
                };
                transaction.ops.iter().map(chunk).chain(transaction.handed_over.iter().copied()).collect()
            }
            Work::MoveBlocks(moves) => moves.iter().flat_map(|m| [m.from_chunk, m.to_chunk]).collect(),
            Work::Fill(fill) => fill.chunks.clone(),
            Work::SwapOut(_) | Work::SwapIn(_) | Work::WriteBack(_) | Work::Fetch(_) | Work::Spill(_) => {
                self.swaps().iter().map(|swap| swap.chunk).collect()
            }
            Work::DropFills => Vec::new(),
        }
    }
}

/// An order, pending until its completion comes back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Action {
    /// Names the completion.
    pub id: ActionId,
    /// What is to be done.
    pub work: Work,
    /// Why: ends in a metric and a log field.
    pub reason: Reason,
    /// When it is needed: copies over the link go in this order ([`crate::copy_priority`]). `None` = no step waits for it.
    pub due: Option<Nanos>,
}
