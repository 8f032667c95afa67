//! Decisions between the tenants of one GPU: victims, loans and time slices (the protocol is in
//! `docs/peers.md`).
//!
//! This module is pure: it neither reads the ledger file nor sends messages. The caller does both and reports the
//! results. Memory is counted in chunks, whose size is the same for all tenants of a GPU.

pub mod loan_denied;
pub mod loans;
pub mod next_use;
pub mod time_slice;
pub mod victim;
pub mod wait_time;

/// One instance of a sidecar in the GPU ledger, as the ledger file identifies it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    /// Index of its record in the ledger file.
    pub index: u32,
    /// Identifies the instance; never reused within one ledger.
    pub instance: u64,
}
