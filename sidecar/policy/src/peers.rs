//! What tenants of one GPU decide about each other: victims, grants, turns (DESIGN 6 and 8; the protocol is
//! in `docs/neighbours.md`).
//!
//! Pure like the rest of the crate. Nothing here reads the ledger file or sends a message: the caller does both and says
//! what came of it. All memory is counted in chunks, whose size is a property of the GPU and so the same for all of them.

pub mod loan_denied;
pub mod loans;
pub mod next_use;
pub mod time_slice;
pub mod victim;
pub mod wait_time;

/// A participant of the neighbourhood in one of its lives, as the ledger file names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    /// Its record in the ledger file.
    pub index: u32,
    /// Names its life. Never used for two lives of one ledger.
    pub instance: u64,
}
