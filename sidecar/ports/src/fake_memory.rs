//! Device memory that only tests and the simulator have: what each chunk and each host block holds, and which chunk
//! backs each address.
//!
//! Contents are fingerprints, so that a wrong read shows. An operation that contradicts the table is refused and changes
//! nothing, as [`crate::Memory`] demands. When an operation takes effect, in which order, and which faults happen is up
//! to the user: the simulator has virtual time and links, the tests of the policy any order that the contract allows.

use std::collections::BTreeMap;

use sluice_policy::action::{Address, LayerBlockMove, MapOp};
use sluice_policy::event::Failure;
use sluice_policy::ids::{ChunkId, Generation, HostBlockId, KvChunkId, LayerBlockId, LayerId};

/// The contents of a layer block: a fingerprint per token; `None` where nothing was written.
pub type LayerBlockTokens = [Option<u64>; 16];

/// The contents of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChunkContent {
    /// Unreadable: fresh, handed over, or partly written.
    Garbage,
    /// Chunk `index` of a slab.
    Slab {
        /// `None` = embeddings, head and norm.
        layer: Option<LayerId>,
        /// Generation of the slab.
        generation: Generation,
        /// Index of the chunk in the slab.
        index: u32,
    },
    /// Layer blocks.
    Kv(Vec<LayerBlockTokens>),
}

/// A block of the host tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostBlock {
    /// Generation of the contents; `None` if they are unreadable.
    pub generation: Option<Generation>,
    /// The contents.
    pub tokens: LayerBlockTokens,
}

/// Chunks, addresses and host blocks of a device.
#[derive(Clone, Debug)]
pub struct FakeMemory {
    layer_blocks_per_chunk: u32,
    /// Existing chunks and their contents.
    pub chunks: BTreeMap<ChunkId, ChunkContent>,
    /// The chunk that backs each address.
    pub table: BTreeMap<Address, ChunkId>,
    /// The addresses that each chunk backs; a chunk without an address has no entry.
    mapped: BTreeMap<ChunkId, Vec<Address>>,
    /// Host blocks that were written. The others are unreadable.
    host: BTreeMap<HostBlockId, HostBlock>,
    host_blocks: u32,
}

impl FakeMemory {
    /// Creates a memory without chunks, whose host tier has `host_blocks` blocks.
    pub fn new(layer_blocks_per_chunk: u32, host_blocks: u32) -> FakeMemory {
        FakeMemory {
            layer_blocks_per_chunk,
            chunks: BTreeMap::new(),
            table: BTreeMap::new(),
            mapped: BTreeMap::new(),
            host: BTreeMap::new(),
            host_blocks,
        }
    }

    /// Checks that none of these chunks exists.
    ///
    /// # Errors
    /// `Refused` if one does.
    pub fn check_new(&self, chunks: &[ChunkId]) -> Result<(), Failure> {
        allow(!chunks.iter().any(|chunk| self.chunks.contains_key(chunk)))
    }

    /// Creates chunks.
    ///
    /// # Errors
    /// `Refused` if one exists.
    pub fn create(&mut self, chunks: &[ChunkId]) -> Result<(), Failure> {
        self.check_new(chunks)?;
        self.chunks.extend(chunks.iter().map(|chunk| (*chunk, ChunkContent::Garbage)));
        Ok(())
    }

    /// Checks that these chunks exist and back no address.
    ///
    /// # Errors
    /// `Refused` otherwise.
    pub fn check_unmapped(&self, chunks: &[ChunkId]) -> Result<(), Failure> {
        allow(chunks.iter().all(|chunk| self.chunks.contains_key(chunk) && !self.mapped.contains_key(chunk)))
    }

    /// Releases chunks.
    ///
    /// # Errors
    /// `Refused` if one does not exist or backs an address.
    pub fn release(&mut self, chunks: &[ChunkId]) -> Result<(), Failure> {
        self.check_unmapped(chunks)?;
        chunks.iter().for_each(|chunk| drop(self.chunks.remove(chunk)));
        Ok(())
    }

    /// Makes the contents of these chunks unreadable.
    ///
    /// # Panics
    /// If one does not exist.
    pub fn poison(&mut self, chunks: &[ChunkId]) {
        chunks.iter().for_each(|chunk| *self.content_mut(*chunk) = ChunkContent::Garbage);
    }

    fn content_mut(&mut self, chunk: ChunkId) -> &mut ChunkContent {
        self.chunks.get_mut(&chunk).unwrap_or_else(|| panic!("{chunk:?} exists while its contents change"))
    }

    /// Applies the changes of a transaction in order. During it a chunk may back any two addresses, at its end only those
    /// of one owner.
    ///
    /// # Errors
    /// `Refused` if a change contradicts the table or a chunk has two owners at the end.
    pub fn remap(&mut self, ops: &[MapOp]) -> Result<(), Failure> {
        self.apply_all(ops, true)
    }

    /// Like [`FakeMemory::remap`], but permits chunks with two owners: for a planted bug.
    ///
    /// # Errors
    /// `Refused` if a change contradicts the table.
    pub fn remap_with_two_owners(&mut self, ops: &[MapOp]) -> Result<(), Failure> {
        self.apply_all(ops, false)
    }

    fn apply_all(&mut self, ops: &[MapOp], one_owner: bool) -> Result<(), Failure> {
        let made = ops.iter().take_while(|op| self.apply(**op)).count();
        let owned = !one_owner || ops.iter().all(|op| self.has_one_owner(op));
        if made == ops.len() && owned {
            return Ok(());
        }
        ops[..made].iter().rev().for_each(|op| self.revert(*op));
        Err(Failure::Refused)
    }

    /// Applies a change. Returns `false` and changes nothing if it contradicts the table.
    fn apply(&mut self, op: MapOp) -> bool {
        match op {
            MapOp::Unmap(address, chunk) => {
                let fits = self.table.get(&address) == Some(&chunk);
                if fits {
                    self.unmap(address, chunk);
                }
                fits
            }
            MapOp::Map(address, chunk) => {
                let fits = self.chunks.contains_key(&chunk) && !self.table.contains_key(&address);
                if fits {
                    self.map(address, chunk);
                }
                fits
            }
        }
    }

    fn revert(&mut self, op: MapOp) {
        match op {
            MapOp::Unmap(address, chunk) => self.map(address, chunk),
            MapOp::Map(address, chunk) => self.unmap(address, chunk),
        }
    }

    /// Whether a mapped chunk backs only addresses that may share it.
    fn has_one_owner(&self, op: &MapOp) -> bool {
        let MapOp::Map(address, chunk) = *op else { return true };
        let mut others = self.addresses_of(chunk).iter().filter(|other| **other != address);
        self.table.get(&address) != Some(&chunk) || others.all(|other| address.may_share(*other))
    }

    fn map(&mut self, address: Address, chunk: ChunkId) {
        self.table.insert(address, chunk);
        self.mapped.entry(chunk).or_default().push(address);
    }

    fn unmap(&mut self, address: Address, chunk: ChunkId) {
        self.table.remove(&address);
        let addresses = self.mapped.get_mut(&chunk).expect("a chunk behind an address is mapped");
        addresses.retain(|other| *other != address);
        if addresses.is_empty() {
            self.mapped.remove(&chunk);
        }
    }

    /// Returns the addresses that the chunk backs.
    pub fn addresses_of(&self, chunk: ChunkId) -> &[Address] {
        self.mapped.get(&chunk).map_or(&[], Vec::as_slice)
    }

    /// Returns the content behind an address, or `None` if no chunk backs it.
    pub fn content(&self, address: Address) -> Option<&ChunkContent> {
        self.chunks.get(self.table.get(&address)?)
    }

    /// Writes a slab into these chunks, in order; `None` = embeddings, head and norm.
    ///
    /// # Panics
    /// If one does not exist.
    pub fn write_slab(&mut self, layer: Option<LayerId>, generation: Generation, chunks: &[ChunkId]) {
        for (index, chunk) in (0..).zip(chunks) {
            *self.content_mut(*chunk) = ChunkContent::Slab { layer, generation, index };
        }
    }

    /// Returns where a block is: the chunk that backs its KV chunk, and the position there. `None` if none does.
    pub fn place(&self, layer_block: LayerBlockId) -> Option<(ChunkId, u32)> {
        let kv_chunk = KvChunkId(layer_block.0 / self.layer_blocks_per_chunk);
        let chunk = self.table.get(&Address::Kv(kv_chunk))?;
        Some((*chunk, self.position(layer_block)))
    }

    /// Returns the position of a block in its chunk.
    pub fn position(&self, layer_block: LayerBlockId) -> u32 {
        layer_block.0 % self.layer_blocks_per_chunk
    }

    /// Whether the chunk backs the block.
    pub fn is_backed(&self, layer_block: LayerBlockId, chunk: ChunkId) -> bool {
        self.place(layer_block).is_some_and(|(behind, _)| behind == chunk)
    }

    /// Returns the contents of block `position` of a chunk; empty if it is no KV chunk. The chunk does not change.
    pub fn tokens(&self, (chunk, position): (ChunkId, u32)) -> LayerBlockTokens {
        match self.chunks.get(&chunk) {
            Some(ChunkContent::Kv(layer_blocks)) => layer_blocks[position as usize],
            _ => LayerBlockTokens::default(),
        }
    }

    /// Returns a block for writing, or `None` if no chunk backs it.
    pub fn layer_block_mut(&mut self, layer_block: LayerBlockId) -> Option<&mut LayerBlockTokens> {
        let place = self.place(layer_block)?;
        self.chunk_layer_block_mut(place)
    }

    /// Returns block `position` of a chunk for writing. The chunk becomes a KV chunk if it is not one.
    pub fn chunk_layer_block_mut(
        &mut self,
        (chunk, position): (ChunkId, u32),
    ) -> Option<&mut LayerBlockTokens> {
        let content = self.chunks.get_mut(&chunk)?;
        if !matches!(content, ChunkContent::Kv(_)) {
            *content =
                ChunkContent::Kv(vec![LayerBlockTokens::default(); self.layer_blocks_per_chunk as usize]);
        }
        match content {
            ChunkContent::Kv(layer_blocks) => layer_blocks.get_mut(position as usize),
            _ => None,
        }
    }

    /// Copies one block.
    ///
    /// # Errors
    /// `Refused` if one of its chunks does not exist.
    pub fn move_layer_block(&mut self, one: &LayerBlockMove) -> Result<(), Failure> {
        let tokens = self.tokens((one.from_chunk, self.position(one.from)));
        let to = (one.to_chunk, self.position(one.to));
        *self.chunk_layer_block_mut(to).ok_or(Failure::Refused)? = tokens;
        Ok(())
    }

    /// Returns the number of blocks of the host tier.
    pub fn host_blocks(&self) -> u32 {
        self.host_blocks
    }

    /// Returns a host block.
    pub fn host_block(&self, host_block: HostBlockId) -> HostBlock {
        self.host.get(&host_block).copied().unwrap_or_default()
    }

    /// Replaces a host block. [`HostBlock::default`] makes it unreadable.
    ///
    /// # Panics
    /// If the tier does not have it.
    pub fn set_host_block(&mut self, host_block: HostBlockId, content: HostBlock) {
        assert!(host_block.0 < self.host_blocks, "{host_block:?} is a block of the tier");
        self.host.insert(host_block, content);
    }
}

fn allow(allowed: bool) -> Result<(), Failure> {
    if allowed { Ok(()) } else { Err(Failure::Refused) }
}
