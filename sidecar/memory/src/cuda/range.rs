//! Reserved addresses, and the chunks that are mapped there.

use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use cudarc::driver::sys::{CUmemAccess_flags, CUmemAccessDesc};

use super::chunk::location;
use super::driver::call;
use super::error::Error;
use super::{Address, Chunk, Context};

/// A range of reserved addresses, which are constant until drop.
#[derive(Debug)]
pub struct Range {
    /// By offset. Dropped first: unmapped before the addresses are freed.
    mappings: BTreeMap<u64, Mapping>,
    addresses: Addresses,
}

/// A chunk at an address. It shares the chunk, so unmapping comes before releasing.
#[derive(Debug)]
pub struct Mapping {
    at: Address,
    bytes: u64,
    chunk: Arc<Chunk>,
}

#[derive(Debug)]
struct Addresses {
    base: Address,
    bytes: u64,
    context: Context,
}

impl Range {
    /// Reserves `bytes` (a multiple of [`super::granularity`]) of addresses; the driver chooses where.
    pub fn reserve(context: &Context, bytes: u64) -> Result<Range, Error> {
        let mut base = 0;
        // SAFETY: writes the address; nothing is mapped there yet.
        unsafe { call!(cuMemAddressReserve(&mut base, bytes as usize, 0, 0, 0)) }?;
        let addresses = Addresses { base, bytes, context: context.clone() };
        Ok(Range { mappings: BTreeMap::new(), addresses })
    }

    /// Returns the address of byte `offset`.
    pub fn at(&self, offset: u64) -> Address {
        assert!(offset <= self.bytes(), "offset {offset} lies in a range of {} bytes", self.bytes());
        self.addresses.base + offset
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.addresses.bytes
    }

    /// Returns what is mapped at `offset`.
    pub fn mapping(&self, offset: u64) -> Option<&Mapping> {
        self.mappings.get(&offset)
    }

    /// Maps all of `chunk` at `offset`. Accesses are not allowed before [`Range::set_access`].
    pub fn map(&mut self, offset: u64, chunk: &Arc<Chunk>) -> Result<(), Error> {
        self.map_part(offset, chunk, 0, chunk.bytes())
    }

    /// Like [`Range::map`], but maps only `bytes` from byte `from` of the chunk. No known driver supports this.
    pub fn map_part(&mut self, offset: u64, chunk: &Arc<Chunk>, from: u64, bytes: u64) -> Result<(), Error> {
        assert!(offset + bytes <= self.bytes(), "a mapping lies in its range");
        let at = self.at(offset);
        // SAFETY: this value owns the addresses, and the driver refuses addresses that are already mapped.
        unsafe { call!(cuMemMap(at, bytes as usize, from as usize, chunk.raw, 0)) }?;
        self.mappings.insert(offset, Mapping { at, bytes, chunk: chunk.clone() });
        Ok(())
    }

    /// Allows the device to read and write the mappings at `offset`.
    pub fn set_access(&mut self, offset: u64, bytes: u64) -> Result<(), Error> {
        let access = CUmemAccessDesc {
            location: location(self.addresses.context.device()),
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: this value owns the addresses, and the driver refuses addresses that are not mapped.
        unsafe { call!(cuMemSetAccess(self.at(offset), bytes as usize, &access, 1)) }
    }

    /// Runs [`Range::map`] and [`Range::set_access`]; undoes the first if the second fails.
    pub fn map_with_access(&mut self, offset: u64, chunk: &Arc<Chunk>) -> Result<(), Error> {
        self.map(offset, chunk)?;
        let allowed = self.set_access(offset, chunk.bytes());
        if allowed.is_err() {
            let _ = self.unmap(offset);
        }
        allowed
    }

    /// Unmaps what [`Range::map`] mapped at `offset`. No work on the device may use it. After an error it is still
    /// mapped.
    pub fn unmap(&mut self, offset: u64) -> Result<(), Error> {
        let mapping = self.mappings.remove(&offset).expect("only what is mapped is unmapped");
        mapping.end().map_err(|(mapping, error)| {
            self.mappings.insert(offset, mapping);
            error
        })
    }
}

impl Mapping {
    /// Returns the first address.
    pub fn at(&self) -> Address {
        self.at
    }

    /// Returns the chunk.
    pub fn chunk(&self) -> &Arc<Chunk> {
        &self.chunk
    }

    fn end(self) -> Result<(), (Mapping, Error)> {
        // SAFETY: exactly one mapping of this value. The caller of `unmap` ensures that no work uses it; a violation
        // breaks the device's context, not host memory.
        match unsafe { call!(cuMemUnmap(self.at, self.bytes as usize)) } {
            Ok(()) => {
                let mut unmapped = ManuallyDrop::new(self);
                // SAFETY: the value is not used again, so its chunk is dropped once.
                unsafe { std::ptr::drop_in_place(&raw mut unmapped.chunk) };
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly one mapping of this value. After a device fault every call fails.
        let _ = unsafe { call!(cuMemUnmap(self.at, self.bytes as usize)) };
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        // SAFETY: this value owns the range, and its mappings were dropped before.
        let _ = unsafe { call!(cuMemAddressFree(self.base, self.bytes as usize)) };
    }
}
