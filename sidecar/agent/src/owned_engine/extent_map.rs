//! Which chunk is behind each address of the engine's KV.
//!
//! The memory manager numbers KV chunks as it likes, and names those of each extent. The engine's addresses are fixed:
//! an extent has the same positions in the KV range whatever backs it. This map translates changes of mappings.

use std::collections::BTreeMap;

use sluice_link::message::{KvExtents, KvLayout};
use sluice_policy::action::{Address, MapOp};
use sluice_policy::ids::{ChunkId, KvChunkId};
use sluice_ports::block_budget::{ExtentId, ExtentMemory};

/// The engine's KV: what is behind each position of the KV range.
#[derive(Debug)]
pub struct ExtentMap {
    layout: KvLayout,
    extents: KvExtents,
    chunk_bytes: u64,
    /// The chunk of each KV chunk of the memory manager.
    chunks: BTreeMap<KvChunkId, ChunkId>,
    /// The KV chunk of the memory manager behind each position that is mapped.
    behind: BTreeMap<KvChunkId, KvChunkId>,
    /// The position of each KV chunk of the memory manager that is mapped.
    positions: BTreeMap<KvChunkId, KvChunkId>,
}

impl ExtentMap {
    /// The map of an engine that has just attached: nothing is mapped. `backed` are the chunks of the memory manager's KV
    /// chunks.
    pub fn new(
        layout: KvLayout,
        extents: KvExtents,
        chunk_bytes: u64,
        backed: impl IntoIterator<Item = (KvChunkId, ChunkId)>,
    ) -> ExtentMap {
        let chunks = backed.into_iter().collect();
        let (behind, positions) = (BTreeMap::new(), BTreeMap::new());
        ExtentMap { layout, extents, chunk_bytes, chunks, behind, positions }
    }

    /// Translates a transaction of the memory manager. A KV chunk that leaves is unmapped where it is mapped; one that
    /// comes is mapped when an extent gets it.
    pub fn translate(&mut self, ops: &[MapOp]) -> Vec<MapOp> {
        let mut translated = Vec::new();
        for op in ops {
            match *op {
                MapOp::Map(Address::Kv(at), chunk) => {
                    self.chunks.insert(at, chunk);
                }
                MapOp::Unmap(Address::Kv(at), chunk) => {
                    translated.extend(self.unmap(at));
                    assert_eq!(self.chunks.remove(&at), Some(chunk), "{at:?} had this chunk");
                }
                MapOp::Map(Address::Layer(..), _) | MapOp::Unmap(Address::Layer(..), _) => {
                    translated.push(*op)
                }
                // The worker keeps its other parameters and its activations in memory of its own.
                MapOp::Map(..) | MapOp::Unmap(..) => {}
            }
        }
        translated
    }

    /// Returns the changes that take the memory of `withdrawn` extents from the engine, and give it `memory`.
    pub fn apply(&mut self, withdrawn: &[ExtentId], memory: &[ExtentMemory]) -> Vec<MapOp> {
        let mut ops: Vec<MapOp> = Vec::new();
        let left: Vec<_> = withdrawn.iter().flat_map(|extent| self.positions_of(*extent)).collect();
        for position in left {
            let at = self.behind.get(&position).copied();
            ops.extend(at.and_then(|at| self.unmap(at)));
        }
        let new: Vec<_> = memory.iter().flat_map(|one| self.placed(one)).collect();
        let moved: Vec<_> =
            new.into_iter().filter(|(position, at)| self.behind.get(position) != Some(at)).collect();
        for (position, at) in &moved {
            let before = self.behind.get(position).copied();
            ops.extend(before.and_then(|before| self.unmap(before)));
            ops.extend(self.unmap(*at));
        }
        for (position, at) in moved {
            self.behind.insert(position, at);
            self.positions.insert(at, position);
            ops.push(MapOp::Map(Address::Kv(position), self.chunks[&at]));
        }
        ops
    }

    /// Returns the positions of an extent in the KV range.
    pub fn positions_of(&self, extent: ExtentId) -> Vec<KvChunkId> {
        self.layout.extent_chunks(self.chunk_bytes, self.extents, extent.0)
    }

    /// Chunks of an extent in one layer.
    pub fn chunks_per_layer(&self, layers: u32) -> u32 {
        self.positions_of(ExtentId::NULL).len() as u32 / layers
    }

    /// The positions that the KV chunks of a part of an extent have.
    fn placed(&self, memory: &ExtentMemory) -> Vec<(KvChunkId, KvChunkId)> {
        let positions = self.positions_of(memory.extent);
        let layers = memory.layers.len();
        let first = memory.part as usize * layers;
        let placed = positions[first..first + layers].iter().copied();
        placed.zip(memory.layers.iter().map(|block| KvChunkId(block.0))).collect()
    }

    /// Takes a KV chunk from its position.
    fn unmap(&mut self, at: KvChunkId) -> Option<MapOp> {
        let position = self.positions.remove(&at)?;
        self.behind.remove(&position);
        Some(MapOp::Unmap(Address::Kv(position), self.chunks[&at]))
    }
}

#[cfg(test)]
mod tests {
    use sluice_policy::ids::{LayerBlockId, LayerId};

    use super::*;

    const CHUNK: u64 = 64 << 10;

    /// Two layers of four blocks, two blocks a chunk: two extents of one chunk in each layer.
    fn map() -> ExtentMap {
        let layout = KvLayout {
            layers: 2,
            blocks: 4,
            block_bytes: CHUNK / 2,
            layer_stride_bytes: 2 * CHUNK,
            block_stride_bytes: CHUNK / 2,
            block_tokens: 16,
        };
        let extents = layout.extents(CHUNK, 4).unwrap();
        assert_eq!(extents, KvExtents { extent_blocks: 2, extents: 2 });
        let backed = (0..6).map(|at| (KvChunkId(at), ChunkId(100 + at)));
        ExtentMap::new(layout, extents, CHUNK, backed)
    }

    fn memory(extent: u32, layers: [u32; 2]) -> ExtentMemory {
        ExtentMemory { extent: ExtentId(extent), part: 0, layers: layers.map(LayerBlockId).to_vec() }
    }

    fn mapped(position: u32, at: u32) -> MapOp {
        MapOp::Map(Address::Kv(KvChunkId(position)), ChunkId(100 + at))
    }

    fn unmapped(position: u32, at: u32) -> MapOp {
        MapOp::Unmap(Address::Kv(KvChunkId(position)), ChunkId(100 + at))
    }

    #[test]
    fn an_extent_has_its_positions_in_every_layer_whatever_backs_it() {
        let mut map = map();
        assert_eq!(map.apply(&[], &[memory(0, [4, 1])]), [mapped(0, 4), mapped(2, 1)]);
        assert_eq!(map.apply(&[], &[memory(1, [0, 3])]), [mapped(1, 0), mapped(3, 3)]);
        assert_eq!(map.apply(&[], &[memory(1, [0, 3])]), [], "nothing has changed");
        assert_eq!(map.apply(&[ExtentId(0)], &[]), [unmapped(0, 4), unmapped(2, 1)]);
        assert_eq!(map.apply(&[ExtentId(0)], &[]), [], "it has none any more");
    }

    #[test]
    fn memory_that_moves_leaves_its_old_position_first() {
        let mut map = map();
        map.apply(&[], &[memory(0, [0, 1]), memory(1, [2, 3])]);
        assert_eq!(map.apply(&[], &[memory(0, [5, 1])]), [unmapped(0, 0), mapped(0, 5)]);
        // Two extents exchange a chunk.
        let ops = map.apply(&[], &[memory(0, [2, 1]), memory(1, [5, 3])]);
        assert_eq!(ops, [unmapped(0, 5), unmapped(1, 2), mapped(0, 2), mapped(1, 5)]);
    }

    #[test]
    fn chunk_that_leaves_kv_is_unmapped_where_it_is() {
        let mut map = map();
        map.apply(&[], &[memory(1, [2, 3])]);
        let (layer, chunk) = (Address::Layer(LayerId(0), 0), ChunkId(102));
        let ops = [MapOp::Unmap(Address::Kv(KvChunkId(2)), chunk), MapOp::Map(layer, chunk)];
        assert_eq!(map.translate(&ops), [unmapped(1, 2), MapOp::Map(layer, chunk)]);
        let back = [MapOp::Unmap(layer, chunk), MapOp::Map(Address::Kv(KvChunkId(2)), chunk)];
        assert_eq!(map.translate(&back), [MapOp::Unmap(layer, chunk)], "no extent has it yet");
        assert_eq!(map.apply(&[], &[memory(1, [2, 3])]), [mapped(1, 2)]);
    }

    #[test]
    fn chunks_of_a_layer_follow_from_the_layout() {
        assert_eq!(map().chunks_per_layer(2), 1);
    }
}
