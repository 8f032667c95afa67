//! Accounting of a tenant's chunk bytes, backed by the GPU ledger where tenants share a GPU.

use std::fmt::Debug;

use sluice_policy::action::Earmark;

/// Why the quota refused an operation.
#[derive(Debug, thiserror::Error)]
pub enum QuotaError {
    /// The GPU does not have enough free bytes.
    #[error("{0}")]
    OutOfMemory(String),
    /// An earmark cannot be created or is not valid.
    #[error("{0}")]
    Refused(String),
    /// Too many transfers are waiting; a later attempt may succeed.
    #[error("{0}")]
    Busy(String),
}

/// Accounting of the bytes that a tenant may turn into chunks.
pub trait Quota: Send + Sync + Debug {
    /// Reserves bytes for chunks that are about to be created.
    ///
    /// # Errors
    /// The GPU does not have enough free bytes; nothing was counted.
    fn reserve(&self, bytes: u64) -> Result<(), QuotaError>;

    /// Releases bytes after their chunks were released, or were not created.
    fn release(&self, bytes: u64);

    /// Accepts the earmark of another tenant; its bytes become this tenant's.
    ///
    /// # Errors
    /// The earmark is not valid or of another size, or too many transfers are waiting; nothing was counted.
    fn accept(&self, earmark: Earmark, bytes: u64) -> Result<(), QuotaError>;

    /// Earmarks for another tenant the bytes of released chunks, and `spare_bytes` that were never reserved.
    ///
    /// # Errors
    /// The other tenant has exited, the bytes do not fit, or too many transfers are waiting; the bytes remain
    /// this tenant's.
    fn earmark(&self, earmark: Earmark, bytes: u64, spare_bytes: u64) -> Result<(), QuotaError>;
}

/// Quota of a tenant that does not share its GPU, or has a fixed part of it. Only the pool limits it.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnsharedQuota;

impl Quota for UnsharedQuota {
    fn reserve(&self, _bytes: u64) -> Result<(), QuotaError> {
        Ok(())
    }

    fn release(&self, _bytes: u64) {}

    fn accept(&self, _earmark: Earmark, _bytes: u64) -> Result<(), QuotaError> {
        Err(QuotaError::Refused("this GPU has no other tenants".into()))
    }

    fn earmark(&self, _earmark: Earmark, _bytes: u64, _spare_bytes: u64) -> Result<(), QuotaError> {
        Err(QuotaError::Refused("this GPU has no other tenants".into()))
    }
}
