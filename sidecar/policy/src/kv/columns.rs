//! Block columns: one layer block per layer for the same 16 tokens, reference-counted.

use alloc::vec::Vec;

use crate::geometry::BLOCK_TOKENS;
use crate::ids::{BlockId, ColumnId, Generation, LayerId};
use crate::layer_set::LayerSet;

/// The tokens of a full column.
pub type Tokens = [u32; BLOCK_TOKENS as usize];

/// The identity of a shareable column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Never reused, so that a child cannot match a different column as its parent.
    pub name: u64,
    /// Scope within which the column may be shared.
    pub salt: u64,
    /// Name of the preceding column, 0 for the first.
    pub parent: u64,
    /// Chained hash of the parent's hash and the tokens.
    pub hash: u64,
    /// The tokens, compared on every hit because hashes can collide.
    pub tokens: Tokens,
}

/// A column's location in the host tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLocation {
    /// Index of its place: host blocks `place * layers ..`.
    pub place: u32,
    /// Generation of the contents.
    pub generation: Generation,
}

/// Marks a block that is not on the device.
const NOWHERE: BlockId = BlockId(u32::MAX);

/// A column.
#[derive(Clone, Debug, Default)]
pub struct Column {
    /// Number of references.
    pub refs: u32,
    /// Set when its tokens are complete and other requests may share it.
    pub content: Option<Content>,
    /// Time of the last release; its key among the idle columns.
    pub stamp: u64,
    /// Its place in the host tier, for complete or pending copies of its blocks.
    pub host_location: Option<HostLocation>,
    /// Layers with a complete copy in the host tier.
    pub hosted_layers: LayerSet,
    staging_slot: Option<u32>,
    /// Layers with a block on the device.
    resident_layers: LayerSet,
    live: bool,
}

impl Column {
    /// Returns its slot in the staging buffers; steps read the blocks of its set there.
    pub fn staging_slot(&self) -> Option<u32> {
        self.staging_slot
    }

    /// Returns the layers with a block on the device.
    pub fn resident_layers(&self) -> LayerSet {
        self.resident_layers
    }

    /// Returns the layers with a block on the device and no copy in the host tier.
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
    /// Number of blocks of staged columns that are not on the device.
    away: u32,
}

impl Columns {
    /// Returns an empty table for columns of `layers` blocks.
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

    /// Adds a column with one reference. Set its blocks with [`Columns::set_blocks`].
    pub fn add(&mut self) -> ColumnId {
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.columns.push(Column::default());
            self.blocks.resize(self.columns.len() * self.layers, NOWHERE);
            ColumnId(self.columns.len() as u32 - 1)
        });
        self.columns[id.index()] = Column { refs: 1, live: true, ..Column::default() };
        id
    }

    /// Removes a column; its id may be reused.
    pub fn remove(&mut self, id: ColumnId) {
        assert!(self.get(id).refs == 0, "a column goes when nobody uses it");
        self.set_staging_slot(id, None);
        self.columns[id.index()] = Column::default();
        self.blocks_mut(id).fill(NOWHERE);
        self.vacant.push(id);
    }

    /// Returns a column.
    pub fn get(&self, id: ColumnId) -> &Column {
        let column = &self.columns[id.index()];
        assert!(column.live, "{id:?} exists");
        column
    }

    /// Returns a column for changes.
    pub fn get_mut(&mut self, id: ColumnId) -> &mut Column {
        let column = &mut self.columns[id.index()];
        assert!(column.live, "{id:?} exists");
        column
    }

    /// Returns the number of columns.
    pub fn live(&self) -> u32 {
        (self.columns.len() - self.vacant.len()) as u32
    }

    /// Returns a column if it exists.
    pub fn find(&self, id: ColumnId) -> Option<&Column> {
        self.columns.get(id.index()).filter(|column| column.live)
    }

    /// Whether it has blocks on the device.
    pub fn has_blocks(&self, id: ColumnId) -> bool {
        !self.get(id).resident_layers.is_empty()
    }

    /// Whether all its blocks are on the device.
    pub fn is_whole(&self, id: ColumnId) -> bool {
        self.get(id).resident_layers == self.all
    }

    /// Returns the layers without a block on the device.
    pub fn missing_blocks_of(&self, id: ColumnId) -> LayerSet {
        self.all - self.get(id).resident_layers
    }

    /// Returns the number of its blocks that are not on the device.
    pub fn absent(&self, id: ColumnId) -> u32 {
        self.missing_blocks_of(id).len()
    }

    /// Returns the number of blocks of staged columns that are not on the device.
    pub fn offloaded_layers(&self) -> u32 {
        self.away
    }

    /// Sets or clears the column's staging slot. Returns the previous one.
    pub fn set_staging_slot(&mut self, id: ColumnId, seat: Option<u32>) -> Option<u32> {
        let absent = self.absent(id);
        let before = core::mem::replace(&mut self.get_mut(id).staging_slot, seat);
        self.away += if seat.is_some() { absent } else { 0 };
        self.away -= if before.is_some() { absent } else { 0 };
        before
    }

    /// Sets which of its layers have a block on the device.
    fn set_resident_layers(&mut self, id: ColumnId, here: LayerSet) {
        let column = &mut self.columns[id.index()];
        let before = core::mem::replace(&mut column.resident_layers, here);
        if column.staging_slot.is_some() {
            self.away = (self.away + before.len()).strict_sub(here.len());
        }
    }

    /// Returns its block of this layer if it is on the device.
    pub fn block(&self, id: ColumnId, layer: LayerId) -> Option<BlockId> {
        Some(self.blocks(id)[layer.index()]).filter(|block| *block != NOWHERE)
    }

    /// Removes and returns its blocks on the device.
    pub fn take_blocks(&mut self, id: ColumnId) -> Vec<BlockId> {
        let mut blocks = Vec::with_capacity(self.layers);
        self.take_layers(id, self.all, &mut blocks);
        blocks
    }

    /// Removes its device blocks of these layers and appends them to `out`.
    pub fn take_layers(&mut self, id: ColumnId, layers: LayerSet, out: &mut Vec<BlockId>) {
        let here = self.get(id).resident_layers;
        let blocks = self.blocks_mut(id);
        let taken = (here & layers).iter();
        out.extend(taken.map(|layer| core::mem::replace(&mut blocks[layer.index()], NOWHERE)));
        self.set_resident_layers(id, here - layers);
    }

    /// Sets its blocks, one per layer; it had none.
    pub fn set_blocks(&mut self, id: ColumnId, blocks: &[BlockId]) {
        self.add_blocks(id, self.all, blocks);
    }

    /// Adds its device blocks of these layers, which it did not have.
    pub fn add_blocks(&mut self, id: ColumnId, layers: LayerSet, blocks: &[BlockId]) {
        assert!((self.get(id).resident_layers & layers).is_empty(), "{id:?} has one block of a layer");
        assert_eq!(layers.len() as usize, blocks.len(), "a block for each layer");
        let own = self.blocks_mut(id);
        layers.iter().zip(blocks).for_each(|(layer, block)| own[layer.index()] = *block);
        self.set_resident_layers(id, self.get(id).resident_layers | layers);
    }

    /// Sets its location in the host tier, with copies of all its layers.
    pub fn set_host_location(&mut self, id: ColumnId, stowed: HostLocation) {
        let hosted = self.all;
        let column = self.get_mut(id);
        (column.hosted_layers, column.host_location) = (hosted, Some(stowed));
    }

    /// Records that one of its blocks has moved.
    pub fn move_block(&mut self, id: ColumnId, from: BlockId, to: BlockId) {
        let block = self.blocks_mut(id).iter_mut().find(|block| **block == from);
        *block.expect("a column holds its blocks") = to;
    }

    /// Exchanges the contents of two columns, on the device and in the host tier.
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

    /// Returns a column's blocks in layer order, including those that are not on the device.
    pub fn blocks(&self, id: ColumnId) -> &[BlockId] {
        &self.blocks[id.index() * self.layers..][..self.layers]
    }

    fn blocks_mut(&mut self, id: ColumnId) -> &mut [BlockId] {
        &mut self.blocks[id.index() * self.layers..][..self.layers]
    }

    /// Returns all columns.
    pub fn iter(&self) -> impl Iterator<Item = (ColumnId, &Column)> {
        let columns = self.columns.iter().enumerate().filter(|(_, c)| c.live);
        columns.map(|(i, column)| (ColumnId(i as u32), column))
    }
}
