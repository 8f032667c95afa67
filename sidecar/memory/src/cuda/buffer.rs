//! Plain device memory.

use super::chunk::granularity;
use super::error::Error;
use super::{Address, Chunk, Context, Range};

/// Device memory with its own address range.
#[derive(Debug)]
pub struct Buffer {
    range: Range,
}

impl Buffer {
    /// Allocates at least `bytes`, rounded up to [`granularity`].
    pub fn new(context: &Context, bytes: u64) -> Result<Buffer, Error> {
        let bytes = bytes.next_multiple_of(granularity(context.device())?);
        let chunk = Chunk::create(context, bytes)?;
        let mut range = Range::reserve(context, bytes)?;
        range.map_with_access(0, &chunk)?;
        Ok(Buffer { range })
    }

    /// Returns the address of byte `offset`.
    pub fn at(&self, offset: u64) -> Address {
        self.range.at(offset)
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.range.bytes()
    }
}
