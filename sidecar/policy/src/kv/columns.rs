//! Block columns: one layer-block per layer for the same 16 tokens, counted by reference.

use alloc::vec::Vec;

use crate::geometry::BLOCK_TOKENS;
use crate::ids::{BlockId, ColumnId, Generation, LayerId};
use crate::layer_set::LayerSet;

/// The tokens of a full column.
pub type Tokens = [u32; BLOCK_TOKENS as usize];

/// What makes a column shareable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Never reused, so that a child cannot take another column for its parent.
    pub name: u64,
    /// Scope in which it may be found.
    pub salt: u64,
    /// Name of the column before it, 0 for the first.
    pub parent: u64,
    /// Chained hash: of the parent's hash and the tokens.
    pub hash: u64,
    /// The tokens themselves; compared on every hit, because hashes collide.
    pub tokens: Tokens,
}

/// Where a column lies in the host tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLocation {
    /// The tier's room, in columns: host blocks `place * layers ..`.
    pub place: u32,
    /// The name of what lies there.
    pub generation: Generation,
}

/// Stands for the blocks of a column that has none on the device.
const NOWHERE: BlockId = BlockId(u32::MAX);

/// A column.
#[derive(Clone, Debug, Default)]
pub struct Column {
    /// Requests that use it.
    pub refs: u32,
    /// Set when its tokens are complete and it may be found by others.
    pub content: Option<Content>,
    /// When it was last let go; its key among the idle ones.
    pub stamp: u64,
    /// Its place in the host tier, where copies of some or all of its blocks lie, or will.
    pub host_location: Option<HostLocation>,
    /// Layers whose copy in the host tier is complete.
    pub hosted_layers: LayerSet,
    staging_slot: Option<u32>,
    /// Layers whose block is on the device.
    resident_layers: LayerSet,
    live: bool,
}

impl Column {
    /// Its seat in the buffers: steps read those of its blocks that its set names from there.
    pub fn staging_slot(&self) -> Option<u32> {
        self.staging_slot
    }

    /// Layers whose block is on the device.
    pub fn resident_layers(&self) -> LayerSet {
        self.resident_layers
    }

    /// Layers whose block is on the device and not in the host tier.
    pub fn layers_not_on_host(&self) -> LayerSet {
        self.resident_layers - self.hosted_layers
    }
}

/// All columns.
#[derive(Clone, Debug)]
pub struct Columns {
    layers: usize,
    all: LayerSet,
    columns: Vec<Column>,
    /// `layers` blocks for each column.
    blocks: Vec<BlockId>,
    vacant: Vec<ColumnId>,
    /// Blocks of columns with a seat that are not on the device.
    away: u32,
}

impl Columns {
    /// No columns, of `layers` blocks each.
    pub fn new(layers: u16) -> Columns {
        Columns {
            layers: usize::from(layers),
            all: LayerSet::all(layers),
            columns: Vec::new(),
            blocks: Vec::new(),
            vacant: Vec::new(),
            away: 0,
        }
    }

    /// A new column with one reference. Its blocks are set with [`Columns::set_blocks`].
    pub fn add(&mut self) -> ColumnId {
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.columns.push(Column::default());
            self.blocks.resize(self.columns.len() * self.layers, NOWHERE);
            ColumnId(self.columns.len() as u32 - 1)
        });
        self.columns[id.index()] = Column { refs: 1, live: true, ..Column::default() };
        id
    }

    /// The column is gone; its id may name another one.
    pub fn remove(&mut self, id: ColumnId) {
        assert!(self.get(id).refs == 0, "a column goes when nobody uses it");
        self.set_staging_slot(id, None);
        self.columns[id.index()] = Column::default();
        self.blocks_mut(id).fill(NOWHERE);
        self.vacant.push(id);
    }

    /// A column.
    pub fn get(&self, id: ColumnId) -> &Column {
        let column = &self.columns[id.index()];
        assert!(column.live, "{id:?} exists");
        column
    }

    /// A column, to change.
    pub fn get_mut(&mut self, id: ColumnId) -> &mut Column {
        let column = &mut self.columns[id.index()];
        assert!(column.live, "{id:?} exists");
        column
    }

    /// Columns that exist.
    pub fn live(&self) -> u32 {
        (self.columns.len() - self.vacant.len()) as u32
    }

    /// A column, if it exists.
    pub fn find(&self, id: ColumnId) -> Option<&Column> {
        self.columns.get(id.index()).filter(|column| column.live)
    }

    /// It has blocks on the device.
    pub fn has_blocks(&self, id: ColumnId) -> bool {
        !self.get(id).resident_layers.is_empty()
    }

    /// All of its blocks are on the device.
    pub fn is_whole(&self, id: ColumnId) -> bool {
        self.get(id).resident_layers == self.all
    }

    /// Layers whose block is not on the device.
    pub fn missing_blocks_of(&self, id: ColumnId) -> LayerSet {
        self.all - self.get(id).resident_layers
    }

    /// Its blocks that are not on the device.
    pub fn absent(&self, id: ColumnId) -> u32 {
        self.missing_blocks_of(id).len()
    }

    /// Blocks of columns with a seat that are not on the device.
    pub fn offloaded_layers(&self) -> u32 {
        self.away
    }

    /// The column sits there from now on, or nowhere. Returns where it sat before.
    pub fn set_staging_slot(&mut self, id: ColumnId, seat: Option<u32>) -> Option<u32> {
        let absent = self.absent(id);
        let before = core::mem::replace(&mut self.get_mut(id).staging_slot, seat);
        self.away += if seat.is_some() { absent } else { 0 };
        self.away -= if before.is_some() { absent } else { 0 };
        before
    }

    /// Its blocks of these layers are on the device, and no others.
    fn set_resident_layers(&mut self, id: ColumnId, here: LayerSet) {
        let column = &mut self.columns[id.index()];
        let before = core::mem::replace(&mut column.resident_layers, here);
        if column.staging_slot.is_some() {
            self.away = (self.away + before.len()).strict_sub(here.len());
        }
    }

    /// Its block of this layer, if that is on the device.
    pub fn block(&self, id: ColumnId, layer: LayerId) -> Option<BlockId> {
        Some(self.blocks(id)[layer.index()]).filter(|block| *block != NOWHERE)
    }

    /// It has no blocks on the device any more. Those that it had are told.
    pub fn take_blocks(&mut self, id: ColumnId) -> Vec<BlockId> {
        let mut blocks = Vec::with_capacity(self.layers);
        self.take_layers(id, self.all, &mut blocks);
        blocks
    }

    /// It has no blocks of these layers on the device any more. Those that it had are told.
    pub fn take_layers(&mut self, id: ColumnId, layers: LayerSet, out: &mut Vec<BlockId>) {
        let here = self.get(id).resident_layers;
        let blocks = self.blocks_mut(id);
        let taken = (here & layers).iter();
        out.extend(taken.map(|layer| core::mem::replace(&mut blocks[layer.index()], NOWHERE)));
        self.set_resident_layers(id, here - layers);
    }

    /// Its blocks are these, one of each layer; it had none.
    pub fn set_blocks(&mut self, id: ColumnId, blocks: &[BlockId]) {
        self.add_blocks(id, self.all, blocks);
    }

    /// Its blocks of these layers are on the device; they were not.
    pub fn add_blocks(&mut self, id: ColumnId, layers: LayerSet, blocks: &[BlockId]) {
        assert!((self.get(id).resident_layers & layers).is_empty(), "{id:?} has one block of a layer");
        assert_eq!(layers.len() as usize, blocks.len(), "a block for each layer");
        let own = self.blocks_mut(id);
        layers.iter().zip(blocks).for_each(|(layer, block)| own[layer.index()] = *block);
        self.set_resident_layers(id, self.get(id).resident_layers | layers);
    }

    /// It lies there in the host tier, with all of its layers.
    pub fn set_host_location(&mut self, id: ColumnId, stowed: HostLocation) {
        let hosted = self.all;
        let column = self.get_mut(id);
        (column.hosted_layers, column.host_location) = (hosted, Some(stowed));
    }

    /// One of its blocks has moved.
    pub fn move_block(&mut self, id: ColumnId, from: BlockId, to: BlockId) {
        let block = self.blocks_mut(id).iter_mut().find(|block| **block == from);
        *block.expect("a column holds its blocks") = to;
    }

    /// Two columns change places, on the device and in the host tier.
    pub fn exchange(&mut self, one: ColumnId, other: ColumnId) {
        let (first, second) = (one.index() * self.layers, other.index() * self.layers);
        (0..self.layers).for_each(|layer| self.blocks.swap(first + layer, second + layer));
        let Column { host_location: stowed, hosted_layers: hosted, resident_layers: here, .. } =
            *self.get(one);
        let mirrored = self.get_mut(other);
        let before = (mirrored.host_location, mirrored.hosted_layers, mirrored.resident_layers);
        (mirrored.host_location, mirrored.hosted_layers) = (stowed, hosted);
        self.set_resident_layers(other, here);
        let column = self.get_mut(one);
        (column.host_location, column.hosted_layers) = (before.0, before.1);
        self.set_resident_layers(one, before.2);
    }

    /// Blocks of a column, front layer first, also those that are nowhere.
    pub fn blocks(&self, id: ColumnId) -> &[BlockId] {
        &self.blocks[id.index() * self.layers..][..self.layers]
    }

    fn blocks_mut(&mut self, id: ColumnId) -> &mut [BlockId] {
        &mut self.blocks[id.index() * self.layers..][..self.layers]
    }

    /// Every column.
    pub fn iter(&self) -> impl Iterator<Item = (ColumnId, &Column)> {
        let columns = self.columns.iter().enumerate().filter(|(_, c)| c.live);
        columns.map(|(i, column)| (ColumnId(i as u32), column))
    }
}
