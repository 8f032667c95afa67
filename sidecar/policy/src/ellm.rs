//! eLLM's decisions: which requests a step admits (Algorithm 1), which way chunks flow between activations and KV (its
//! balloon), how much of the CPU buffer prefill may use (Algorithm 2), how much is mapped ahead (5.1). All counts are chunks
//! unless a name says otherwise.
//!
//! Where the printed form is open we decide: `P_T`, called "total", is what this step can take (free chunks of both owners);
//! when both pools are short nothing moves; `min(B x alpha, B)` is a typo for `min(B x alpha, B_max)`; a violation event
//! clears the window, so that the next one needs three new violations.

pub mod admission;
pub mod balloon;
pub mod buffer;

pub use admission::{Admission, Need, Phase, Supply, admit};
pub use balloon::{Balloon, balloon};
pub use buffer::{BufferController, Violations};

/// What pre-mapping for the next token stays below in the paper (eLLM 5.1, "< 50 MB", read as decimal).
pub const PREMAP_LIMIT_BYTES: u64 = 50_000_000;

/// Chunks that may be mapped ahead: as many as are wanted, strictly below `limit_bytes`. 23 chunks of 2 MiB below
/// [`PREMAP_LIMIT_BYTES`].
pub fn premap_chunks(wanted: u32, limit_bytes: u64, chunk_bytes: u64) -> u32 {
    assert!(chunk_bytes > 0, "a chunk has bytes");
    let budget = limit_bytes.saturating_sub(1) / chunk_bytes;
    wanted.min(u32::try_from(budget).unwrap_or(u32::MAX))
}
