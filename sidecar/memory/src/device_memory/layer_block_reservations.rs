//! Blocks of the device that asynchronous copies use: KV that is fetched, spilled or written back.

use std::collections::BTreeMap;

use sluice_policy::ids::ChunkId;

use crate::tier::TierCopy;

/// How an order uses a block of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LayerBlockUse {
    /// Reads it; no order may write it at the same time.
    Read,
    /// Writes it; excludes all other uses.
    Write,
    /// Writes or reads a block of a buffer. Other fetches and spills may use it too; their lane orders them.
    Fetch,
}

#[derive(Clone, Copy, Debug, Default)]
struct UseCounts {
    readers: u32,
    fetches: u32,
}

/// Users of each block, by chunk and offset.
#[derive(Debug, Default)]
pub(super) struct LayerBlockReservations(BTreeMap<(ChunkId, u64), UseCounts>);

impl LayerBlockReservations {
    /// Whether one more order may use the block in this way.
    pub(super) fn can_use(&self, place: (ChunkId, u64), to: LayerBlockUse) -> bool {
        let UseCounts { readers, fetches } = self.0.get(&place).copied().unwrap_or_default();
        match to {
            LayerBlockUse::Read => fetches == 0,
            LayerBlockUse::Write => readers == 0 && fetches == 0,
            LayerBlockUse::Fetch => readers == 0,
        }
    }

    /// Whether a block of the chunk is in use.
    pub(super) fn is_chunk_in_use(&self, chunk: ChunkId) -> bool {
        self.0.range((chunk, 0)..=(chunk, u64::MAX)).next().is_some()
    }

    pub(super) fn begin(&mut self, copies: &[TierCopy], to: LayerBlockUse) {
        for copy in copies {
            *use_count(self.0.entry(copy.device).or_default(), to) += 1;
        }
    }

    pub(super) fn end(&mut self, copies: &[TierCopy], to: LayerBlockUse) {
        for copy in copies {
            let entry = self.0.get_mut(&copy.device).expect("a claim that ends was made");
            *use_count(entry, to) -= 1;
            if entry.readers == 0 && entry.fetches == 0 {
                self.0.remove(&copy.device);
            }
        }
    }
}

fn use_count(entry: &mut UseCounts, to: LayerBlockUse) -> &mut u32 {
    match to {
        LayerBlockUse::Read => &mut entry.readers,
        LayerBlockUse::Fetch => &mut entry.fetches,
        LayerBlockUse::Write => unreachable!("writers run in the serial queue, one at a time"),
    }
}
