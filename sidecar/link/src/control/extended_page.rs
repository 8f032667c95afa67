//! Where the parts of a page with passes begin: behind the generations the records of passes, then the leases.

use super::{LINE_BYTES, generation_bytes};

/// Passes whose times the page holds.
pub const PASS_RECORDS: u64 = 64;

/// Returns the byte at which the records of passes begin. A record is a cache line.
pub(super) fn records_start(layers: u16) -> usize {
    generation_bytes(layers)
}

/// Returns the byte at which the leases begin. A lease is a cache line.
pub(super) fn leases_start(layers: u16) -> usize {
    records_start(layers) + PASS_RECORDS as usize * LINE_BYTES
}

/// Returns the bytes of a page with passes.
pub(super) fn page_bytes(layers: u16) -> usize {
    leases_start(layers) + usize::from(layers) * LINE_BYTES
}
