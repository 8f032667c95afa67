//! The turn: a lock on the description of the participant's life, a line of tickets in the records, and an epoch.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::futex;
use sluice_policy::neighbours::Peer;
use sluice_policy::neighbours::turn::{TurnOrder, Waiter, line_up};

use super::error::{LedgerError, kernel};
use super::layout::{header, record as word};
use super::locks;
use super::record::{self, Record};
use super::seat::Seat;
use super::words::following;
use crate::clock::since_boot;

/// A dead holder wakes nobody, so whoever waits looks again after this long.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Who has given the turn up leaves it to others for so long while there is no line: they look more often.
const OUT_OF_LINE: Duration = Duration::from_millis(20);

/// Whoever lets a free turn lie for so long although it is first in line is passed over: its processes live and do not run, as
/// those of a pod that is frozen.
pub const PASSED_OVER: Duration = Duration::from_secs(1);

/// No epoch is so high.
const NEVER: u64 = u64::MAX;

/// Number of a turn: rises with every hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// The line for the turn, from one participant's side.
#[derive(Clone, Copy, Debug)]
pub struct TurnLine<'a> {
    seat: &'a Seat,
}

impl<'a> TurnLine<'a> {
    pub(super) fn new(seat: &'a Seat) -> TurnLine<'a> {
        TurnLine { seat }
    }

    /// Draws a ticket, and wakes the holder who wants to know. Who has one already keeps its place and changes its priority
    /// only; higher goes first.
    pub fn request(&self, priority: i32) -> Result<(), LedgerError> {
        if self.is_lost() {
            return Ok(());
        }
        if self.draw(priority)? {
            self.ring();
        }
        Ok(())
    }

    /// Whether the ticket is a new one.
    fn draw(&self, priority: i32) -> Result<bool, LedgerError> {
        let _guard = self.seat.shared.lock(self.seat.instance())?;
        if self.held().is_some() {
            return Err(LedgerError::HasTurn);
        }
        let (words, record) = (&self.seat.shared.words, self.seat.record());
        record.set(word::PRIORITY, i64::from(priority) as u64);
        let fresh = record.get(word::TICKET) == 0;
        if fresh {
            let ticket = words.draw(header::NEXT_TICKET);
            self.seat.asked.store(since_boot_ns(), Ordering::Relaxed);
            self.seat.looked_at.store(NEVER, Ordering::Relaxed);
            record.set(word::ASKED, words.load(header::EPOCH));
            record.set(word::TICKET, ticket);
        }
        Ok(fresh)
    }

    /// Gives the ticket up, if there is one. Whoever of this process waits for the turn stops waiting.
    pub fn cancel(&self) -> Result<(), LedgerError> {
        let guard = self.seat.shared.lock(self.seat.instance())?;
        let had = self.seat.record().get(word::TICKET) != 0;
        if had {
            self.seat.record().set(word::TICKET, 0);
        }
        drop(guard);
        if had {
            self.ring();
        }
        Ok(())
    }

    /// Takes the turn if nobody has it and this participant is next.
    pub fn try_take(&self, order: TurnOrder) -> Result<Option<Epoch>, LedgerError> {
        let (shared, record) = (&self.seat.shared, self.seat.record());
        let faults = &shared.words.faults;
        if self.is_lost() {
            return self.take_out_of_line();
        }
        if record.get(word::TICKET) == 0 {
            return Err(LedgerError::NoTicket);
        }
        // Without the guard: those who wait long do not disturb those who reserve.
        if shared.turn_is_taken()? && !faults.unlocked_turn {
            return Ok(None);
        }
        let _guard = self.seat.shared.lock(self.seat.instance())?;
        if record.get(word::TICKET) == 0 {
            return Err(LedgerError::NoTicket);
        }
        if !faults.ignore_line && self.next(order)? != Some(self.seat.index()) && !self.passes_over(order)? {
            return Ok(None);
        }
        let taken = locks::try_lock(self.seat.life.as_fd(), locks::TURN).map_err(kernel("fcntl"))?;
        Ok((taken || faults.unlocked_turn).then(|| self.begin()))
    }

    /// Whether there is no line any more, because the file with the tickets was cut or emptied.
    fn is_lost(&self) -> bool {
        self.seat.shared.words.whole().is_err()
    }

    /// The lock of the turn is in a file of its own: without the ledger's it is had by whoever finds it free, except by who
    /// has just given it up.
    fn take_out_of_line(&self) -> Result<Option<Epoch>, LedgerError> {
        let since = since_boot_ns().saturating_sub(self.seat.released.load(Ordering::Acquire));
        let taken = since > OUT_OF_LINE.as_nanos() as u64
            && locks::try_lock(self.seat.life.as_fd(), locks::TURN).map_err(kernel("fcntl"))?;
        let epoch = Epoch(following(self.seat.epoch.load(Ordering::Acquire)));
        if taken {
            self.seat.handover.store(0, Ordering::Release);
            self.hold(epoch);
        }
        Ok(taken.then_some(epoch))
    }

    fn hold(&self, epoch: Epoch) {
        self.seat.epoch.store(epoch.0, Ordering::Release);
        self.seat.turn.store(epoch.0, Ordering::Release);
    }

    /// As [`TurnLine::try_take`], and sleeps until it succeeds, the ticket is cancelled or `limit` is over.
    pub fn take_within(&self, order: TurnOrder, limit: Duration) -> Result<Option<Epoch>, LedgerError> {
        let deadline = Instant::now() + limit;
        loop {
            // Read first: a bell that rings after a vain try is not slept through.
            let bell = self.seat.shared.words.bell().load(Ordering::Acquire);
            if let Some(epoch) = self.try_take(order)? {
                return Ok(Some(epoch));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.sleep(bell, left.min(LOOK_AGAIN))?;
        }
    }

    /// Gives the turn up and wakes those who wait.
    pub fn release(&self) -> Result<(), LedgerError> {
        if self.seat.turn.swap(0, Ordering::AcqRel) == 0 {
            return Err(LedgerError::NoTurn);
        }
        let now = since_boot_ns();
        self.seat.released.store(now, Ordering::Release);
        self.seat.shared.words.store(header::RELEASED, now);
        locks::unlock(self.seat.life.as_fd(), locks::TURN).map_err(kernel("fcntl"))?;
        self.ring();
        Ok(())
    }

    /// The turn that this participant has.
    pub fn held(&self) -> Option<Epoch> {
        Some(self.seat.turn.load(Ordering::Acquire)).filter(|epoch| *epoch != 0).map(Epoch)
    }

    /// How long the hand-over of the turn that was taken last took: from its release by another participant, or from the
    /// own ticket if that was drawn later, to its taking here. `None` when the holder before was this participant or died.
    pub fn handover(&self) -> Option<Duration> {
        let ns = self.seat.handover.load(Ordering::Acquire);
        (ns > 0).then(|| Duration::from_nanos(ns))
    }

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

    /// Sleeps until somebody else waits for the turn that this participant has (`true`), the turn is given up, or `limit` is
    /// over.
    pub fn sought_within(&self, limit: Duration) -> Result<bool, LedgerError> {
        let deadline = Instant::now() + limit;
        loop {
            // Read first: a bell that rings after a vain look is not slept through.
            let bell = self.seat.shared.words.bell().load(Ordering::Acquire);
            if self.held().is_none() {
                return Ok(false);
            }
            if self.waiters()? > 0 {
                return Ok(true);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            self.sleep(bell, left)?;
        }
    }

    /// The first of those who wait, live, and were not passed over.
    fn next(&self, order: TurnOrder) -> Result<Option<u32>, LedgerError> {
        let passed = self.seat.passed.load(Ordering::Relaxed);
        let counts = |one: &Waiter| one.peer.index == self.seat.index() || one.ticket > passed;
        let next = self.living(order).find(|waiter| waiter.as_ref().map_or(true, counts));
        Ok(next.transpose()?.map(|waiter| waiter.peer.index))
    }

    /// Whether the turn has lain free for [`PASSED_OVER`] for each of those who are before this participant in the line, since it
    /// saw that. They do not count any more until they draw another ticket; they still take the turn when they find it free.
    fn passes_over(&self, order: TurnOrder) -> Result<bool, LedgerError> {
        let (words, now) = (&self.seat.shared.words, since_boot_ns());
        let epoch = words.load(header::EPOCH);
        if self.seat.looked_at.swap(epoch, Ordering::Relaxed) != epoch {
            self.seat.looked.store(now, Ordering::Relaxed);
        }
        let free_ns = now.saturating_sub(self.seat.looked.load(Ordering::Relaxed));
        if free_ns <= PASSED_OVER.as_nanos() as u64 {
            return Ok(false);
        }
        let passed = self.seat.passed.load(Ordering::Relaxed);
        let mut before = Vec::new();
        for waiter in self.living(order) {
            match waiter? {
                own if own.peer.index == self.seat.index() => break,
                other => before.push(other.ticket),
            }
        }
        before.retain(|ticket| *ticket > passed);
        let over = u128::from(free_ns) > PASSED_OVER.as_nanos() * before.len() as u128;
        if over {
            let last = before.into_iter().max().unwrap_or(passed);
            self.seat.passed.store(last, Ordering::Relaxed);
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
        let epoch = self.seat.shared.words.load(header::EPOCH);
        let mut line: Vec<_> = waiting(self.seat).map(|record| waiter(&record)).collect();
        line_up(&mut line, order, epoch);
        line.into_iter()
    }

    /// What taking the turn writes.
    fn begin(&self) -> Epoch {
        let words = &self.seat.shared.words;
        self.time_handover();
        let epoch = following(words.load(header::EPOCH));
        words.store(header::EPOCH, epoch);
        words.store(header::HOLDER, self.seat.instance());
        self.seat.record().set(word::TICKET, 0);
        self.hold(Epoch(epoch));
        Epoch(epoch)
    }

    /// Before the holder is written over: who had the turn, and when it was given up.
    fn time_handover(&self) {
        let words = &self.seat.shared.words;
        let (holder, released) = (words.load(header::HOLDER), words.load(header::RELEASED));
        let own = holder == self.seat.instance();
        let begun = released.max(self.seat.asked.load(Ordering::Relaxed));
        // 0 says that there was none.
        let took = since_boot_ns().saturating_sub(begun).max(1);
        let took = if released == 0 || own { 0 } else { took };
        self.seat.handover.store(took, Ordering::Release);
        words.store(header::RELEASED, 0);
    }

    fn ring(&self) {
        let words = &self.seat.shared.words;
        words.faults.before_write();
        words.bell().fetch_add(1, Ordering::AcqRel);
        // Between processes, so not a private futex. Whoever is not woken looks again by itself.
        let _ = futex::wake(words.bell(), futex::Flags::empty(), i32::MAX as u32);
    }

    fn sleep(&self, bell: u32, limit: Duration) -> Result<(), LedgerError> {
        let timeout = futex::Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        match futex::wait(self.seat.shared.words.bell(), futex::Flags::empty(), bell, Some(&timeout)) {
            Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => Ok(()),
            Err(error) => Err(kernel("futex")(error)),
        }
    }
}

fn since_boot_ns() -> u64 {
    u64::try_from(since_boot().as_nanos()).expect("the clock since boot ends in centuries")
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
