//! Trades memory with the peers of a GPU at boundaries, for any kind of scheduler.

use sluice_policy::action::Action;
use sluice_policy::ids::Nanos;
use sluice_policy::loan_negotiator::{LoanNegotiator, PeerEvent};
use sluice_policy::memory_manager::MemoryManager;
use sluice_policy::peers::loans::LoanBook;
use sluice_policy::peers::next_use::NextUse;
use sluice_policy::peers::wait_time::WaitSpan;

use crate::config::Membership;
use crate::event::Command;
use crate::peer_waits::PeerWaits;

/// The tenant's loans, and what it knows of its own use.
#[derive(Debug)]
pub(crate) struct PeerLoans {
    /// `None` without peers.
    negotiator: Option<LoanNegotiator>,
    waits: PeerWaits,
    next_use: NextUse,
}

impl PeerLoans {
    /// The state before the first boundary. With peers the memory manager may borrow.
    pub fn new(membership: Option<Membership>, manager: &mut MemoryManager) -> PeerLoans {
        let negotiator = membership.map(|membership| {
            manager.loans_mut().set_can_borrow(true);
            let loans = manager.loans();
            let book = LoanBook::new(membership.own_peer, loans.share_chunks(), loans.floor_chunks());
            LoanNegotiator::new(book, membership.terms)
        });
        PeerLoans { negotiator, waits: PeerWaits::default(), next_use: NextUse::default() }
    }

    /// Returns the negotiator; `None` without peers.
    pub fn negotiator(&self) -> Option<&LoanNegotiator> {
        self.negotiator.as_ref()
    }

    /// Returns the predicted time until the tenant is used next, nanoseconds: 0 while it has requests, `None` without
    /// data.
    pub fn next_use_ns(&self, now: Nanos) -> Option<u64> {
        self.next_use.expected_ns(now)
    }

    /// Handles a message of a peer.
    pub fn on_event(&mut self, now: Nanos, event: PeerEvent, manager: &mut MemoryManager) {
        if let Some(negotiator) = &mut self.negotiator {
            negotiator.on_event(now, event, &mut manager.loans_mut());
        }
    }

    /// Trades at a boundary.
    pub fn boundary(
        &mut self,
        now: Nanos,
        manager: &mut MemoryManager,
        actions: &mut Vec<Action>,
        commands: &mut Vec<Command>,
    ) {
        let Some(negotiator) = &mut self.negotiator else { return };
        let waited = manager.loans().awaits_loans();
        negotiator.boundary(now, &mut manager.loans_mut(), actions);
        if waited && !manager.loans().awaits_loans() && !manager.status().is_blocked() {
            // The loans that absent layers waited for are settled: restore the layers now instead of at the next event.
            manager.boundary(now, actions);
        }
        commands.extend(negotiator.take_commands().into_iter().map(Command::Peer));
    }

    /// Claims the missing floor of a new instance from the peers that hold it, and retries.
    pub fn claim_floor(
        &mut self,
        now: Nanos,
        manager: &mut MemoryManager,
        actions: &mut Vec<Action>,
        commands: &mut Vec<Command>,
    ) {
        let missing = manager.loans().missing_floor_chunks();
        let (Some(chunks), Some(negotiator)) = (missing, &mut self.negotiator) else { return };
        negotiator.claim(now, chunks);
        commands.extend(negotiator.take_commands().into_iter().map(Command::Peer));
        manager.loans_mut().claim_floor(actions);
    }

    /// Observes the state after an event. `steps` is the number of steps begun. Returns the waits for peers that ended.
    pub fn observe(
        &mut self,
        now: Nanos,
        manager: &MemoryManager,
        (steps, has_requests): (u64, bool),
    ) -> Vec<WaitSpan> {
        self.next_use.observe(now, has_requests);
        let Some(negotiator) = &self.negotiator else { return Vec::new() };
        self.waits.sample(now, manager, negotiator, steps).collect()
    }

    /// Whether time alone can change the state of a loan.
    pub fn needs_ticks(&self) -> bool {
        self.negotiator.as_ref().is_some_and(LoanNegotiator::needs_ticks)
    }

    /// Checks the loans against the memory manager's; panics if they differ.
    pub fn check(&self, manager: &MemoryManager) {
        if let Some(negotiator) = &self.negotiator {
            negotiator.check(&manager.loans().audit());
        }
    }

    /// Returns a fingerprint of the loans.
    pub fn digest(&self) -> u64 {
        self.negotiator.as_ref().map_or(0, LoanNegotiator::digest)
    }
}
