//! The wait queue of the time slice: which participants wait, which is next, and which are skipped.

use std::time::Duration;

use sluice_policy::peers::Peer;
use sluice_policy::peers::time_slice::{SliceOrder, Waiter, sort_waiters};

use super::error::LedgerError;
use super::layout::record as word;
use super::participant::ParticipantHandle;
use super::record::{self, Record};
use super::time_slice::{SliceQueue, since_boot_ns};

/// Time after which a participant at the front of the queue is skipped if it does not take an available time
/// slice: its processes exist but do not run, such as those of a frozen pod. The slice is available while it
/// is free, or so far overdue that it may be taken over.
pub const SKIP_AFTER: Duration = Duration::from_secs(1);

impl SliceQueue<'_> {
    /// Returns how many other participants wait. Needs no guard. Returns 1 if the queue is lost, because one
    /// may wait.
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

    /// Returns the live waiters, the next one first. Needs no guard.
    pub fn waiters_in_order(&self, order: SliceOrder) -> Result<Vec<Peer>, LedgerError> {
        self.live_waiters(order).map(|waiter| Ok(waiter?.peer)).collect()
    }

    /// Whether this participant may take an available time slice: it is next, or skips all waiters ahead.
    pub(super) fn is_eligible(&self, order: SliceOrder) -> Result<bool, LedgerError> {
        Ok(self.next_waiter(order)? == Some(self.participant.index()) || self.skip_unresponsive(order)?)
    }

    /// Returns the first live waiter that is not skipped. This participant also counts itself when it was
    /// skipped.
    fn next_waiter(&self, order: SliceOrder) -> Result<Option<u32>, LedgerError> {
        let counts = |one: &Waiter| one.peer.index == self.participant.index() || !self.is_skipped(one);
        let next = self.live_waiters(order).find(|waiter| waiter.as_ref().map_or(true, counts));
        Ok(next.transpose()?.map(|waiter| waiter.peer.index))
    }

    /// Whether a participant was skipped with its current ticket.
    fn is_skipped(&self, waiter: &Waiter) -> bool {
        self.record_of(waiter).get(word::SKIPPED_TICKET) == waiter.ticket
    }

    /// Returns and clears the names of the participants that this one has skipped.
    pub fn take_skipped(&self) -> Vec<String> {
        std::mem::take(&mut *self.participant.slices.skipped())
    }

    /// Restores this participant's position in the queue after it was skipped and runs again.
    pub(super) fn clear_skipped(&self) {
        let record = self.participant.record();
        if record.get(word::SKIPPED_TICKET) != 0 {
            record.set(word::SKIPPED_TICKET, 0);
        }
    }

    fn record_of(&self, waiter: &Waiter) -> Record<'_> {
        Record::new(&self.participant.files.words, waiter.peer.index)
    }

    /// Skips the waiters ahead of this participant if it has observed an available time slice for
    /// [`SKIP_AFTER`] per waiter. Marks them in their records; no participant counts them until they run
    /// again. The caller holds the guard.
    ///
    /// The marks are in the records, not in this participant's memory. Otherwise two peers of a hung
    /// participant would wait for it one after the other, and each would skip the other.
    fn skip_unresponsive(&self, order: SliceOrder) -> Result<bool, LedgerError> {
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
            // Report the first in the queue last, because most readers show only the last one.
            for waiter in before.into_iter().rev() {
                let record = self.record_of(&waiter);
                record.set(word::SKIPPED_TICKET, waiter.ticket);
                skipped.push(record.name());
            }
        }
        Ok(over)
    }

    /// Returns the live waiters in order. Asks the kernel about each only when it is reached.
    fn live_waiters(&self, order: SliceOrder) -> impl Iterator<Item = Result<Waiter, LedgerError>> {
        let lives = |waiter: &Waiter| self.participant.files.is_live(waiter.peer.index);
        self.sorted_tickets(order)
            .filter_map(move |waiter| lives(&waiter).map(|lives| lives.then_some(waiter)).transpose())
    }

    /// Returns all waiters in order, including exited ones.
    fn sorted_tickets(&self, order: SliceOrder) -> impl Iterator<Item = Waiter> {
        let mut line: Vec<_> = records_with_ticket(self.participant).map(|record| waiter(&record)).collect();
        sort_waiters(&mut line, order, self.current_epoch());
        line.into_iter()
    }
}

/// Returns the records with a ticket, including those of exited participants.
fn records_with_ticket(participant: &ParticipantHandle) -> impl Iterator<Item = Record<'_>> {
    record::all(&participant.files.words)
        .filter(|record| record.instance() != 0 && record.get(word::TICKET) != 0)
}

fn waiter(record: &Record<'_>) -> Waiter {
    Waiter {
        peer: record.peer(),
        ticket: record.get(word::TICKET),
        priority: record.get(word::PRIORITY) as i32,
        asked_at: record.get(word::TICKET_EPOCH),
    }
}
