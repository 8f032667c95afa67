//! The loan book against what the GPU ledger has executed ([`LoanAudit`]). ADR 0040 says why both count.

use super::LoanNegotiator;
use crate::action::Earmark;
use crate::loans::audit::LoanAudit;
use crate::loans::{TransferKind, TransferResult};

impl LoanNegotiator {
    /// Checks that the book and the memory manager count the same loans; panics with a message when they do not.
    ///
    /// | side | balance, equal to: | book |
    /// |---|---|---|
    /// | lender | lent, promised, results not read by the book | given, transfers whose entry it has deleted |
    /// | borrower | borrowed, returns not read by the book | held, transfers without an entry in it |
    pub fn check(&self, audit: &LoanAudit) {
        self.check_lender(audit);
        self.check_borrower(audit);
    }

    fn check_lender(&self, audit: &LoanAudit) {
        let mut counted = audit.lent + outgoing(audit, TransferKind::Lend, |_| true);
        // The book deleted the entry of these while they were under way, after an exit or by the ledger.
        let mut booked =
            self.book.lent_out() + outgoing(audit, TransferKind::Lend, |earmark| !self.lends(earmark));
        for result in &audit.unread {
            match *result {
                TransferResult::Refused { earmark, chunks, kind: TransferKind::Lend } => {
                    counted += if self.lends(earmark) { chunks } else { 0 };
                }
                TransferResult::Granted { earmark, chunks, kind: TransferKind::Lend } => {
                    booked += if self.lends(earmark) { 0 } else { chunks };
                }
                TransferResult::Accepted { earmark, chunks }
                | TransferResult::NotBacked { earmark, chunks } => {
                    counted += if self.accepts(earmark, TransferKind::Return) { chunks } else { 0 };
                }
                TransferResult::Refused { .. }
                | TransferResult::Granted { .. }
                | TransferResult::NotAccepted { .. } => {}
            }
        }
        let struck = |arrival: &&super::Arrival| {
            arrival.ordered && arrival.kind == TransferKind::Return && !self.lends(arrival.earmark)
        };
        booked += self.arriving.iter().filter(struck).map(|arrival| arrival.chunks).sum::<u32>();
        assert_eq!(counted, booked, "loans given, as executed and in the book: {audit:?}, {:?}", self.book);
    }

    fn check_borrower(&self, audit: &LoanAudit) {
        let mut counted = audit.borrowed;
        let unknown = outgoing(audit, TransferKind::Return, |earmark| !self.holds(earmark));
        let mut booked = self.book.borrowed() + unknown;
        for result in &audit.unread {
            match *result {
                TransferResult::Granted { earmark, chunks, kind: TransferKind::Return } => {
                    counted += if self.holds(earmark) { chunks } else { 0 };
                }
                TransferResult::Refused { earmark, chunks, kind: TransferKind::Return } => {
                    booked += if self.holds(earmark) { 0 } else { chunks };
                }
                TransferResult::Accepted { earmark, chunks }
                | TransferResult::NotBacked { earmark, chunks } => {
                    booked += if self.accepts(earmark, TransferKind::Lend) { chunks } else { 0 };
                }
                TransferResult::Refused { .. }
                | TransferResult::Granted { .. }
                | TransferResult::NotAccepted { .. } => {}
            }
        }
        assert_eq!(counted, booked, "loans taken, as executed and in the book: {audit:?}, {:?}", self.book);
    }

    /// Whether an earmark of this kind is being accepted.
    fn accepts(&self, earmark: Earmark, kind: TransferKind) -> bool {
        self.arriving.iter().any(|one| one.ordered && one.earmark == earmark && one.kind == kind)
    }

    /// Whether the book has chunks of this loan from a peer.
    fn holds(&self, Earmark { peer, nonce }: Earmark) -> bool {
        self.book
            .loans_in()
            .iter()
            .any(|taken| taken.nonce == nonce && taken.peer == peer && taken.held() > 0)
    }
}

/// Chunks of transfers of this kind that `which` selects.
fn outgoing(audit: &LoanAudit, kind: TransferKind, which: impl Fn(Earmark) -> bool) -> u32 {
    let selected = audit.outgoing.iter().filter(|(earmark, _, of)| *of == kind && which(*earmark));
    selected.map(|(_, chunks, _)| chunks).sum()
}
