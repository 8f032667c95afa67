//! The ledger file as the pool of chunks sees it.

use std::sync::Arc;

use sluice_memory::gpu_ledger::{LedgerError, ParticipantHandle};
use sluice_memory::{Quota, QuotaError};
use sluice_policy::action::Earmark;

/// Every byte of a chunk is reserved in the ledger before the chunk exists and given back after it has gone.
#[derive(Clone, Debug)]
pub struct LedgerQuota(pub Arc<ParticipantHandle>);

fn quota_error(error: LedgerError) -> QuotaError {
    match error {
        // What cannot be had now is tried again, as what others hold.
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
        // Of another size it stays as it was: its lender voids it.
        self.0.accept(&earmark.peer, earmark.nonce.0, bytes).map_err(quota_error)
    }

    fn earmark(&self, earmark: Earmark, bytes: u64, spare_bytes: u64) -> Result<(), QuotaError> {
        match self.0.earmark(&earmark.peer, bytes, spare_bytes, earmark.nonce.0) {
            Ok(()) => Ok(()),
            // Who is dead needs no promise: the bytes are free for the next life, which may have those that were never
            // reserved already.
            Err(LedgerError::PeerDead { .. }) => {
                self.0.release(bytes);
                Ok(())
            }
            // The scheduler refuses the loan, and its borrower asks again later.
            Err(error @ LedgerError::TooManyTransfers { .. }) => Err(quota_error(error)),
            Err(error) => {
                tracing::warn!(%error, nonce = earmark.nonce.0, "bytes could not be earmarked");
                Err(quota_error(error))
            }
        }
    }
}
