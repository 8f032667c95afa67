//! The line for the turn: who waits, who is next, and who is passed over.

use std::time::Duration;

use sluice_policy::peers::Peer;
use sluice_policy::peers::time_slice::{TurnOrder, Waiter, sort_waiters};

use super::error::LedgerError;
use super::layout::record as word;
use super::record::{self, Record};
use super::seat::Seat;
use super::turn::{TurnLine, since_boot_ns};

/// A participant that is first in line and lets the turn lie for so long is passed over: its processes live and do not run, as
/// those of a pod that is frozen. The turn lies while it is free, or overdue so that it may be taken over.
pub const PASSED_OVER: Duration = Duration::from_secs(1);

impl TurnLine<'_> {
    /// How many others wait. Needs no lock. Where the line is lost, one: somebody may.
    pub fn waiters(&self) -> Result<usize, LedgerError> {
        if self.is_lost() {
            return Ok(1);
        }
        let mut count = 0;
        for record in waiting(self.seat).filter(|record| record.index != self.seat.index()) {
            count += usize::from(self.seat.shared.lives(record.index)?);
        }
        Ok(count)
    }

    /// Those who wait and live, who goes first at the front. Needs no lock.
    pub fn line(&self, order: TurnOrder) -> Result<Vec<Peer>, LedgerError> {
        self.living(order).map(|waiter| Ok(waiter?.peer)).collect()
    }

    /// Whether this participant may take a turn that lies: it is next, or passes over those before it.
    pub(super) fn is_first(&self, order: TurnOrder) -> Result<bool, LedgerError> {
        Ok(self.next(order)? == Some(self.seat.index()) || self.passes_over(order)?)
    }

    /// The first of those who wait, live, and were not passed over. This participant counts in its own eyes also when
    /// it was passed over.
    fn next(&self, order: TurnOrder) -> Result<Option<u32>, LedgerError> {
        let counts = |one: &Waiter| one.peer.index == self.seat.index() || !self.is_passed(one);
        let next = self.living(order).find(|waiter| waiter.as_ref().map_or(true, counts));
        Ok(next.transpose()?.map(|waiter| waiter.peer.index))
    }

    /// Whether a participant was passed over with the ticket that it has.
    fn is_passed(&self, waiter: &Waiter) -> bool {
        self.record_of(waiter).get(word::PASSED) == waiter.ticket
    }

    /// The participants that this one has passed over since the last call, by name.
    pub fn take_skipped(&self) -> Vec<String> {
        std::mem::take(&mut *self.seat.turns.skipped())
    }

    /// A participant that was passed over and runs again has its place in the line again.
    pub(super) fn count_again(&self) {
        let record = self.seat.record();
        if record.get(word::PASSED) != 0 {
            record.set(word::PASSED, 0);
        }
    }

    fn record_of(&self, waiter: &Waiter) -> Record<'_> {
        Record::new(&self.seat.shared.words, waiter.peer.index)
    }

    /// Whether the turn has lain for [`PASSED_OVER`] for each of those who are before this participant in the line, since it
    /// saw that. Their records say so from then on, and they count for no participant until they run again. The caller has the
    /// guard.
    ///
    /// The records say it, not this participant's memory: two neighbours of a hung one would else wait for it one after the
    /// other, and each would pass over the other, which waits for the hung one.
    fn passes_over(&self, order: TurnOrder) -> Result<bool, LedgerError> {
        let faults = &self.seat.shared.words.faults;
        let lain_ns = self.seat.turns.lying().look((self.epoch(), 0), since_boot_ns(), faults);
        if lain_ns <= PASSED_OVER.as_nanos() as u64 {
            return Ok(false);
        }
        let mut before = Vec::new();
        for waiter in self.living(order) {
            match waiter? {
                own if own.peer.index == self.seat.index() => break,
                other if self.is_passed(&other) => {}
                other => before.push(other),
            }
        }
        let over = u128::from(lain_ns) > PASSED_OVER.as_nanos() * before.len() as u128;
        if over {
            let mut skipped = self.seat.turns.skipped();
            // The first in the queue is reported last: most readers show the last one alone.
            for waiter in before.into_iter().rev() {
                let record = self.record_of(&waiter);
                record.set(word::PASSED, waiter.ticket);
                skipped.push(record.name());
            }
        }
        Ok(over)
    }

    /// Those who wait and live, in order. The kernel is asked about each only when it is reached.
    fn living(&self, order: TurnOrder) -> impl Iterator<Item = Result<Waiter, LedgerError>> {
        let lives = |waiter: &Waiter| self.seat.shared.lives(waiter.peer.index);
        self.tickets(order)
            .filter_map(move |waiter| lives(&waiter).map(|lives| lives.then_some(waiter)).transpose())
    }

    /// Those who have a ticket, in order; the dead included.
    fn tickets(&self, order: TurnOrder) -> impl Iterator<Item = Waiter> {
        let mut line: Vec<_> = waiting(self.seat).map(|record| waiter(&record)).collect();
        sort_waiters(&mut line, order, self.epoch());
        line.into_iter()
    }
}

/// The records with a ticket, the dead included.
fn waiting(seat: &Seat) -> impl Iterator<Item = Record<'_>> {
    record::all(&seat.shared.words).filter(|record| record.instance() != 0 && record.get(word::TICKET) != 0)
}

fn waiter(record: &Record<'_>) -> Waiter {
    Waiter {
        peer: record.peer(),
        ticket: record.get(word::TICKET),
        priority: record.get(word::PRIORITY) as i32,
        asked: record.get(word::ASKED),
    }
}
