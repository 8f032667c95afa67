//! Measures waits for peers. Nothing here affects decisions.

use sluice_policy::ids::Nanos;
use sluice_policy::loan_negotiator::LoanNegotiator;
use sluice_policy::memory_manager::MemoryManager;
use sluice_policy::peers::wait_time::{WaitKind, WaitSpan};

/// A search for memory that has not ended.
#[derive(Clone, Copy, Debug)]
struct Shortfall {
    since: Nanos,
    /// Loans accepted and steps begun when the search began.
    loans: u64,
    steps: u64,
}

/// The waits in progress.
#[derive(Debug, Default)]
pub(crate) struct PeerWaits {
    shortfall: Option<Shortfall>,
    revoking: Option<Nanos>,
    waking: Option<Nanos>,
}

impl PeerWaits {
    /// Samples the state after an event; `steps` is the number of steps begun. Returns the waits that ended.
    pub fn sample(
        &mut self,
        now: Nanos,
        manager: &MemoryManager,
        negotiator: &LoanNegotiator,
        steps: u64,
    ) -> impl Iterator<Item = WaitSpan> {
        let ended = [
            (WaitKind::Revoke, self.revoked(now, negotiator)),
            (WaitKind::Wake, self.woken(now, manager)),
            (WaitKind::Grant, self.loan_arrived(now, manager, negotiator.loans_accepted(), steps)),
        ];
        let span = move |(awaited, since): (WaitKind, Option<Nanos>)| {
            since.map(|since| WaitSpan { kind: awaited, since, until: now })
        };
        ended.into_iter().filter_map(span)
    }

    fn revoked(&mut self, now: Nanos, negotiator: &LoanNegotiator) -> Option<Nanos> {
        if negotiator.revoking() {
            self.revoking.get_or_insert(now);
            return None;
        }
        self.revoking.take()
    }

    fn woken(&mut self, now: Nanos, manager: &MemoryManager) -> Option<Nanos> {
        if manager.loans().can_restore_layers() {
            self.waking.get_or_insert(now);
        } else if manager.status().absent_layers() > 0 {
            // The layers are no longer needed, or wait for loans.
            self.waking = None;
        } else if manager.status().is_whole() {
            return self.waking.take();
        }
        None
    }

    fn loan_arrived(&mut self, now: Nanos, manager: &MemoryManager, loans: u64, steps: u64) -> Option<Nanos> {
        let met = self
            .shortfall
            .take_if(|shortfall| steps > shortfall.steps)
            .filter(|shortfall| loans > shortfall.loans);
        if manager.loans().borrow_request().is_some() {
            self.shortfall.get_or_insert(Shortfall { since: now, loans, steps });
        }
        met.map(|shortfall| shortfall.since)
    }
}
