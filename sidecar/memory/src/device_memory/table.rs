//! The backend's own table of which chunk backs which address. Every operation is checked against it.

use std::collections::BTreeMap;

use sluice_policy::action::{Address, MapOp};
use sluice_policy::event::Failure;
use sluice_policy::ids::ChunkId;

use crate::mapping::RangeSizes;
use crate::mapping::layout::Layout;

/// The chunk behind each address, and the addresses and number of fills of each chunk.
#[derive(Debug)]
pub(super) struct MappingTable {
    layout: Layout,
    backing: BTreeMap<Address, ChunkId>,
    mapped: Vec<Vec<Address>>,
    filling: Vec<u32>,
}

impl MappingTable {
    pub(super) fn new(ranges: &RangeSizes, capacity_chunks: u32) -> MappingTable {
        let (mapped, filling) =
            (vec![Vec::new(); capacity_chunks as usize], vec![0; capacity_chunks as usize]);
        MappingTable { layout: Layout::new(ranges), backing: BTreeMap::new(), mapped, filling }
    }

    pub(super) fn backing(&self, address: Address) -> Option<ChunkId> {
        self.backing.get(&address).copied()
    }

    pub(super) fn mappings(&self) -> impl Iterator<Item = (Address, ChunkId)> + '_ {
        self.backing.iter().map(|(address, chunk)| (*address, *chunk))
    }

    /// Whether an address maps the chunk.
    pub(super) fn is_mapped(&self, chunk: ChunkId) -> bool {
        !self.mapped[chunk.index()].is_empty()
    }

    /// Whether a fill into the chunk is queued or running.
    pub(super) fn is_filling(&self, chunk: ChunkId) -> bool {
        self.filling[chunk.index()] != 0
    }

    pub(super) fn begin_fill(&mut self, chunks: &[ChunkId]) {
        chunks.iter().for_each(|chunk| self.filling[chunk.index()] += 1);
    }

    pub(super) fn end_fill(&mut self, chunks: &[ChunkId]) {
        chunks.iter().for_each(|chunk| self.filling[chunk.index()] -= 1);
    }

    /// Applies all changes or none. During the transaction a chunk may back its old and its new address; at
    /// the end it has one owner.
    pub(super) fn apply(&mut self, ops: &[MapOp], exists: impl Fn(ChunkId) -> bool) -> Result<(), Failure> {
        let made = ops.iter().take_while(|op| self.apply_one(**op, &exists)).count();
        if made < ops.len() || !ops.iter().all(|op| self.has_one_owner(op)) {
            self.revert(&ops[..made]);
            return Err(Failure::Refused);
        }
        Ok(())
    }

    fn has_one_owner(&self, op: &MapOp) -> bool {
        let MapOp::Map(address, chunk) = *op else { return true };
        let others = self.mapped[chunk.index()].iter().filter(|other| **other != address);
        self.backing(address) != Some(chunk) || others.copied().all(|other| address.may_share(other))
    }

    /// Reverts changes that were applied, the last one first.
    pub(super) fn revert(&mut self, ops: &[MapOp]) {
        for op in ops.iter().rev() {
            let back = match *op {
                MapOp::Map(address, chunk) => MapOp::Unmap(address, chunk),
                MapOp::Unmap(address, chunk) => MapOp::Map(address, chunk),
            };
            assert!(self.apply_one(back, &|_| true), "a change that was made can be taken back: {op:?}");
        }
    }

    fn apply_one(&mut self, op: MapOp, exists: &impl Fn(ChunkId) -> bool) -> bool {
        match op {
            MapOp::Map(address, chunk) => {
                let free = self.layout.index(address).is_some() && !self.backing.contains_key(&address);
                if !free || !exists(chunk) {
                    return false;
                }
                self.backing.insert(address, chunk);
                self.mapped[chunk.index()].push(address);
            }
            MapOp::Unmap(address, chunk) => {
                if self.backing(address) != Some(chunk) {
                    return false;
                }
                self.backing.remove(&address);
                self.mapped[chunk.index()].retain(|other| *other != address);
            }
        }
        true
    }
}
