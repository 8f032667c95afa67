//! Orders of the copy lanes: fills from the host weights, fetches from the host tier, write-backs and spills
//! to it.

use sluice_policy::action::{Fetch, Fill, FillTarget, Spill};
use sluice_policy::ids::{ChunkId, Generation, LayerId, SlotId};

use crate::backing::SignalWord;
use crate::tier::TierCopy;

/// A copy that was already checked against the table.
#[derive(Debug)]
pub(crate) enum TransferOrder {
    /// Weights of a slab.
    Fill(Fill),
    /// KV of a layer into a buffer, and the locations of its blocks.
    Fetch(Fetch, Vec<TierCopy>),
    /// KV to the host, into blocks that it has reserved.
    WriteBack(Vec<TierCopy>),
    /// As a write-back, but from a buffer, after the engine has written it.
    Spill(Spill, Vec<TierCopy>),
}

/// Lane of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LaneKey {
    /// Slabs of one slot.
    Slot(SlotId),
    /// Slabs into chunks outside the slots.
    Resident(usize),
    /// KV into and out of one buffer.
    Kv(u8),
    /// KV to the host.
    WriteBack,
}

impl LaneKey {
    /// Whether the lane copies slabs. These lanes share the limit on concurrent copies. KV lanes do not: KV
    /// is small, and a step waits for it, or it uses the other direction of the link.
    pub(super) fn is_weights(self) -> bool {
        matches!(self, LaneKey::Slot(_) | LaneKey::Resident(_))
    }
}

/// A target that orders of different lanes must write in submission order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WriteTarget {
    Chunk(ChunkId),
    /// A block, by chunk and offset.
    LayerBlock(ChunkId, u64),
    /// The `ready` word of a layer's KV.
    KvReady(LayerId),
}

/// The engine's progress for which an order waits.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reader {
    Weights(LayerId, Generation),
    Kv(LayerId, Generation),
}

impl Reader {
    /// Returns the word and the generation that it must reach.
    pub(super) fn word(self) -> (SignalWord, Generation) {
        match self {
            Reader::Weights(layer, generation) => (SignalWord::Done(layer), generation),
            Reader::Kv(layer, generation) => (SignalWord::KvDone(layer), generation),
        }
    }
}

impl TransferOrder {
    /// Returns the lane; `threads` lanes run fills outside the slots.
    pub(super) fn key(&self, threads: usize) -> LaneKey {
        match self {
            TransferOrder::Fill(fill) => match fill.target {
                FillTarget::Slot(slot, _) => LaneKey::Slot(slot),
                FillTarget::Global => LaneKey::Resident(0),
                FillTarget::Resident(layer) => LaneKey::Resident(layer.index() % threads),
            },
            TransferOrder::Fetch(fetch, _) => LaneKey::Kv(fetch.buffer),
            TransferOrder::Spill(spill, _) => LaneKey::Kv(spill.buffer),
            TransferOrder::WriteBack(_) => LaneKey::WriteBack,
        }
    }

    /// Returns the targets that it writes. A write-back or spill writes only host blocks, which no order of
    /// another lane has.
    pub(super) fn write_targets(&self) -> Vec<WriteTarget> {
        match self {
            TransferOrder::Fill(fill) => fill.chunks.iter().map(|chunk| WriteTarget::Chunk(*chunk)).collect(),
            TransferOrder::Fetch(fetch, copies) => {
                let layer_block = |copy: &TierCopy| WriteTarget::LayerBlock(copy.device.0, copy.device.1);
                copies.iter().map(layer_block).chain([WriteTarget::KvReady(fetch.layer)]).collect()
            }
            TransferOrder::WriteBack(_) | TransferOrder::Spill(..) => Vec::new(),
        }
    }

    /// Returns the reader or writer on the device for which it must wait.
    pub(super) fn reader(&self) -> Option<Reader> {
        match self {
            TransferOrder::Fill(fill) => {
                fill.after.map(|(layer, generation)| Reader::Weights(layer, generation))
            }
            TransferOrder::Fetch(fetch, _) => {
                fetch.after.map(|(layer, generation)| Reader::Kv(layer, generation))
            }
            TransferOrder::Spill(spill, _) => Some(Reader::Kv(spill.layer, spill.after)),
            TransferOrder::WriteBack(_) => None,
        }
    }
}
