//! Answers a peer's request for a loan from the current state, because the peer's view of it may be stale.

use super::{LoanNegotiator, NegotiationPolicy, PeerCommand};
use crate::action::Earmark;
use crate::ids::Nanos;
use crate::memory_manager::{MemoryManager, TransferKind};
use crate::peers::Peer;
use crate::peers::loan_denied::LoanDenied;
use crate::peers::loans::Nonce;

impl LoanNegotiator {
    pub(super) fn on_ask(
        &mut self,
        now: Nanos,
        (peer, nonce): (Peer, Nonce),
        chunks: u32,
        ttl_ns: u64,
        manager: &mut MemoryManager,
    ) {
        let expires = now.plus(ttl_ns.min(self.policy.ttl_ns));
        let chunks = match self.lends_to(now, peer, manager) {
            Ok(max) => chunks.min(max),
            Err(why) => return self.refuse(Earmark { peer, nonce }, why, manager),
        };
        if self.book.lent(nonce, peer, chunks, expires).is_ok() {
            manager.loans_mut().queue_transfer(Earmark { peer, nonce }, chunks, TransferKind::Lend);
        } else {
            self.refuse(Earmark { peer, nonce }, LoanDenied::Nothing, manager);
        }
    }

    /// Returns the most chunks to lend to this peer now, by the borrower's rule and the local state.
    fn lends_to(&self, now: Nanos, peer: Peer, manager: &MemoryManager) -> Result<u32, LoanDenied> {
        let max = manager.loans().lendable()?;
        let above = self.policy.priority_of(peer).is_some_and(|priority| priority < self.policy.priority);
        if manager.loans().active() && above {
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
        manager: &mut MemoryManager,
    ) {
        manager.loans_mut().record_shortfall(why.reason());
        self.commands.push(PeerCommand::Refuse { peer, nonce, why });
    }

    /// Updates since when all layers have memory.
    pub(super) fn update_residence(&mut self, now: Nanos, manager: &MemoryManager) {
        let whole = manager.status().is_loaded() && manager.status().absent_layers() == 0;
        self.fully_resident_since = whole.then(|| self.fully_resident_since.unwrap_or(now));
    }

    /// Returns the rest of the minimum residence after a restore of layers, nanoseconds.
    fn residence_left_ns(&self, now: Nanos) -> u64 {
        let resident_ns = self.fully_resident_since.map_or(u64::MAX, |since| now.since(since));
        self.policy.min_residence_ns.saturating_sub(resident_ns)
    }
}

impl NegotiationPolicy {
    /// Returns the peer's priority by the directive; `None` if it has none.
    fn priority_of(&self, peer: Peer) -> Option<i32> {
        self.priorities.iter().find(|(known, _)| *known == peer).map(|(_, priority)| *priority)
    }
}
