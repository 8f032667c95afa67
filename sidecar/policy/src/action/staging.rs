//! Describes a fetch's copies without a list: each step has one fetch per moving layer, each of up to one block per
//! offloaded column, and most are the same in every step.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::OnceCell;
use core::hash::{Hash, Hasher};
use core::ops::Deref;

use super::BlockSwap;
use crate::ids::{BlockId, ChunkId, Generation, HostBlockId, LayerId, SlotId};
use crate::layer_set::LayerSet;

/// A column in the buffers, and its location in the host tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagedRange {
    /// Index of the set of its offloaded layers in the table.
    pub set: u16,
    /// Its first host block, for layer 0.
    pub host: HostBlockId,
    /// The generation of its host blocks.
    pub generation: Generation,
}

/// All columns in the buffers, and the buffers' blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StagingTable {
    /// Sets of offloaded layers.
    pub sets: Vec<LayerSet>,
    /// Columns by staging slot; `None` for a free slot.
    pub slots: Vec<Option<StagedRange>>,
    /// Block and chunk, by buffer, then by staging slot.
    pub buffers: Vec<Vec<(BlockId, ChunkId)>>,
}

impl StagingTable {
    /// Returns the blocks of one layer that are loaded into one buffer, for the first `seats` staging slots.
    fn blocks(&self, layer: LayerId, buffer: SlotId, seats: usize) -> impl Iterator<Item = BlockSwap> + '_ {
        let places = self.slots[..seats].iter().zip(&self.buffers[buffer.index()]);
        places.filter_map(move |(seated, (block, chunk))| {
            let StagedRange { set, host, generation } = (*seated)?;
            let host = HostBlockId(host.0 + u32::from(layer.0));
            let away = self.sets[usize::from(set)].contains(layer);
            away.then_some(BlockSwap { block: *block, chunk: *chunk, host, generation })
        })
    }

    /// Returns the columns of the first `seats` staging slots for which this layer is offloaded.
    fn away(&self, layer: LayerId, seats: usize) -> impl Iterator<Item = &StagedRange> {
        let away = move |seated: &&StagedRange| self.sets[usize::from(seated.set)].contains(layer);
        self.slots[..seats].iter().flatten().filter(away)
    }
}

/// Host blocks and the blocks that receive them: a list that is built on first access.
#[derive(Clone, Debug)]
pub struct FetchBlocks {
    table: Arc<StagingTable>,
    slots: usize,
    layer: LayerId,
    buffer: SlotId,
    list: OnceCell<Vec<BlockSwap>>,
}

impl FetchBlocks {
    /// Returns the blocks of one layer that are loaded into one buffer, for the first `seats` staging slots of a table.
    pub fn of(table: Arc<StagingTable>, layer: LayerId, buffer: SlotId, seats: u32) -> FetchBlocks {
        FetchBlocks { table, slots: seats as usize, layer, buffer, list: OnceCell::new() }
    }

    /// Whether there are any blocks.
    pub fn copies(&self) -> bool {
        self.list
            .get()
            .map_or_else(|| self.table.away(self.layer, self.slots).next().is_some(), |list| !list.is_empty())
    }
}

impl From<Vec<BlockSwap>> for FetchBlocks {
    fn from(list: Vec<BlockSwap>) -> FetchBlocks {
        let table = Arc::default();
        FetchBlocks { table, slots: 0, layer: LayerId(0), buffer: SlotId(0), list: list.into() }
    }
}

impl Deref for FetchBlocks {
    type Target = [BlockSwap];

    fn deref(&self) -> &[BlockSwap] {
        self.list.get_or_init(|| self.table.blocks(self.layer, self.buffer, self.slots).collect())
    }
}

impl PartialEq for FetchBlocks {
    fn eq(&self, other: &FetchBlocks) -> bool {
        **self == **other
    }
}

impl Eq for FetchBlocks {}

impl Hash for FetchBlocks {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl<'a> IntoIterator for &'a FetchBlocks {
    type Item = &'a BlockSwap;
    type IntoIter = core::slice::Iter<'a, BlockSwap>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
