//! Constant virtual addresses whose backing chunks change.
//!
//! One reservation contains all ranges, each followed by a guard chunk that is never mapped. Addresses
//! without a chunk are `PROT_NONE`: an access faults and never reaches the memory of another allocation.

pub(crate) mod chunk_table;
mod error;
pub mod layout;
pub(crate) mod page_size;
pub mod reservation;

use rustix::fd::BorrowedFd;
use sluice_policy::action::{Address, MapOp};
use sluice_policy::ids::ChunkId;

use chunk_table::ChunkTable;
pub use error::MappingError;
pub use layout::Range;
use page_size::{check_chunk_bytes, page_bytes};
use reservation::Reservation;
pub use sluice_ports::memory::RangeSizes;

/// The engine's ranges and the chunk behind each address.
#[derive(Debug)]
pub struct Mapping {
    table: ChunkTable,
    reservation: Reservation,
    chunk_bytes: u64,
}

impl Mapping {
    /// Reserves all ranges without backing. Their addresses are constant until drop.
    pub fn reserve(chunk_bytes: u64, sizes: RangeSizes) -> Result<Mapping, MappingError> {
        check_chunk_bytes(chunk_bytes, page_bytes())?;
        let table = ChunkTable::new(&sizes);
        let reservation = Reservation::new(table.bytes(chunk_bytes)?)?;
        Ok(Mapping { table, reservation, chunk_bytes })
    }

    /// Applies one change. `pool` is the memfd whose chunk `c` starts at byte `c * chunk_bytes`. A change
    /// that contradicts the table fails and changes nothing.
    ///
    /// Nothing in this process may use the address during the call: it must run between steps, or while the
    /// engine is idle.
    pub fn apply(&mut self, pool: BorrowedFd<'_>, op: &MapOp) -> Result<(), MappingError> {
        match *op {
            MapOp::Map(address, chunk) => self.map(pool, &[(address, chunk)]),
            MapOp::Unmap(address, chunk) => self.unmap(address, chunk),
        }
    }

    /// Applies a transaction in order. If one change fails, rolls back those before it.
    ///
    /// # Errors
    /// The failure, with nothing changed; [`MappingError::RollbackFailed`] if the rollback failed too.
    pub fn apply_all(&mut self, pool: BorrowedFd<'_>, ops: &[MapOp]) -> Result<(), MappingError> {
        let mut done = 0;
        while done < ops.len() {
            let run = self.contiguous_maps(&ops[done..]);
            let changed = if run.is_empty() { self.apply(pool, &ops[done]) } else { self.map(pool, &run) };
            if let Err(refused) = changed {
                return Err(match self.rollback(pool, &ops[..done]) {
                    Ok(()) => refused,
                    Err(stuck) => {
                        MappingError::RollbackFailed { refused: Box::new(refused), stuck: Box::new(stuck) }
                    }
                });
            }
            done += run.len().max(1);
        }
        Ok(())
    }

    /// Returns the leading changes that map consecutive chunks at consecutive addresses, which take one
    /// system call.
    fn contiguous_maps(&self, ops: &[MapOp]) -> Vec<(Address, ChunkId)> {
        let maps = ops.iter().map_while(|op| match *op {
            MapOp::Map(address, chunk) => Some((self.table.place(address)?, address, chunk)),
            MapOp::Unmap(..) => None,
        });
        let mut expected = None;
        let contiguous = maps.take_while(|(index, _, chunk)| {
            let here = (*index, chunk.0);
            let follows = *expected.get_or_insert(here) == here;
            expected = Some((index + 1, chunk.0.wrapping_add(1)));
            follows
        });
        contiguous.map(|(_, address, chunk)| (address, chunk)).collect()
    }

    fn rollback(&mut self, pool: BorrowedFd<'_>, ops: &[MapOp]) -> Result<(), MappingError> {
        ops.iter().rev().try_for_each(|op| match *op {
            MapOp::Map(address, chunk) => self.unmap(address, chunk),
            MapOp::Unmap(address, chunk) => self.map(pool, &[(address, chunk)]),
        })
    }

    /// Returns the first byte of a range, which is constant until drop. Panics if the model has no such
    /// layer.
    pub fn address(&self, range: Range) -> *mut u8 {
        self.reservation.at(self.offset(self.table.start(range)))
    }

    /// Returns the first byte of one address; `None` outside the ranges.
    pub fn position_ptr(&self, address: Address) -> Option<*mut u8> {
        Some(self.reservation.at(self.offset(self.table.place(address)?)))
    }

    /// Returns the chunk behind `address`, if any.
    pub fn chunk_at(&self, address: Address) -> Option<ChunkId> {
        self.table.chunk_at(address)
    }

    /// Returns how many chunks from the front of `range` are backed without a gap, which a reader may access
    /// as one slice.
    pub fn backed_prefix_chunks(&self, range: Range) -> u64 {
        self.table.backed_prefix_chunks(range)
    }

    /// As `backed_prefix_chunks`, but only up to the first chunk that backs another address too. A chunk may
    /// still be mapped at an address of its previous owner (eLLM 5.1), which must not be accessed.
    pub fn exclusive_prefix_chunks(&self, range: Range) -> u64 {
        self.table.exclusive_prefix_chunks(range)
    }

    /// Returns the size of a chunk, bytes.
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    fn offset(&self, index: u64) -> usize {
        (index * self.chunk_bytes) as usize
    }

    /// Maps consecutive chunks at consecutive addresses: all of them or none.
    fn map(&mut self, pool: BorrowedFd<'_>, run: &[(Address, ChunkId)]) -> Result<(), MappingError> {
        let Some(&(first, from)) = run.first() else { return Ok(()) };
        let pool_bytes = file_bytes(pool)?;
        for &(address, chunk) in run {
            self.table.check_map(address, chunk)?;
            if (u64::from(chunk.0) + 1) * self.chunk_bytes > pool_bytes {
                return Err(MappingError::BeyondPool { chunk, pool_bytes });
            }
        }
        let start = self.table.check_map(first, from)?;
        let bytes = run.len() * self.chunk_bytes as usize;
        self.reservation.map(self.offset(start), bytes, pool, u64::from(from.0) * self.chunk_bytes)?;
        (start..).zip(run).for_each(|(place, (_, chunk))| self.table.map(place, *chunk));
        Ok(())
    }

    fn unmap(&mut self, address: Address, chunk: ChunkId) -> Result<(), MappingError> {
        let place = self.table.check_unmap(address, chunk)?;
        self.reservation.unmap(self.offset(place), self.chunk_bytes as usize)?;
        self.table.unmap(place);
        Ok(())
    }
}

/// Returns the size of the pool's file, which its seals keep constant.
fn file_bytes(pool: BorrowedFd<'_>) -> Result<u64, MappingError> {
    let stat = rustix::fs::fstat(pool).map_err(|source| MappingError::Kernel { call: "fstat", source })?;
    Ok(stat.st_size as u64)
}
