//! What the GPU ledger has executed of the loans, for the check against the loan book.

use alloc::vec::Vec;

use super::{Loans, TransferKind, TransferResult};
use crate::action::Earmark;
use crate::orders::pending::PendingActions;

/// The loans as the memory manager has counted them, in chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoanAudit {
    /// Chunks of the share that peers have.
    pub lent: u32,
    /// Chunks of peers that are here.
    pub borrowed: u32,
    /// Transfers to peers that are queued or under way.
    pub outgoing: Vec<(Earmark, u32, TransferKind)>,
    /// Results that the negotiator has not read.
    pub unread: Vec<TransferResult>,
}

impl Loans {
    /// The loans as they were counted.
    pub fn audit(&self, pending: &PendingActions) -> LoanAudit {
        let queued = self.outgoing.queued().map(|one| (one.earmark, one.chunks, one.kind));
        LoanAudit {
            lent: self.balance.lent(),
            borrowed: self.balance.borrowed(),
            outgoing: queued.chain(pending.transfers()).collect(),
            unread: self.outgoing.results().to_vec(),
        }
    }
}
