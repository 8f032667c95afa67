//! eLLM's decisions: whether a prompt's KV goes to the CPU buffer (Algorithm 1), in which direction chunks move between
//! activations and KV (its balloon), how much of the CPU buffer prefill may use (Algorithm 2) and how much is mapped
//! ahead (5.1). All counts are chunks unless a name says otherwise. The simulator has Algorithm 1 as printed.
//!
//! Where the paper leaves the algorithms open, this module reads them as follows: `P_T`, called "total", is what this
//! step can take (free chunks of both owners); when both pools are short no chunk moves; `min(B x alpha, B)` is a typo
//! for `min(B x alpha, B_max)`; a violation event clears the window, so that the next event needs three new violations.

pub mod admission;
pub mod balloon;
pub mod buffer;

pub use admission::{Need, Supply};
pub use balloon::{Balloon, balloon};
pub use buffer::{BufferController, Violations};

/// Exclusive limit of pre-mapping for the next token in the paper, bytes (eLLM 5.1, "< 50 MB", read as decimal).
pub const PREMAP_LIMIT_BYTES: u64 = 50_000_000;

/// Returns the chunks to map ahead: `wanted`, but strictly below `limit_bytes`. Below [`PREMAP_LIMIT_BYTES`] that is 23
/// chunks of 2 MiB.
pub fn premap_chunks(wanted: u32, limit_bytes: u64, chunk_bytes: u64) -> u32 {
    assert!(chunk_bytes > 0, "a chunk has bytes");
    let budget = limit_bytes.saturating_sub(1) / chunk_bytes;
    wanted.min(u32::try_from(budget).unwrap_or(u32::MAX))
}
