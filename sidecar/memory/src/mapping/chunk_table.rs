//! The chunk behind each address of an engine.

use std::collections::BTreeMap;

use sluice_policy::action::Address;
use sluice_policy::ids::ChunkId;

use super::RangeSizes;
use super::error::MappingError;
use super::layout::{Layout, Range};

/// One entry per chunk of the reservation, guards included, and the number of addresses that each mapped chunk backs.
#[derive(Debug)]
pub(crate) struct ChunkTable {
    layout: Layout,
    entries: Vec<Option<ChunkId>>,
    uses: BTreeMap<ChunkId, u32>,
}

impl ChunkTable {
    /// Creates a table without mappings.
    pub(crate) fn new(sizes: &RangeSizes) -> ChunkTable {
        let layout = Layout::new(sizes);
        let entries = vec![None; layout.chunks() as usize];
        ChunkTable { layout, entries, uses: BTreeMap::new() }
    }

    /// Returns the bytes of all ranges and guards.
    pub(crate) fn bytes(&self, chunk_bytes: u64) -> Result<usize, MappingError> {
        let chunks = self.layout.chunks();
        chunks
            .checked_mul(chunk_bytes)
            .and_then(|bytes| usize::try_from(bytes).ok())
            .ok_or(MappingError::TooLarge { chunks, chunk_bytes })
    }

    /// Returns the first chunk of a range. Panics if the model has no such layer.
    pub(crate) fn start(&self, range: Range) -> u64 {
        self.layout.span(range).expect("a range of this model").0
    }

    /// Returns the place of an address; `None` outside the ranges.
    pub(crate) fn place(&self, address: Address) -> Option<u64> {
        self.layout.index(address)
    }

    /// Returns the chunk behind `address`, if any.
    pub(crate) fn chunk_at(&self, address: Address) -> Option<ChunkId> {
        self.entries[self.place(address)? as usize]
    }

    /// Returns the number of addresses that the chunk backs.
    pub(crate) fn uses(&self, chunk: ChunkId) -> u32 {
        self.uses.get(&chunk).copied().unwrap_or(0)
    }

    /// Returns the place at which the chunk can be mapped.
    pub(crate) fn check_map(&self, address: Address, chunk: ChunkId) -> Result<u64, MappingError> {
        let place = self.place(address).ok_or(MappingError::OutOfRange { address })?;
        match self.entries[place as usize] {
            Some(found) => Err(MappingError::Occupied { address, chunk, found }),
            None => Ok(place),
        }
    }

    /// Returns the place at which the chunk is mapped.
    pub(crate) fn check_unmap(&self, address: Address, chunk: ChunkId) -> Result<u64, MappingError> {
        let place = self.place(address).ok_or(MappingError::OutOfRange { address })?;
        let found = self.entries[place as usize];
        if found == Some(chunk) { Ok(place) } else { Err(MappingError::NotMapped { address, chunk, found }) }
    }

    /// Records a mapping.
    pub(crate) fn map(&mut self, place: u64, chunk: ChunkId) {
        self.entries[place as usize] = Some(chunk);
        *self.uses.entry(chunk).or_insert(0) += 1;
    }

    /// Records that a mapping has ended.
    pub(crate) fn unmap(&mut self, place: u64) {
        let chunk = self.entries[place as usize].take().expect("only what is mapped is unmapped");
        let uses = self.uses.get_mut(&chunk).expect("a chunk behind an address is counted");
        *uses -= 1;
        if *uses == 0 {
            self.uses.remove(&chunk);
        }
    }

    /// Returns how many chunks from the front of `range` are backed without a gap.
    pub(crate) fn backed_prefix_chunks(&self, range: Range) -> u64 {
        self.span(range).iter().take_while(|entry| entry.is_some()).count() as u64
    }

    /// As `backed_prefix_chunks`, but only up to the first chunk that backs another address too.
    pub(crate) fn exclusive_prefix_chunks(&self, range: Range) -> u64 {
        let own = |entry: &&Option<ChunkId>| entry.is_some_and(|chunk| self.uses(chunk) == 1);
        self.span(range).iter().take_while(own).count() as u64
    }

    fn span(&self, range: Range) -> &[Option<ChunkId>] {
        let (start, chunks) = self.layout.span(range).unwrap_or((0, 0));
        &self.entries[start as usize..(start + chunks) as usize]
    }
}
