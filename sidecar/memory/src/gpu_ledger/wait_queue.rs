//! The line for the turn: who waits, who is next, and who is passed over.

use std::time::Duration;

use sluice_policy::peers::Peer;
use sluice_policy::peers::time_slice::{TurnOrder, Waiter, sort_waiters};

use super::error::LedgerError;
use super::layout::record as word;
use super::participant::ParticipantHandle;
use super::record::{self, Record};
use super::time_slice::{SliceQueue, since_boot_ns};

/// A participant that is first in line and lets the turn lie for so long is passed over: its processes live and do not run, as
/// those of a pod that is frozen. The turn lies while it is free, or overdue so that it may be taken over.
pub const SKIP_AFTER: Duration = Duration::from_secs(1);

impl SliceQueue<'_> {
    /// How many others wait. Needs no lock. Where the line is lost, one: somebody may.
    pub fn waiters(&self) -> Result<usize, LedgerError> {
        if self.is_queue_lost() {
            return Ok(1);
        }
        let mut count = 0;
        for record in
            records_with_ticket(self.participant).filter(|record| record.index != self.participant.index())
        {
            count += usize::from(self.participant.files.is_live(record.index)?);
        }
        Ok(count)
    }

    /// Those who wait and live, who goes first at the front. Needs no lock.
    pub fn waiters_in_order(&self, order: TurnOrder) -> Result<Vec<Peer>, LedgerError> {
        self.live_waiters(order).map(|waiter| Ok(waiter?.peer)).collect()
    }

    /// Whether this participant may take a turn that lies: it is next, or passes over those before it.
    pub(super) fn is_eligible(&self, order: TurnOrder) -> Result<bool, LedgerError> {
        Ok(self.next_waiter(order)? == Some(self.participant.index()) || self.skip_unresponsive(order)?)
    }

    /// The first of those who wait, live, and were not passed over. This participant counts in its own eyes also when
    /// it was passed over.
    fn next_waiter(&self, order: TurnOrder) -> Result<Option<u32>, LedgerError> {
        let counts = |one: &Waiter| one.peer.index == self.participant.index() || !self.is_skipped(one);
        let next = self.live_waiters(order).find(|waiter| waiter.as_ref().map_or(true, counts));
        Ok(next.transpose()?.map(|waiter| waiter.peer.index))
    }

    /// Whether a participant was passed over with the ticket that it has.
    fn is_skipped(&self, waiter: &Waiter) -> bool {
        self.record_of(waiter).get(word::SKIPPED_TICKET) == waiter.ticket
    }

    /// The participants that this one has passed over since the last call, by name.
    pub fn take_skipped(&self) -> Vec<String> {
        std::mem::take(&mut *self.participant.slices.skipped())
    }

    /// A participant that was passed over and runs again has its place in the line again.
    pub(super) fn clear_skipped(&self) {
        let record = self.participant.record();
        if record.get(word::SKIPPED_TICKET) != 0 {
            record.set(word::SKIPPED_TICKET, 0);
        }
    }

    fn record_of(&self, waiter: &Waiter) -> Record<'_> {
        Record::new(&self.participant.files.words, waiter.peer.index)
    }

    /// Whether the turn has lain for [`PASSED_OVER`] for each of those who are before this participant in the line, since it
    /// saw that. Their records say so from then on, and they count for no participant until they run again. The caller has the
    /// guard.
    ///
    /// The records say it, not this participant's memory: two neighbours of a hung one would else wait for it one after the
    /// other, and each would pass over the other, which waits for the hung one.
    fn skip_unresponsive(&self, order: TurnOrder) -> Result<bool, LedgerError> {
        let faults = &self.participant.files.words.faults;
        let lain_ns =
            self.participant.slices.idle_watch().observe((self.current_epoch(), 0), since_boot_ns(), faults);
        if lain_ns <= SKIP_AFTER.as_nanos() as u64 {
            return Ok(false);
        }
        let mut before = Vec::new();
        for waiter in self.live_waiters(order) {
            match waiter? {
                own if own.peer.index == self.participant.index() => break,
                other if self.is_skipped(&other) => {}
                other => before.push(other),
            }
        }
        let over = u128::from(lain_ns) > SKIP_AFTER.as_nanos() * before.len() as u128;
        if over {
            let mut skipped = self.participant.slices.skipped();
            // The first in the queue is reported last: most readers show the last one alone.
            for waiter in before.into_iter().rev() {
                let record = self.record_of(&waiter);
                record.set(word::SKIPPED_TICKET, waiter.ticket);
                skipped.push(record.name());
            }
        }
        Ok(over)
    }

    /// Those who wait and live, in order. The kernel is asked about each only when it is reached.
    fn live_waiters(&self, order: TurnOrder) -> impl Iterator<Item = Result<Waiter, LedgerError>> {
        let lives = |waiter: &Waiter| self.participant.files.is_live(waiter.peer.index);
        self.sorted_tickets(order)
            .filter_map(move |waiter| lives(&waiter).map(|lives| lives.then_some(waiter)).transpose())
    }

    /// Those who have a ticket, in order; the dead included.
    fn sorted_tickets(&self, order: TurnOrder) -> impl Iterator<Item = Waiter> {
        let mut line: Vec<_> = records_with_ticket(self.participant).map(|record| waiter(&record)).collect();
        sort_waiters(&mut line, order, self.current_epoch());
        line.into_iter()
    }
}

/// The records with a ticket, the dead included.
fn records_with_ticket(seat: &ParticipantHandle) -> impl Iterator<Item = Record<'_>> {
    record::all(&seat.files.words).filter(|record| record.instance() != 0 && record.get(word::TICKET) != 0)
}

fn waiter(record: &Record<'_>) -> Waiter {
    Waiter {
        peer: record.peer(),
        ticket: record.get(word::TICKET),
        priority: record.get(word::PRIORITY) as i32,
        asked_at: record.get(word::TICKET_EPOCH),
    }
}
