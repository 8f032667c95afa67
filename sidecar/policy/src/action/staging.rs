//! Describes a fetch's copies without a list: each step has one fetch per moving layer, each of up to one block per
//! offloaded KV block, and most are the same in every step.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::OnceCell;
use core::hash::{Hash, Hasher};
use core::ops::Deref;

use super::layer_block_swap::LayerBlockSwap;
use crate::ids::{ChunkId, Generation, HostBlockId, LayerBlockId, LayerId, SlotId};
use crate::layer_set::LayerSet;

/// A KV block in the buffers, and its location in the host tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagedRange {
    /// Index of the set of its offloaded layers in the table.
    pub set: u16,
    /// Its first host block, for layer 0.
    pub host: HostBlockId,
    /// The generation of its host blocks.
    pub generation: Generation,
}

/// All KV blocks in the buffers, and the buffers' blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StagingTable {
    /// Sets of offloaded layers.
    pub sets: Vec<LayerSet>,
    /// KV blocks by staging slot; `None` for a free slot.
    pub slots: Vec<Option<StagedRange>>,
    /// Block and chunk, by buffer, then by staging slot.
    pub buffers: Vec<Vec<(LayerBlockId, ChunkId)>>,
}

impl StagingTable {
    /// Returns the blocks of one layer that are loaded into one buffer, for the first `slots` staging slots.
    fn layer_blocks(
        &self,
        layer: LayerId,
        buffer: SlotId,
        slots: usize,
    ) -> impl Iterator<Item = LayerBlockSwap> + '_ {
        let places = self.slots[..slots].iter().zip(&self.buffers[buffer.index()]);
        places.filter_map(move |(staged, (layer_block, chunk))| {
            let StagedRange { set, host, generation } = (*staged)?;
            let host = HostBlockId(host.0 + u32::from(layer.0));
            let away = self.sets[usize::from(set)].contains(layer);
            away.then_some(LayerBlockSwap { layer_block: *layer_block, chunk: *chunk, host, generation })
        })
    }

    /// Returns the KV blocks of the first `slots` staging slots for which this layer is offloaded.
    fn away(&self, layer: LayerId, slots: usize) -> impl Iterator<Item = &StagedRange> {
        let away = move |staged: &&StagedRange| self.sets[usize::from(staged.set)].contains(layer);
        self.slots[..slots].iter().flatten().filter(away)
    }
}

/// Host blocks and the blocks that receive them: a list that is built on first access.
#[derive(Clone, Debug)]
pub struct FetchLayerBlocks {
    table: Arc<StagingTable>,
    slots: usize,
    layer: LayerId,
    buffer: SlotId,
    list: OnceCell<Vec<LayerBlockSwap>>,
}

impl FetchLayerBlocks {
    /// Returns the blocks of one layer that are loaded into one buffer, for the first `slots` staging slots of a table.
    pub fn of(table: Arc<StagingTable>, layer: LayerId, buffer: SlotId, slots: u32) -> FetchLayerBlocks {
        FetchLayerBlocks { table, slots: slots as usize, layer, buffer, list: OnceCell::new() }
    }

    /// Whether there are any blocks.
    pub fn copies(&self) -> bool {
        self.list
            .get()
            .map_or_else(|| self.table.away(self.layer, self.slots).next().is_some(), |list| !list.is_empty())
    }
}

impl From<Vec<LayerBlockSwap>> for FetchLayerBlocks {
    fn from(list: Vec<LayerBlockSwap>) -> FetchLayerBlocks {
        let table = Arc::default();
        FetchLayerBlocks { table, slots: 0, layer: LayerId(0), buffer: SlotId(0), list: list.into() }
    }
}

impl Deref for FetchLayerBlocks {
    type Target = [LayerBlockSwap];

    fn deref(&self) -> &[LayerBlockSwap] {
        self.list.get_or_init(|| self.table.layer_blocks(self.layer, self.buffer, self.slots).collect())
    }
}

impl PartialEq for FetchLayerBlocks {
    fn eq(&self, other: &FetchLayerBlocks) -> bool {
        **self == **other
    }
}

impl Eq for FetchLayerBlocks {}

impl Hash for FetchLayerBlocks {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl<'a> IntoIterator for &'a FetchLayerBlocks {
    type Item = &'a LayerBlockSwap;
    type IntoIter = core::slice::Iter<'a, LayerBlockSwap>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
