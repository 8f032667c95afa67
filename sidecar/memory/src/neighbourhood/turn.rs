//! The turn: a lock on the description of the participant's life, a line of tickets in the records, an epoch in the file of
//! locks, and a deadline.
//!
//! Each epoch has a lock byte of its own. A participant takes the turn by locking the byte of the next epoch and then writing
//! that epoch into the file of locks. So it can also take a turn whose holder still has its byte and does not run: the turn of
//! the new epoch is in force from that one write on, and all that is done under the old epoch is refused.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::futex;
use sluice_policy::peers::time_slice::TurnOrder;

use super::error::{LedgerError, kernel};
use super::hold::Held;
use super::layout::{RECORDS, header, record as word};
use super::locks;
use super::seat::Seat;
use super::words::following;
use crate::clock::since_boot;

/// A dead holder wakes nobody, so whoever waits looks again after this long.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Who has given the turn up leaves it to others for so long while there is no line: they look more often.
const OUT_OF_LINE: Duration = Duration::from_millis(20);

/// The deadline of a turn that was just taken, until [`TurnLine::promise`] says another one.
pub const FIRST_DEADLINE: Duration = Duration::from_secs(1);

/// A turn is taken over when the next in line has seen for so long that its deadline is over. Only time between looks that
/// are close together counts, so that a participant that was itself stopped leaves the holder this time again.
pub const OVERDUE_GRACE: Duration = Duration::from_millis(250);

/// Number of a turn: rises with every hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// The turn, as one look finds it.
enum Found {
    /// It is free.
    Free,
    /// Its holder has it.
    Kept,
    /// It may be taken over from this holder.
    Overdue(Held),
}

/// The line for the turn, from one participant's side.
#[derive(Clone, Copy, Debug)]
pub struct TurnLine<'a> {
    pub(super) seat: &'a Seat,
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
            self.seat.turns.asked.store(since_boot_ns(), Ordering::Relaxed);
            self.seat.turns.lying().forget();
            record.set(word::ASKED, self.epoch());
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

    /// Takes the turn if this participant is next and the turn is free, or its holder has exceeded its deadline
    /// for [`OVERDUE_GRACE`] as seen by this participant's own looks.
    pub fn try_take(&self, order: TurnOrder) -> Result<Option<Epoch>, LedgerError> {
        let (shared, record) = (&self.seat.shared, self.seat.record());
        let faults = &shared.words.faults;
        if self.is_lost() {
            return self.take_out_of_line();
        }
        if record.get(word::TICKET) == 0 {
            return Err(LedgerError::NoTicket);
        }
        self.count_again();
        // Without the guard: those who wait long do not disturb those who reserve.
        if matches!(self.look()?, Found::Kept) && !faults.unlocked_turn {
            return Ok(None);
        }
        let _guard = shared.lock(self.seat.instance())?;
        if record.get(word::TICKET) == 0 {
            return Err(LedgerError::NoTicket);
        }
        if !faults.ignore_line && !self.is_first(order)? {
            return Ok(None);
        }
        // Again, under the guard: others may have taken it meanwhile, or its holder has extended its deadline.
        match self.look()? {
            Found::Kept if !faults.unlocked_turn => Ok(None),
            Found::Overdue(holder) => self.begin(Some(&holder)),
            Found::Free | Found::Kept => self.begin(None),
        }
    }

    /// Whether the turn may be had, apart from the line.
    fn look(&self) -> Result<Found, LedgerError> {
        let (shared, turns) = (&self.seat.shared, &self.seat.turns);
        let (faults, now_ns) = (&shared.words.faults, since_boot_ns());
        if !shared.turn_is_taken()? {
            turns.late().forget();
            return Ok(Found::Free);
        }
        let late = shared.turn_holder()?.filter(|held| faults.ignore_deadline || held.is_overdue(now_ns));
        let Some(held) = late else {
            turns.late().forget();
            return Ok(Found::Kept);
        };
        let seen_ns = turns.late().look((held.epoch, held.deadline_ns), now_ns, faults);
        // From now on it is overdue: those before in the line have their time again.
        if seen_ns == 0 {
            turns.lying().forget();
        }
        let over = faults.ignore_deadline || u128::from(seen_ns) >= OVERDUE_GRACE.as_nanos();
        Ok(if over { Found::Overdue(held) } else { Found::Kept })
    }

    /// Whether there is no line any more, because one of the two files was cut or emptied.
    pub(super) fn is_lost(&self) -> bool {
        self.seat.shared.words.whole().is_err() || self.seat.shared.fence.epoch().is_none()
    }

    /// The epoch in force; 0 where that is not known.
    pub(super) fn epoch(&self) -> u64 {
        self.seat.shared.fence.epoch().unwrap_or(0)
    }

    /// Takes the turn where there is no line: the first to find it free has it, except that the last to release it
    /// leaves it to others for a while. It is not taken over there, since the deadlines are lost with the line.
    fn take_out_of_line(&self) -> Result<Option<Epoch>, LedgerError> {
        let (shared, turns) = (&self.seat.shared, &self.seat.turns);
        let since_ns = since_boot_ns().saturating_sub(turns.released.load(Ordering::Acquire));
        if since_ns <= OUT_OF_LINE.as_nanos() as u64 || shared.turn_is_taken()? {
            return Ok(None);
        }
        let _guard = shared.lock_alone(locks::PATIENCE)?;
        if shared.turn_is_taken()? {
            return Ok(None);
        }
        self.begin(None)
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

    /// Takes the turn: the byte of the next epoch, what the own record says of it, and, last of all, the epoch in force. The caller
    /// has the guard. `None` when others have the bytes of all epochs that come next.
    fn begin(&self, from: Option<&Held>) -> Result<Option<Epoch>, LedgerError> {
        let (shared, turns, record) = (&self.seat.shared, &self.seat.turns, self.seat.record());
        let overtaken = from.map(|held| shared.taken_over(held));
        let mut own = turns.own();
        let Some(epoch) = self.lock_next()? else { return Ok(None) };
        turns.handover.store(self.handover_ns(), Ordering::Release);
        record.set(word::DEADLINE, since_boot_ns().saturating_add(FIRST_DEADLINE.as_nanos() as u64));
        record.set(word::TURN, epoch);
        if record.get(word::TICKET) != 0 {
            record.set(word::TICKET, 0);
        }
        shared.words.faults.before_write();
        shared.fence.put_in_force(epoch);
        own.begin(overtaken);
        turns.epoch.store(epoch, Ordering::Release);
        turns.turn.store(epoch, Ordering::Release);
        drop(own);
        if from.is_some() {
            self.ring();
        }
        Ok(Some(Epoch(epoch)))
    }

    /// Locks the byte of the next epoch. An epoch is skipped whose byte is still held: its participant died between locking it and
    /// putting it in force, and its engine lives. Where the epoch in force is not known, all bytes.
    fn lock_next(&self) -> Result<Option<u64>, LedgerError> {
        let life = self.seat.life.as_fd();
        // What is left of a turn that was taken over.
        locks::unlock(life, locks::turn(None)).map_err(kernel("fcntl(F_OFD_SETLK)"))?;
        let try_lock =
            |epoch| locks::try_lock(life, locks::turn(epoch)).map_err(kernel("fcntl(F_OFD_SETLK)"));
        let Some(in_force) = self.seat.shared.fence.epoch() else {
            let next = following(self.seat.turns.epoch.load(Ordering::Acquire));
            return Ok(try_lock(None)?.then_some(next));
        };
        let mut epoch = following(in_force);
        // Each other record has at most one byte.
        for _ in 0..RECORDS {
            if try_lock(Some(epoch))? {
                return Ok(Some(epoch));
            }
            epoch = following(epoch);
        }
        Ok(None)
    }

    pub(super) fn ring(&self) {
        let words = &self.seat.shared.words;
        words.faults.before_write();
        words.bell().fetch_add(1, Ordering::AcqRel);
        // Between processes, so not a private futex. Whoever is not woken looks again by itself.
        let _ = futex::wake(words.bell(), futex::Flags::empty(), i32::MAX as u32);
    }

    pub(super) fn sleep(&self, bell: u32, limit: Duration) -> Result<(), LedgerError> {
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

pub(super) fn since_boot_ns() -> u64 {
    u64::try_from(since_boot().as_nanos()).expect("the clock since boot ends in centuries")
}
