//! Since when the tenant waits for its neighbours, seen from outside the decisions: nothing here decides anything.

use sluice_policy::brain::Brain;
use sluice_policy::ids::Nanos;
use sluice_policy::neighbours::span::{Awaited, Span};
use sluice_policy::trader::Trader;

/// A search for memory that goes on.
#[derive(Clone, Copy, Debug)]
struct Hunger {
    since: Nanos,
    /// Loans taken and steps begun when it began.
    loans: u64,
    steps: u64,
}

/// The waits that go on.
#[derive(Debug, Default)]
pub(super) struct Waits {
    hunger: Option<Hunger>,
    revoking: Option<Nanos>,
    waking: Option<Nanos>,
}

impl Waits {
    /// Looks after an event; `steps` were begun so far. Returns the waits that have ended with it.
    pub fn look(
        &mut self,
        now: Nanos,
        brain: &Brain,
        trader: &Trader,
        steps: u64,
    ) -> impl Iterator<Item = Span> {
        let ended = [
            (Awaited::Revoke, self.revoked(now, trader)),
            (Awaited::Wake, self.woken(now, brain)),
            (Awaited::Grant, self.fed(now, brain, trader.loans_taken(), steps)),
        ];
        let span = move |(awaited, since): (Awaited, Option<Nanos>)| {
            since.map(|since| Span { awaited, since, until: now })
        };
        ended.into_iter().filter_map(span)
    }

    fn revoked(&mut self, now: Nanos, trader: &Trader) -> Option<Nanos> {
        if trader.revoking() {
            self.revoking.get_or_insert(now);
            return None;
        }
        self.revoking.take()
    }

    fn woken(&mut self, now: Nanos, brain: &Brain) -> Option<Nanos> {
        if brain.comes_back() {
            self.waking.get_or_insert(now);
        } else if brain.absent_layers() > 0 {
            // It is not needed any more, or waits for what it lent.
            self.waking = None;
        } else if brain.is_whole() {
            return self.waking.take();
        }
        None
    }

    fn fed(&mut self, now: Nanos, brain: &Brain, loans: u64, steps: u64) -> Option<Nanos> {
        let fed = self.hunger.take_if(|hunger| steps > hunger.steps).filter(|hunger| loans > hunger.loans);
        if brain.hungry().is_some() {
            self.hunger.get_or_insert(Hunger { since: now, loans, steps });
        }
        fed.map(|hunger| hunger.since)
    }
}
