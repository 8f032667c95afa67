//! The ledger file as the quota of the chunk pool.

use std::sync::Arc;

use sluice_memory::gpu_ledger::{LedgerError, ParticipantHandle};
use sluice_memory::{Quota, QuotaError};
use sluice_policy::action::Earmark;

/// Reserves the bytes of a chunk in the ledger before the chunk exists, and releases them after it is freed.
#[derive(Clone, Debug)]
pub struct LedgerQuota(pub Arc<ParticipantHandle>);

fn quota_error(error: LedgerError) -> QuotaError {
    match error {
        // Both conditions may pass, so the request is retried as when other tenants hold the memory.
        LedgerError::OutOfMemory { .. } | LedgerError::Busy { .. } => {
            QuotaError::OutOfMemory(error.to_string())
        }
        LedgerError::TooManyTransfers { .. } => QuotaError::Busy(error.to_string()),
        other => QuotaError::Refused(other.to_string()),
    }
}

impl Quota for LedgerQuota {
    fn reserve(&self, bytes: u64) -> Result<(), QuotaError> {
        self.0.reserve(bytes).map_err(quota_error)
    }

    fn release(&self, bytes: u64) {
        self.0.release(bytes);
    }

    fn accept(&self, earmark: Earmark, bytes: u64) -> Result<(), QuotaError> {
        // An earmark of another size stays unaccepted, and its lender cancels it.
        self.0.accept(&earmark.peer, earmark.nonce.0, bytes).map_err(quota_error)
    }

    fn earmark(&self, earmark: Earmark, bytes: u64, spare_bytes: u64) -> Result<(), QuotaError> {
        match self.0.earmark(&earmark.peer, bytes, spare_bytes, earmark.nonce.0) {
            Ok(()) => Ok(()),
            // A peer that exited needs no earmark: the bytes are free for its next instance. The spare bytes were never
            // reserved, and the next instance may hold them already.
            Err(LedgerError::PeerDead { .. }) => {
                self.0.release(bytes);
                Ok(())
            }
            // The scheduler refuses the loan, and its borrower asks again later.
            Err(error @ LedgerError::TooManyTransfers { .. }) => Err(quota_error(error)),
            Err(error) => {
                tracing::warn!(%error, nonce = earmark.nonce.0, "could not earmark memory for a peer");
                Err(quota_error(error))
            }
        }
    }
}
