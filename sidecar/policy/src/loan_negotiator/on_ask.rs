//! Answers a peer's request for a loan from the current state, because the peer's view of it may be stale.

use super::{LoanControl, LoanNegotiator, NegotiationPolicy, PeerCommand};
use crate::action::Earmark;
use crate::ids::Nanos;
use crate::loans::TransferKind;
use crate::peers::Peer;
use crate::peers::loan_denied::LoanDenied;
use crate::peers::loans::{LoanError, Nonce};

impl LoanNegotiator {
    pub(super) fn on_ask(
        &mut self,
        now: Nanos,
        (peer, nonce): (Peer, Nonce),
        chunks: u32,
        ttl_ns: u64,
        loans: &mut dyn LoanControl,
    ) {
        let expires = now.plus(ttl_ns.min(self.policy.ttl_ns));
        let chunks = match self.lends_to(now, peer, loans) {
            Ok(max) => chunks.min(max),
            Err(why) => return self.refuse(Earmark { peer, nonce }, why, loans),
        };
        match self.book.lent(nonce, peer, chunks, expires) {
            Ok(()) => loans.queue_transfer(Earmark { peer, nonce }, chunks, TransferKind::Lend),
            Err(error) => self.refuse(Earmark { peer, nonce }, denial(&error), loans),
        }
    }

    /// Returns the most chunks to lend to this peer now, by the borrower's rule and the local state.
    fn lends_to(&self, now: Nanos, peer: Peer, loans: &dyn LoanControl) -> Result<u32, LoanDenied> {
        let max = loans.lendable()?;
        let above = self.policy.priority_of(peer).is_some_and(|priority| priority < self.policy.priority);
        if loans.state().is_active && above {
            return Err(LoanDenied::Active);
        }
        match self.residence_left_ns(now) {
            0 => Ok(max),
            left_ns => Err(LoanDenied::MinResidence { left_ns }),
        }
    }

    pub(super) fn refuse(
        &mut self,
        Earmark { peer, nonce }: Earmark,
        why: LoanDenied,
        loans: &mut dyn LoanControl,
    ) {
        loans.count(why.reason());
        self.commands.push(PeerCommand::Refuse { peer, nonce, why });
    }

    /// Updates since when all layers have memory.
    pub(super) fn update_residence(&mut self, now: Nanos, loans: &dyn LoanControl) {
        let whole = loans.state().is_whole;
        self.fully_resident_since = whole.then(|| self.fully_resident_since.unwrap_or(now));
    }

    /// Returns the rest of the minimum residence after a restore of layers, nanoseconds.
    fn residence_left_ns(&self, now: Nanos) -> u64 {
        let resident_ns = self.fully_resident_since.map_or(u64::MAX, |since| now.since(since));
        self.policy.min_residence_ns.saturating_sub(resident_ns)
    }
}

/// Why a loan that does not match the book is denied.
fn denial(error: &LoanError) -> LoanDenied {
    match error {
        LoanError::BelowFloor { .. } => LoanDenied::AtFloor,
        // The first request of this name was answered, or a later one: its loan is under way, was made, or has ended.
        LoanError::Replayed { .. } => LoanDenied::Busy,
        // Nothing was asked for.
        LoanError::NoChunks { .. } => LoanDenied::Nothing,
        // The book returns these for loans that it has, not for a new one.
        LoanError::UnknownNonce { .. }
        | LoanError::WrongPeer { .. }
        | LoanError::AlreadyGranted { .. }
        | LoanError::NotGranted { .. }
        | LoanError::NotRenewable { .. }
        | LoanError::MoreThanAsked { .. }
        | LoanError::MoreThanLent { .. }
        | LoanError::Accepted { .. } => LoanDenied::Nothing,
    }
}

impl NegotiationPolicy {
    /// Returns the peer's priority by the directive; `None` if it has none.
    fn priority_of(&self, peer: Peer) -> Option<i32> {
        self.priorities.iter().find(|(known, _)| *known == peer).map(|(_, priority)| *priority)
    }
}
