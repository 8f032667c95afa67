//! Blocks of the device that copies beside the serial queue have been given: KV that is fetched or written back.

use std::collections::BTreeMap;

use sluice_policy::ids::ChunkId;

use crate::tier::TierCopy;

/// What an order does to a block of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Reads it: nobody may write it meanwhile.
    Read,
    /// Writes it, one order at a time.
    Write,
    /// Writes or reads a buffer's; other fetches and spills may too, and their lane sees to the order.
    Fetch,
}

#[derive(Clone, Copy, Debug, Default)]
struct Users {
    readers: u32,
    fetches: u32,
}

/// Users of each block, by chunk and offset.
#[derive(Debug, Default)]
pub(super) struct Claims(BTreeMap<(ChunkId, u64), Users>);

impl Claims {
    /// Whether one more may use the block so.
    pub(super) fn allow(&self, place: (ChunkId, u64), to: Use) -> bool {
        let Users { readers, fetches } = self.0.get(&place).copied().unwrap_or_default();
        match to {
            Use::Read => fetches == 0,
            Use::Write => readers == 0 && fetches == 0,
            Use::Fetch => readers == 0,
        }
    }

    /// Whether a block of the chunk is in use.
    pub(super) fn hold(&self, chunk: ChunkId) -> bool {
        self.0.range((chunk, 0)..=(chunk, u64::MAX)).next().is_some()
    }

    pub(super) fn begin(&mut self, copies: &[TierCopy], to: Use) {
        for copy in copies {
            *users(self.0.entry(copy.device).or_default(), to) += 1;
        }
    }

    pub(super) fn end(&mut self, copies: &[TierCopy], to: Use) {
        for copy in copies {
            let entry = self.0.get_mut(&copy.device).expect("a claim that ends was made");
            *users(entry, to) -= 1;
            if entry.readers == 0 && entry.fetches == 0 {
                self.0.remove(&copy.device);
            }
        }
    }
}

fn users(entry: &mut Users, to: Use) -> &mut u32 {
    match to {
        Use::Read => &mut entry.readers,
        Use::Fetch => &mut entry.fetches,
        Use::Write => unreachable!("writers run in the serial queue, one at a time"),
    }
}
