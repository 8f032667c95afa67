//! What lanes carry out: slabs from the master copy, KV from the host tier, KV to it.

use sluice_policy::action::{Fetch, Fill, FillTarget, Spill};
use sluice_policy::ids::{ChunkId, Generation, LayerId, SlotId};

use crate::tier::TierCopy;

/// A copy, checked against the table already.
#[derive(Debug)]
pub(crate) enum TransferOrder {
    /// A slab.
    Fill(Fill),
    /// KV of a layer into a buffer, and where its blocks lie.
    Fetch(Fetch, Vec<TierCopy>),
    /// KV to the host, into blocks that were promised to it.
    WriteBack(Vec<TierCopy>),
    /// The same out of a buffer, behind the engine.
    Spill(Spill, Vec<TierCopy>),
}

/// Which lane takes an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LaneKey {
    /// Slabs of one slot.
    Slot(SlotId),
    /// Slabs into chunks of their own.
    Resident(usize),
    /// KV into one buffer, and out of it.
    Kv(u8),
    /// KV to the host.
    WriteBack,
}

impl LaneKey {
    /// Lanes of slabs share the copying threads; KV is small, and a step waits for it or the host's link is its own.
    pub(super) fn is_weights(self) -> bool {
        matches!(self, LaneKey::Slot(_) | LaneKey::Resident(_))
    }
}

/// Something that two orders of different lanes must not change out of order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WriteTarget {
    Chunk(ChunkId),
    /// A block, by its chunk and offset.
    Block(ChunkId, u64),
    /// The word that shows a layer's KV.
    KvReady(LayerId),
}

/// Whom an order waits for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reader {
    Weights(LayerId, Generation),
    Kv(LayerId, Generation),
}

impl TransferOrder {
    /// `threads` lanes are for chunks of their own.
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

    /// What it changes. A write-back or a spill changes host blocks only, which no other lane's order has.
    pub(super) fn write_targets(&self) -> Vec<WriteTarget> {
        match self {
            TransferOrder::Fill(fill) => fill.chunks.iter().map(|chunk| WriteTarget::Chunk(*chunk)).collect(),
            TransferOrder::Fetch(fetch, copies) => {
                let block = |copy: &TierCopy| WriteTarget::Block(copy.device.0, copy.device.1);
                copies.iter().map(block).chain([WriteTarget::KvReady(fetch.layer)]).collect()
            }
            TransferOrder::WriteBack(_) | TransferOrder::Spill(..) => Vec::new(),
        }
    }

    /// The reader of what was there before.
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
