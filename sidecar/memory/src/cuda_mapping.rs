//! The counterpart of [`crate::Mapping`] on a GPU: constant device addresses whose backing chunks change.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use sluice_policy::action::{Address, MapOp};
use sluice_policy::ids::ChunkId;

use crate::cuda::{self, Chunk, Context, granularity};
use crate::mapping::chunk_table::ChunkTable;
use crate::mapping::page_size::check_chunk_bytes;
use crate::mapping::{MappingError, Range, RangeSizes};

/// The engine's ranges on the device, the chunks that the sidecar has passed, and the chunk behind each address.
#[derive(Debug)]
pub struct CudaMapping {
    table: ChunkTable,
    range: cuda::Range,
    imported: BTreeMap<ChunkId, Arc<Chunk>>,
    chunk_bytes: u64,
    context: Context,
}

impl CudaMapping {
    /// Reserves all ranges without backing. Their addresses are constant until drop.
    pub fn reserve(
        context: &Context,
        chunk_bytes: u64,
        sizes: &RangeSizes,
    ) -> Result<CudaMapping, MappingError> {
        check_chunk_bytes(chunk_bytes, granularity(context.device())?)?;
        let table = ChunkTable::new(sizes);
        let range = cuda::Range::reserve(context, table.bytes(chunk_bytes)? as u64)?;
        Ok(CudaMapping { table, range, imported: BTreeMap::new(), chunk_bytes, context: context.clone() })
    }

    /// Takes a chunk that the sidecar exported, before it is mapped. The descriptor may be closed afterwards. A chunk
    /// that is mapped nowhere stays imported, because an export takes longer than all other calls together.
    pub fn import(&mut self, chunk: ChunkId, descriptor: BorrowedFd<'_>) -> Result<(), MappingError> {
        if self.imported.contains_key(&chunk) {
            return Err(MappingError::Imported { chunk });
        }
        let memory = Chunk::import(&self.context, descriptor, self.chunk_bytes)?;
        self.imported.insert(chunk, memory);
        Ok(())
    }

    /// Releases an imported chunk, whose memory the sidecar is about to free.
    ///
    /// # Errors
    /// It was not imported, or it is mapped; nothing changed.
    pub fn release(&mut self, chunk: ChunkId) -> Result<(), MappingError> {
        let addresses = self.table.uses(chunk);
        if addresses > 0 {
            return Err(MappingError::Mapped { chunk, addresses });
        }
        let memory = self.imported.remove(&chunk).ok_or(MappingError::NotImported { chunk })?;
        Ok(memory.release()?)
    }

    /// Applies a transaction in order, then allows access to what it mapped. If one change fails, rolls back those
    /// before it. No work on the device may use the addresses during the call.
    ///
    /// # Errors
    /// The failure, with nothing changed; [`MappingError::RollbackFailed`] if the rollback failed too.
    pub fn apply_all(&mut self, ops: &[MapOp]) -> Result<(), MappingError> {
        let mut done = 0;
        let applied = ops.iter().try_for_each(|op| {
            self.apply(op)?;
            done += 1;
            Ok(())
        });
        let allowed = applied.and_then(|()| self.allow(ops));
        allowed.map_err(|refused| match self.rollback(&ops[..done]) {
            Ok(()) => refused,
            Err(stuck) => MappingError::RollbackFailed { refused: Box::new(refused), stuck: Box::new(stuck) },
        })
    }

    fn apply(&mut self, op: &MapOp) -> Result<(), MappingError> {
        match *op {
            MapOp::Map(address, chunk) => self.map(address, chunk),
            MapOp::Unmap(address, chunk) => self.unmap(address, chunk),
        }
    }

    fn map(&mut self, address: Address, chunk: ChunkId) -> Result<(), MappingError> {
        let place = self.table.check_map(address, chunk)?;
        let memory = self.imported.get(&chunk).ok_or(MappingError::NotImported { chunk })?;
        self.range.map(place * self.chunk_bytes, memory)?;
        self.table.map(place, chunk);
        Ok(())
    }

    fn unmap(&mut self, address: Address, chunk: ChunkId) -> Result<(), MappingError> {
        let place = self.table.check_unmap(address, chunk)?;
        self.range.unmap(place * self.chunk_bytes)?;
        self.table.unmap(place);
        Ok(())
    }

    /// Allows access to what these operations have mapped and not unmapped again, by one call for each run of
    /// consecutive addresses.
    fn allow(&mut self, ops: &[MapOp]) -> Result<(), MappingError> {
        let mut places: Vec<u64> = ops
            .iter()
            .filter_map(|op| match *op {
                MapOp::Map(address, chunk) if self.table.chunk_at(address) == Some(chunk) => {
                    self.table.place(address)
                }
                MapOp::Map(..) | MapOp::Unmap(..) => None,
            })
            .collect();
        places.sort_unstable();
        places.dedup();
        for run in places.chunk_by(|one, next| one + 1 == *next) {
            self.range.set_access(run[0] * self.chunk_bytes, run.len() as u64 * self.chunk_bytes)?;
        }
        Ok(())
    }

    fn rollback(&mut self, ops: &[MapOp]) -> Result<(), MappingError> {
        let back: Vec<MapOp> = ops
            .iter()
            .rev()
            .map(|op| match *op {
                MapOp::Map(address, chunk) => MapOp::Unmap(address, chunk),
                MapOp::Unmap(address, chunk) => MapOp::Map(address, chunk),
            })
            .collect();
        back.iter().try_for_each(|op| self.apply(op))?;
        self.allow(&back)
    }

    /// Returns the first address of a range, which is constant until drop. Panics if the model has no such layer.
    pub fn address(&self, range: Range) -> cuda::Address {
        self.range.at(self.table.start(range) * self.chunk_bytes)
    }

    /// Returns the device's address of one address; `None` outside the ranges.
    pub fn position(&self, address: Address) -> Option<cuda::Address> {
        Some(self.range.at(self.table.place(address)? * self.chunk_bytes))
    }

    /// Returns the chunk behind `address`, if any.
    pub fn chunk_at(&self, address: Address) -> Option<ChunkId> {
        self.table.chunk_at(address)
    }

    /// As [`crate::Mapping::backed_prefix_chunks`].
    pub fn backed_prefix_chunks(&self, range: Range) -> u64 {
        self.table.backed_prefix_chunks(range)
    }

    /// As [`crate::Mapping::exclusive_prefix_chunks`].
    pub fn exclusive_prefix_chunks(&self, range: Range) -> u64 {
        self.table.exclusive_prefix_chunks(range)
    }

    /// Returns the size of a chunk, bytes.
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }
}
