//! Constant virtual addresses whose backing chunks change.
//!
//! One reservation contains all ranges, each followed by a guard chunk that is never mapped. Addresses
//! without a chunk are `PROT_NONE`: an access faults and never reaches the memory of another allocation.

mod error;
pub mod layout;
pub mod reservation;

use std::collections::BTreeMap;

use rustix::fd::BorrowedFd;
use sluice_policy::action::{Address, MapOp};
use sluice_policy::ids::ChunkId;

pub use error::MappingError;
use layout::Layout;
pub use layout::{Range, RangeSizes};
use reservation::Reservation;

/// The engine's ranges and the chunk behind each address.
#[derive(Debug)]
pub struct Mapping {
    layout: Layout,
    reservation: Reservation,
    chunk_bytes: u64,
    /// One entry per chunk of the reservation, guards included.
    table: Vec<Option<ChunkId>>,
    /// Number of addresses that each mapped chunk backs.
    uses: BTreeMap<ChunkId, u32>,
}

impl Mapping {
    /// Reserves all ranges without backing. Their addresses are constant until drop.
    pub fn reserve(chunk_bytes: u64, sizes: RangeSizes) -> Result<Mapping, MappingError> {
        let page_bytes = rustix::param::page_size() as u64;
        if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(page_bytes) {
            return Err(MappingError::ChunkSize { chunk_bytes, page_bytes });
        }
        let layout = Layout::new(&sizes);
        let chunks = layout.chunks();
        let bytes = chunks
            .checked_mul(chunk_bytes)
            .and_then(|bytes| usize::try_from(bytes).ok())
            .ok_or(MappingError::TooLarge { chunks, chunk_bytes })?;
        let reservation = Reservation::new(bytes)?;
        Ok(Mapping {
            layout,
            reservation,
            chunk_bytes,
            table: vec![None; chunks as usize],
            uses: BTreeMap::new(),
        })
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
            MapOp::Map(address, chunk) => Some((self.layout.index(address)?, address, chunk)),
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
        let (start, _) = self.layout.span(range).expect("a range of this model");
        self.reservation.at(self.offset(start))
    }

    /// Returns the first byte of one address; `None` outside the ranges.
    pub fn position_ptr(&self, address: Address) -> Option<*mut u8> {
        let index = self.layout.index(address)?;
        Some(self.reservation.at(self.offset(index)))
    }

    /// Returns the chunk behind `address`, if any.
    pub fn chunk_at(&self, address: Address) -> Option<ChunkId> {
        self.table[self.layout.index(address)? as usize]
    }

    /// Returns how many chunks from the front of `range` are backed without a gap, which a reader may access
    /// as one slice.
    pub fn backed_prefix_chunks(&self, range: Range) -> u64 {
        let Some((start, chunks)) = self.layout.span(range) else { return 0 };
        let span = &self.table[start as usize..(start + chunks) as usize];
        span.iter().take_while(|entry| entry.is_some()).count() as u64
    }

    /// As `backed_prefix_chunks`, but only up to the first chunk that backs another address too. A chunk may
    /// still be mapped at an address of its previous owner (eLLM 5.1), which must not be accessed.
    pub fn exclusive_prefix_chunks(&self, range: Range) -> u64 {
        let Some((start, chunks)) = self.layout.span(range) else { return 0 };
        let span = &self.table[start as usize..(start + chunks) as usize];
        let own = |entry: &&Option<ChunkId>| entry.is_some_and(|chunk| self.uses.get(&chunk) == Some(&1));
        span.iter().take_while(own).count() as u64
    }

    /// Returns the size of a chunk, bytes.
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    fn offset(&self, index: u64) -> usize {
        (index * self.chunk_bytes) as usize
    }

    fn index(&self, address: Address) -> Result<u64, MappingError> {
        self.layout.index(address).ok_or(MappingError::OutOfRange { address })
    }

    /// Maps consecutive chunks at consecutive addresses: all of them or none.
    fn map(&mut self, pool: BorrowedFd<'_>, run: &[(Address, ChunkId)]) -> Result<(), MappingError> {
        let Some(&(first, from)) = run.first() else { return Ok(()) };
        let pool_bytes = file_bytes(pool)?;
        for &(address, chunk) in run {
            if let Some(found) = self.table[self.index(address)? as usize] {
                return Err(MappingError::Occupied { address, chunk, found });
            }
            if (u64::from(chunk.0) + 1) * self.chunk_bytes > pool_bytes {
                return Err(MappingError::BeyondPool { chunk, pool_bytes });
            }
        }
        let start = self.index(first)?;
        let bytes = run.len() * self.chunk_bytes as usize;
        self.reservation.map(self.offset(start), bytes, pool, u64::from(from.0) * self.chunk_bytes)?;
        for (entry, (_, chunk)) in self.table[start as usize..].iter_mut().zip(run) {
            *entry = Some(*chunk);
            *self.uses.entry(*chunk).or_insert(0) += 1;
        }
        Ok(())
    }

    fn unmap(&mut self, address: Address, chunk: ChunkId) -> Result<(), MappingError> {
        let index = self.index(address)?;
        let found = self.table[index as usize];
        if found != Some(chunk) {
            return Err(MappingError::NotMapped { address, chunk, found });
        }
        self.reservation.unmap(self.offset(index), self.chunk_bytes as usize)?;
        self.table[index as usize] = None;
        let uses = self.uses.get_mut(&chunk).expect("a chunk behind a position is counted");
        *uses -= 1;
        if *uses == 0 {
            self.uses.remove(&chunk);
        }
        Ok(())
    }
}

/// Returns the size of the pool's file, which its seals keep constant.
fn file_bytes(pool: BorrowedFd<'_>) -> Result<u64, MappingError> {
    let stat = rustix::fs::fstat(pool).map_err(|source| MappingError::Kernel { call: "fstat", source })?;
    Ok(stat.st_size as u64)
}
