//! The chunks by which a tenant grows.

use std::sync::Arc;

use sluice_memory::cuda::{Chunk, Error, Range};

use crate::bench::Bench;

/// Bytes of one chunk.
pub(super) const CHUNK: u64 = 2 << 20;
/// Chunks by which a tenant grows at a time.
pub(super) const CHUNKS: u64 = 100;

/// Creates the handles of a growth.
pub(super) fn handles(bench: &Bench) -> Result<Vec<Arc<Chunk>>, Error> {
    (0..CHUNKS).map(|_| Chunk::create(&bench.context, CHUNK)).collect()
}

/// Returns the offsets of the chunks in a range.
pub(super) fn chunk_offsets() -> impl Iterator<Item = u64> {
    (0..CHUNKS).map(|index| index * CHUNK)
}

/// Maps the handles at the start of the range, with access.
pub(super) fn remap_all(range: &mut Range, handles: &[Arc<Chunk>]) -> Result<(), Error> {
    chunk_offsets().zip(handles).try_for_each(|(at, handle)| range.map(at, handle))?;
    range.set_access(0, CHUNKS * CHUNK)
}

/// Unmaps what [`remap_all`] maps.
pub(super) fn unmap_all(range: &mut Range) -> Result<(), Error> {
    chunk_offsets().try_for_each(|at| range.unmap(at))
}
