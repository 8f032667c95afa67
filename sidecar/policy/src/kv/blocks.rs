//! KV blocks: one layer block per layer for the same 16 tokens, reference-counted.

use alloc::vec::Vec;

use crate::action::LayerBlockSwap;
use crate::digest::Digest;
use crate::geometry::BLOCK_TOKENS;
use crate::ids::{ChunkId, Generation, HostBlockId, KvBlockId, LayerBlockId, LayerId};
use crate::layer_set::LayerSet;

/// The tokens of a full KV block.
pub type Tokens = [u32; BLOCK_TOKENS as usize];

/// Returns the hash of a KV block from the preceding KV block's hash and its tokens.
pub fn chained_hash(parent: u64, tokens: &Tokens) -> u64 {
    let mut digest = Digest::new(parent);
    tokens.iter().for_each(|token| digest.word(u64::from(*token)));
    digest.value()
}

/// The identity of a shareable KV block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Never reused, so that a child cannot match a different KV block as its parent.
    pub name: u64,
    /// Scope within which the KV block may be shared.
    pub salt: u64,
    /// Name of the preceding KV block, 0 for the first.
    pub parent: u64,
    /// Chained hash of the parent's hash and the tokens.
    pub hash: u64,
    /// The tokens, compared on every hit because hashes can collide.
    pub tokens: Tokens,
}

/// A KV block's location in the host tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLocation {
    /// Index of its place: host blocks `place * layers ..`.
    pub place: u32,
    /// Generation of the contents.
    pub generation: Generation,
}

/// Marks a block that is not on the device.
const NOWHERE: LayerBlockId = LayerBlockId(u32::MAX);

/// A KV block.
#[derive(Clone, Debug, Default)]
pub struct KvBlock {
    /// Number of references.
    pub refs: u32,
    /// Set when its tokens are complete and other requests may share it.
    pub content: Option<Content>,
    /// Time of the last release; its key among the idle KV blocks.
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

impl KvBlock {
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

/// All KV blocks.
#[derive(Clone, Debug)]
pub struct KvBlocks {
    layers: usize,
    all: LayerSet,
    kv_blocks: Vec<KvBlock>,
    /// `layers` blocks for each KV block.
    layer_blocks: Vec<LayerBlockId>,
    vacant: Vec<KvBlockId>,
    /// Number of blocks of staged KV blocks that are not on the device.
    away: u32,
}

impl KvBlocks {
    /// Returns an empty table for KV blocks of `layers` blocks.
    pub fn new(layers: u16) -> KvBlocks {
        KvBlocks {
            layers: usize::from(layers),
            all: LayerSet::all(layers),
            kv_blocks: Vec::new(),
            layer_blocks: Vec::new(),
            vacant: Vec::new(),
            away: 0,
        }
    }

    /// Adds a KV block with one reference. Set its blocks with [`KvBlocks::set_layer_blocks`].
    pub fn add(&mut self) -> KvBlockId {
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.kv_blocks.push(KvBlock::default());
            self.layer_blocks.resize(self.kv_blocks.len() * self.layers, NOWHERE);
            KvBlockId(self.kv_blocks.len() as u32 - 1)
        });
        self.kv_blocks[id.index()] = KvBlock { refs: 1, live: true, ..KvBlock::default() };
        id
    }

    /// Removes a KV block; its id may be reused.
    pub fn remove(&mut self, id: KvBlockId) {
        assert!(self.get(id).refs == 0, "a KV block is removed when it has no reference");
        self.set_staging_slot(id, None);
        self.kv_blocks[id.index()] = KvBlock::default();
        self.layer_blocks_mut(id).fill(NOWHERE);
        self.vacant.push(id);
    }

    /// Returns a KV block.
    pub fn get(&self, id: KvBlockId) -> &KvBlock {
        let kv_block = &self.kv_blocks[id.index()];
        assert!(kv_block.live, "{id:?} exists");
        kv_block
    }

    /// Returns a KV block for changes.
    pub fn get_mut(&mut self, id: KvBlockId) -> &mut KvBlock {
        let kv_block = &mut self.kv_blocks[id.index()];
        assert!(kv_block.live, "{id:?} exists");
        kv_block
    }

    /// Returns the number of KV blocks.
    pub fn live(&self) -> u32 {
        (self.kv_blocks.len() - self.vacant.len()) as u32
    }

    /// Returns a KV block if it exists.
    pub fn find(&self, id: KvBlockId) -> Option<&KvBlock> {
        self.kv_blocks.get(id.index()).filter(|kv_block| kv_block.live)
    }

    /// Whether it has blocks on the device.
    pub fn has_layer_blocks(&self, id: KvBlockId) -> bool {
        !self.get(id).resident_layers.is_empty()
    }

    /// Whether all its blocks are on the device.
    pub fn is_whole(&self, id: KvBlockId) -> bool {
        self.get(id).resident_layers == self.all
    }

    /// Whether any KV block has blocks on the device.
    pub fn any_on_device(&self) -> bool {
        self.iter().any(|(_, kv_block)| !kv_block.resident_layers.is_empty())
    }

    /// Whether it has no user, and blocks on the device: it is only cache.
    pub fn is_unused(&self, id: KvBlockId) -> bool {
        self.get(id).refs == 0 && self.has_layer_blocks(id)
    }

    /// Returns the layers without a block on the device.
    pub fn missing_layer_blocks_of(&self, id: KvBlockId) -> LayerSet {
        self.all - self.get(id).resident_layers
    }

    /// Returns the number of its blocks that are not on the device.
    pub fn absent(&self, id: KvBlockId) -> u32 {
        self.missing_layer_blocks_of(id).len()
    }

    /// Returns the number of blocks of staged KV blocks that are not on the device.
    pub fn offloaded_layers(&self) -> u32 {
        self.away
    }

    /// Sets or clears the KV block's staging slot. Returns the previous one.
    pub fn set_staging_slot(&mut self, id: KvBlockId, slot: Option<u32>) -> Option<u32> {
        let absent = self.absent(id);
        let before = core::mem::replace(&mut self.get_mut(id).staging_slot, slot);
        self.away += if slot.is_some() { absent } else { 0 };
        self.away -= if before.is_some() { absent } else { 0 };
        before
    }

    /// Sets which of its layers have a block on the device.
    fn set_resident_layers(&mut self, id: KvBlockId, here: LayerSet) {
        let kv_block = &mut self.kv_blocks[id.index()];
        let before = core::mem::replace(&mut kv_block.resident_layers, here);
        if kv_block.staging_slot.is_some() {
            self.away = (self.away + before.len()).strict_sub(here.len());
        }
    }

    /// Returns its block of this layer if it is on the device.
    pub fn layer_block(&self, id: KvBlockId, layer: LayerId) -> Option<LayerBlockId> {
        Some(self.layer_blocks(id)[layer.index()]).filter(|layer_block| *layer_block != NOWHERE)
    }

    /// Removes and returns its blocks on the device.
    pub fn take_layer_blocks(&mut self, id: KvBlockId) -> Vec<LayerBlockId> {
        let mut layer_blocks = Vec::with_capacity(self.layers);
        self.take_layers(id, self.all, &mut layer_blocks);
        layer_blocks
    }

    /// Removes its device blocks of these layers and appends them to `out`.
    pub fn take_layers(&mut self, id: KvBlockId, layers: LayerSet, out: &mut Vec<LayerBlockId>) {
        let here = self.get(id).resident_layers;
        let layer_blocks = self.layer_blocks_mut(id);
        let taken = (here & layers).iter();
        out.extend(taken.map(|layer| core::mem::replace(&mut layer_blocks[layer.index()], NOWHERE)));
        self.set_resident_layers(id, here - layers);
    }

    /// Sets its blocks, one per layer; it had none.
    pub fn set_layer_blocks(&mut self, id: KvBlockId, layer_blocks: &[LayerBlockId]) {
        self.add_layer_blocks(id, self.all, layer_blocks);
    }

    /// Adds its device blocks of these layers, which it did not have.
    pub fn add_layer_blocks(&mut self, id: KvBlockId, layers: LayerSet, layer_blocks: &[LayerBlockId]) {
        assert!((self.get(id).resident_layers & layers).is_empty(), "{id:?} has one block of a layer");
        assert_eq!(layers.len() as usize, layer_blocks.len(), "a block for each layer");
        let own = self.layer_blocks_mut(id);
        layers.iter().zip(layer_blocks).for_each(|(layer, layer_block)| own[layer.index()] = *layer_block);
        self.set_resident_layers(id, self.get(id).resident_layers | layers);
    }

    /// Sets its location in the host tier, with copies of all its layers.
    pub fn set_host_location(&mut self, id: KvBlockId, host_location: HostLocation) {
        let hosted = self.all;
        let kv_block = self.get_mut(id);
        (kv_block.hosted_layers, kv_block.host_location) = (hosted, Some(host_location));
    }

    /// Records that one of its blocks has moved.
    pub fn move_layer_block(&mut self, id: KvBlockId, from: LayerBlockId, to: LayerBlockId) {
        let layer_block = self.layer_blocks_mut(id).iter_mut().find(|layer_block| **layer_block == from);
        *layer_block.expect("a KV block holds its blocks") = to;
    }

    /// Exchanges the contents of two KV blocks, on the device and in the host tier.
    pub fn exchange(&mut self, one: KvBlockId, other: KvBlockId) {
        let (first, second) = (one.index() * self.layers, other.index() * self.layers);
        (0..self.layers).for_each(|layer| self.layer_blocks.swap(first + layer, second + layer));
        let KvBlock { host_location, hosted_layers: hosted, resident_layers: here, .. } = *self.get(one);
        let mirrored = self.get_mut(other);
        let before = (mirrored.host_location, mirrored.hosted_layers, mirrored.resident_layers);
        (mirrored.host_location, mirrored.hosted_layers) = (host_location, hosted);
        self.set_resident_layers(other, here);
        let kv_block = self.get_mut(one);
        (kv_block.host_location, kv_block.hosted_layers) = (before.0, before.1);
        self.set_resident_layers(one, before.2);
    }

    /// Returns a KV block's blocks in layer order, including those that are not on the device.
    pub fn layer_blocks(&self, id: KvBlockId) -> &[LayerBlockId] {
        &self.layer_blocks[id.index() * self.layers..][..self.layers]
    }

    fn layer_blocks_mut(&mut self, id: KvBlockId) -> &mut [LayerBlockId] {
        &mut self.layer_blocks[id.index() * self.layers..][..self.layers]
    }

    /// Returns a KV block's blocks of these layers in the backend's form.
    pub fn layer_block_swaps(
        &self,
        (kv_block, host_location): (KvBlockId, HostLocation),
        layers: &[LayerId],
        chunk: impl Fn(LayerBlockId) -> ChunkId,
    ) -> impl Iterator<Item = LayerBlockSwap> {
        let swap = move |layer: &LayerId| {
            let layer_block =
                self.layer_block(kv_block, *layer).expect("a layer block to copy is on the device");
            let host = HostBlockId(host_location.place * self.layers as u32 + u32::from(layer.0));
            LayerBlockSwap {
                layer_block,
                chunk: chunk(layer_block),
                host,
                generation: host_location.generation,
            }
        };
        layers.iter().map(swap)
    }

    /// Returns the device blocks of those of these KV blocks that have one reference.
    pub fn layer_blocks_of_sole_user(&self, ids: impl Iterator<Item = KvBlockId>) -> u32 {
        let alone = ids.map(|id| self.get(id)).filter(|kv_block| kv_block.refs == 1);
        alone.map(|kv_block| kv_block.resident_layers.len()).sum()
    }

    /// Returns all KV blocks.
    pub fn iter(&self) -> impl Iterator<Item = (KvBlockId, &KvBlock)> {
        let kv_blocks = self.kv_blocks.iter().enumerate().filter(|(_, c)| c.live);
        kv_blocks.map(|(i, kv_block)| (KvBlockId(i as u32), kv_block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn layers(layers: &[u16]) -> LayerSet {
        layers.iter().copied().map(LayerId).collect()
    }

    /// A KV block of three layers with the layer blocks 10, 11 and 12.
    fn whole() -> (KvBlocks, KvBlockId) {
        let mut kv_blocks = KvBlocks::new(3);
        let id = kv_blocks.add();
        kv_blocks.set_layer_blocks(id, &[10, 11, 12].map(LayerBlockId));
        (kv_blocks, id)
    }

    #[test]
    fn layer_blocks_leave_and_return_layer_by_layer() {
        let (mut kv_blocks, id) = whole();
        let mut taken = Vec::new();
        kv_blocks.take_layers(id, layers(&[0, 2]), &mut taken);
        assert_eq!(taken, [10, 12].map(LayerBlockId));
        assert_eq!((kv_blocks.absent(id), kv_blocks.missing_layer_blocks_of(id)), (2, layers(&[0, 2])));
        assert!(!kv_blocks.is_whole(id) && kv_blocks.has_layer_blocks(id) && kv_blocks.any_on_device());
        kv_blocks.add_layer_blocks(id, layers(&[0, 2]), &[20, 22].map(LayerBlockId));
        assert!(kv_blocks.is_whole(id));
        assert_eq!(kv_blocks.layer_blocks(id), [20, 11, 22].map(LayerBlockId));
        kv_blocks.move_layer_block(id, LayerBlockId(11), LayerBlockId(5));
        assert_eq!(kv_blocks.layer_block(id, LayerId(1)), Some(LayerBlockId(5)));
    }

    #[test]
    fn offloaded_layers_count_only_staged_kv_blocks() {
        let (mut kv_blocks, id) = whole();
        kv_blocks.take_layers(id, layers(&[0, 1]), &mut Vec::new());
        assert_eq!(kv_blocks.offloaded_layers(), 0);
        assert_eq!(kv_blocks.set_staging_slot(id, Some(4)), None);
        assert_eq!(kv_blocks.offloaded_layers(), 2);
        kv_blocks.take_layers(id, layers(&[2]), &mut Vec::new());
        assert_eq!(kv_blocks.offloaded_layers(), 3);
        assert_eq!((kv_blocks.set_staging_slot(id, None), kv_blocks.offloaded_layers()), (Some(4), 0));
    }

    #[test]
    fn exchanged_kv_blocks_swap_device_and_host() {
        let (mut kv_blocks, hosted) = whole();
        let place = HostLocation { place: 7, generation: Generation(3) };
        kv_blocks.take_layer_blocks(hosted);
        kv_blocks.set_host_location(hosted, place);
        let new = kv_blocks.add();
        kv_blocks.set_layer_blocks(new, &[1, 2, 3].map(LayerBlockId));
        kv_blocks.exchange(hosted, new);
        assert!(kv_blocks.is_whole(hosted) && !kv_blocks.has_layer_blocks(new));
        assert_eq!([hosted, new].map(|id| kv_blocks.get(id).host_location), [None, Some(place)]);
        assert_eq!(kv_blocks.layer_blocks(hosted), [1, 2, 3].map(LayerBlockId));
    }

    #[test]
    fn only_a_sole_user_frees_layer_blocks() {
        let (mut kv_blocks, one) = whole();
        let shared = kv_blocks.add();
        kv_blocks.set_layer_blocks(shared, &[1, 2, 3].map(LayerBlockId));
        kv_blocks.get_mut(shared).refs = 2;
        assert_eq!(kv_blocks.layer_blocks_of_sole_user(vec![one, shared].into_iter()), 3);
        kv_blocks.get_mut(one).refs = 0;
        assert!(kv_blocks.is_unused(one) && !kv_blocks.is_unused(shared));
        assert_eq!(kv_blocks.take_layer_blocks(one).len(), 3);
        kv_blocks.remove(one);
        assert_eq!((kv_blocks.live(), kv_blocks.find(one).is_some()), (1, false));
    }
}
