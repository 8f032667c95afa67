//! The memory map: a row of equal cells, each a few chunks, divided among the owners of the chunks.

use ratatui::style::Color;
use sluice_wire::State;

/// Owner of the chunks of a cell, in the order of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellOwner {
    /// The driver's overhead.
    Overhead,
    /// Embeddings, head, norms.
    Global,
    /// Resident layers.
    Layers,
    /// Slots of moving layers.
    Slots,
    /// KV that a request refers to.
    KvUsed,
    /// KV that is cached or empty.
    KvUnused,
    /// Activations.
    Activations,
    /// Staging of copies.
    Staging,
    /// Reserved for a loan to a peer.
    Earmarked,
    /// No owner.
    Free,
}

impl CellOwner {
    /// Returns its letter in the map.
    pub const fn letter(self) -> char {
        match self {
            CellOwner::Overhead => 'o',
            CellOwner::Global => 'G',
            CellOwner::Layers => 'W',
            CellOwner::Slots => 'S',
            CellOwner::KvUsed => 'K',
            CellOwner::KvUnused => 'k',
            CellOwner::Activations => 'A',
            CellOwner::Staging => 'T',
            CellOwner::Earmarked => 'E',
            CellOwner::Free => '.',
        }
    }

    /// Returns its name in the legend.
    pub const fn name(self) -> &'static str {
        match self {
            CellOwner::Overhead => "overhead",
            CellOwner::Global => "global",
            CellOwner::Layers => "layers",
            CellOwner::Slots => "slots",
            CellOwner::KvUsed => "kv used",
            CellOwner::KvUnused => "kv cached/free",
            CellOwner::Activations => "activations",
            CellOwner::Staging => "staging",
            CellOwner::Earmarked => "earmarked",
            CellOwner::Free => "free",
        }
    }

    /// Returns its colour.
    pub const fn colour(self) -> Color {
        match self {
            CellOwner::Overhead | CellOwner::Free => Color::DarkGray,
            CellOwner::Global => Color::Magenta,
            CellOwner::Layers => Color::Blue,
            CellOwner::Slots => Color::Cyan,
            CellOwner::KvUsed => Color::Green,
            CellOwner::KvUnused => Color::LightGreen,
            CellOwner::Activations => Color::Yellow,
            CellOwner::Staging => Color::LightMagenta,
            CellOwner::Earmarked => Color::Red,
        }
    }
}

/// Returns the bytes of each owner, in the order of the map.
pub fn owners(state: &State) -> [(CellOwner, u64); 10] {
    let (memory, kv) = (&state.memory, &state.kv);
    let owned = &memory.owners;
    let used = share(owned.kv_bytes, kv.layer_blocks_used, kv.layer_blocks_total);
    [
        (CellOwner::Overhead, memory.overhead_bytes),
        (CellOwner::Global, owned.weights_global_bytes),
        (CellOwner::Layers, owned.weights_layers_bytes),
        (CellOwner::Slots, owned.slots_bytes),
        (CellOwner::KvUsed, used),
        (CellOwner::KvUnused, owned.kv_bytes - used),
        (CellOwner::Activations, owned.activation_bytes),
        (CellOwner::Staging, owned.staging_bytes),
        (CellOwner::Earmarked, owned.earmarked_bytes),
        (CellOwner::Free, owned.free_bytes),
    ]
}

/// Returns `bytes * part / whole`, at most `bytes`.
fn share(bytes: u64, part: u64, whole: u64) -> u64 {
    let scaled = u128::from(bytes) * u128::from(part.min(whole)) / u128::from(whole.max(1));
    u64::try_from(scaled).unwrap_or(bytes)
}

/// A map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryMap {
    /// Owner of each cell.
    pub cells: Vec<CellOwner>,
    /// Number of chunks per cell.
    pub chunks_per_cell: u64,
}

impl MemoryMap {
    /// Draws a map of at most `cells_max` cells. Each owner with memory gets at least one cell, if there are enough.
    pub fn from_state(state: &State, cells_max: usize) -> MemoryMap {
        let chunk = state.memory.chunk_bytes.max(1);
        let chunks = state.memory.capacity_bytes.div_ceil(chunk);
        let chunks_per_cell = chunks.div_ceil(cells_max.max(1) as u64).max(1);
        let cells = chunks.div_ceil(chunks_per_cell) as usize;
        let owners = owners(state);
        let counts = apportion(&owners.map(|(_, bytes)| bytes), cells);
        let runs = owners.iter().zip(counts);
        let cells = runs.flat_map(|((owner, _), count)| std::iter::repeat_n(*owner, count)).collect();
        MemoryMap { cells, chunks_per_cell }
    }
}

/// Divides `cells` in proportion: the floor of each share but at least one, then corrects the largest error first.
pub fn apportion(bytes: &[u64], cells: usize) -> Vec<usize> {
    let total: u128 = bytes.iter().map(|b| u128::from(*b)).sum();
    if total == 0 {
        return vec![0; bytes.len()];
    }
    let exact = |b: u64| u128::from(b) * cells as u128;
    let mut counts: Vec<_> =
        bytes.iter().map(|b| ((exact(*b) / total) as usize).max(usize::from(*b > 0))).collect();
    // Excess of an owner over its exact share, in units of bytes x cells.
    let excess = |i: usize, count: usize| (count as u128 * total) as i128 - exact(bytes[i]) as i128;
    while counts.iter().sum::<usize>() < cells {
        let poorest = (0..counts.len()).filter(|i| bytes[*i] > 0).min_by_key(|i| excess(*i, counts[*i]));
        let Some(i) = poorest else { break };
        counts[i] += 1;
    }
    while counts.iter().sum::<usize>() > cells {
        let richest = (0..counts.len()).filter(|i| counts[*i] > 1).max_by_key(|i| excess(*i, counts[*i]));
        let Some(i) = richest else { break };
        counts[i] -= 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_shares_are_exact() {
        assert_eq!(apportion(&[10, 0, 30, 60], 10), [1, 0, 3, 6]);
    }

    #[test]
    fn smallest_owner_gets_a_cell_and_total_is_exact() {
        let counts = apportion(&[1, 1_000_000, 1, 0], 40);
        assert_eq!(counts, [1, 38, 1, 0]);
    }

    #[test]
    fn rounding_never_loses_or_invents_a_cell() {
        for cells in 3..100 {
            assert_eq!(apportion(&[7, 11, 13], cells).iter().sum::<usize>(), cells);
        }
    }

    #[test]
    fn used_kv_is_the_share_of_its_blocks() {
        let mut state = State::default();
        state.memory.owners.kv_bytes = 1000;
        (state.kv.layer_blocks_total, state.kv.layer_blocks_used) = (4, 1);
        let owners = owners(&state);
        assert_eq!((owners[4], owners[5]), ((CellOwner::KvUsed, 250), (CellOwner::KvUnused, 750)));
    }
}
