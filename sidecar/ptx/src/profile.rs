//! What memory instructions cost: sectors of global memory, wavefronts of shared memory.

use std::collections::BTreeMap;

use crate::slots::LANES;
use crate::traffic::{SourceLine, Traffic};

/// Banks of shared memory, of one word of 4 bytes each.
const BANKS: u64 = 32;
/// Bytes of a sector.
const SECTOR_BYTES: u64 = 32;

/// Traffic by instruction.
pub(crate) struct Profile {
    by_instruction: Vec<Traffic>,
}

impl Profile {
    /// Of a kernel with `instructions` instructions.
    pub fn new(instructions: usize) -> Self {
        Profile { by_instruction: vec![Traffic::default(); instructions] }
    }

    /// Counts one request: `bytes` bytes at the address of each lane of `mask`.
    pub fn count(&mut self, pc: usize, shared: bool, addresses: &[u64; LANES], bytes: u64, mask: u32) {
        let lanes = (0..LANES).filter(|lane| mask >> lane & 1 != 0);
        let lanes: Vec<u64> = lanes.map(|lane| addresses[lane]).collect();
        if lanes.is_empty() {
            return;
        }
        let traffic = &mut self.by_instruction[pc];
        if shared {
            traffic.shared_requests += 1;
            // A wavefront moves 128 bytes; wide accesses go by halves or quarters of a warp.
            let words_each = bytes.div_ceil(4);
            for phase in lanes.chunks((BANKS / words_each) as usize) {
                let mut words: Vec<u64> =
                    phase.iter().flat_map(|at| (0..words_each).map(move |k| at / 4 + k)).collect();
                words.sort_unstable();
                words.dedup();
                let mut banks = [0u64; BANKS as usize];
                words.iter().for_each(|word| banks[(word % BANKS) as usize] += 1);
                traffic.wavefronts += banks.iter().max().copied().unwrap_or(0);
                traffic.least_wavefronts += (words.len() as u64).div_ceil(BANKS);
            }
        } else {
            traffic.global_requests += 1;
            let sector = |at: &u64| *at / SECTOR_BYTES..=(at + bytes - 1) / SECTOR_BYTES;
            let mut sectors: Vec<u64> = lanes.iter().flat_map(sector).collect();
            sectors.sort_unstable();
            sectors.dedup();
            let mut different = lanes;
            different.sort_unstable();
            different.dedup();
            traffic.sectors += sectors.len() as u64;
            traffic.least_sectors += (different.len() as u64 * bytes).div_ceil(SECTOR_BYTES);
        }
    }

    /// The sums by source line; `sources` are those of the instructions.
    pub fn lines(&self, sources: impl Iterator<Item = SourceLine>) -> BTreeMap<SourceLine, Traffic> {
        let mut lines = BTreeMap::<SourceLine, Traffic>::new();
        for (traffic, source) in self.by_instruction.iter().zip(sources) {
            if *traffic != Traffic::default() {
                lines.entry(source).or_default().add(traffic);
            }
        }
        lines
    }
}
