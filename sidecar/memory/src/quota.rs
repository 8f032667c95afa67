//! Whose bytes they are: what a neighbourhood's ledger says to the chunks of one tenant.

use std::fmt::Debug;

use sluice_policy::action::Earmark;

/// Why the ledger refused.
#[derive(Debug, thiserror::Error)]
pub enum QuotaError {
    /// The GPU has no bytes left that nobody holds.
    #[error("{0}")]
    OutOfMemory(String),
    /// A promise that cannot be made or does not hold.
    #[error("{0}")]
    Refused(String),
    /// Too many transfers wait; a later attempt may succeed.
    #[error("{0}")]
    Busy(String),
}

/// The bytes that a tenant may turn into chunks.
pub trait Quota: Send + Sync + Debug {
    /// Bytes that are about to become chunks.
    ///
    /// # Errors
    /// The GPU has none left; nothing was counted.
    fn reserve(&self, bytes: u64) -> Result<(), QuotaError>;

    /// Chunks of so many bytes are gone, or were not created after all.
    fn release(&self, bytes: u64);

    /// Bytes that a neighbour has promised become this tenant's.
    ///
    /// # Errors
    /// The promise does not hold, or is of another size, or too many transfers wait; nothing was counted.
    fn accept(&self, earmark: Earmark, bytes: u64) -> Result<(), QuotaError>;

    /// Bytes whose chunks are gone, and `spare_bytes` that were never reserved, become a neighbour's.
    ///
    /// # Errors
    /// The neighbour has gone, there is no room for a promise, or too many transfers wait; the bytes are this tenant's as
    /// before.
    fn earmark(&self, earmark: Earmark, bytes: u64, spare_bytes: u64) -> Result<(), QuotaError>;
}

/// A tenant that has its GPU, or a fixed part of it, for itself: the pool alone limits it.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnsharedQuota;

impl Quota for UnsharedQuota {
    fn reserve(&self, _bytes: u64) -> Result<(), QuotaError> {
        Ok(())
    }

    fn release(&self, _bytes: u64) {}

    fn accept(&self, _earmark: Earmark, _bytes: u64) -> Result<(), QuotaError> {
        Err(QuotaError::Refused("this GPU has no neighbours".into()))
    }

    fn earmark(&self, _earmark: Earmark, _bytes: u64, _spare_bytes: u64) -> Result<(), QuotaError> {
        Err(QuotaError::Refused("this GPU has no neighbours".into()))
    }
}
