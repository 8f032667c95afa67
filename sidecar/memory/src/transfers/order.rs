//! What lanes carry out: slabs from the master copy, KV from the host tier, KV to it.

use sluice_policy::action::{Fetch, Fill, FillTarget, Spill};
use sluice_policy::ids::{ChunkId, Generation, LayerId, SlotId};

use crate::tier::TierCopy;

/// A copy, checked against the table already.
#[derive(Debug)]
pub(crate) enum Order {
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
    Own(usize),
    /// KV into one buffer, and out of it.
    Kv(u8),
    /// KV to the host.
    Out,
}

impl LaneKey {
    /// Lanes of slabs share the copying threads; KV is small, and a step waits for it or the host's link is its own.
    pub(super) fn is_of_slabs(self) -> bool {
        matches!(self, LaneKey::Slot(_) | LaneKey::Own(_))
    }
}

/// Something that two orders of different lanes must not change out of order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
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

impl Order {
    /// `threads` lanes are for chunks of their own.
    pub(super) fn key(&self, threads: usize) -> LaneKey {
        match self {
            Order::Fill(fill) => match fill.target {
                FillTarget::Slot(slot, _) => LaneKey::Slot(slot),
                FillTarget::Global => LaneKey::Own(0),
                FillTarget::Resident(layer) => LaneKey::Own(layer.index() % threads),
            },
            Order::Fetch(fetch, _) => LaneKey::Kv(fetch.buffer),
            Order::Spill(spill, _) => LaneKey::Kv(spill.buffer),
            Order::WriteBack(_) => LaneKey::Out,
        }
    }

    /// What it changes. A write-back or a spill changes host blocks only, which no other lane's order has.
    pub(super) fn places(&self) -> Vec<Place> {
        match self {
            Order::Fill(fill) => fill.chunks.iter().map(|chunk| Place::Chunk(*chunk)).collect(),
            Order::Fetch(fetch, copies) => {
                let block = |copy: &TierCopy| Place::Block(copy.device.0, copy.device.1);
                copies.iter().map(block).chain([Place::KvReady(fetch.layer)]).collect()
            }
            Order::WriteBack(_) | Order::Spill(..) => Vec::new(),
        }
    }

    /// The reader of what was there before.
    pub(super) fn reader(&self) -> Option<Reader> {
        match self {
            Order::Fill(fill) => fill.after.map(|(layer, generation)| Reader::Weights(layer, generation)),
            Order::Fetch(fetch, _) => fetch.after.map(|(layer, generation)| Reader::Kv(layer, generation)),
            Order::Spill(spill, _) => Some(Reader::Kv(spill.layer, spill.after)),
            Order::WriteBack(_) => None,
        }
    }
}
