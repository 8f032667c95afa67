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

use super::error::{LedgerError, kernel_error};
use super::layout::{RECORDS, header, record as word};
use super::locks;
use super::mapped_words::next_nonzero;
use super::participant::ParticipantHandle;
use super::slice_holder::ActiveSlice;
use crate::clock::since_boot;

/// A dead holder wakes nobody, so whoever waits looks again after this long.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Who has given the turn up leaves it to others for so long while there is no line: they look more often.
const REQUEUE_PAUSE: Duration = Duration::from_millis(20);

/// The deadline of a turn that was just taken, until [`TurnLine::promise`] says another one.
pub const FIRST_DEADLINE: Duration = Duration::from_secs(1);

/// A turn is taken over when the next in line has seen for so long that its deadline is over. Only time between looks that
/// are close together counts, so that a participant that was itself stopped leaves the holder this time again.
pub const OVERDUE_GRACE: Duration = Duration::from_millis(250);

/// Number of a turn: rises with every hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// The turn, as one look finds it.
enum SliceStatus {
    /// It is free.
    Free,
    /// Its holder has it.
    Held,
    /// It may be taken over from this holder.
    Overdue(ActiveSlice),
}

/// The line for the turn, from one participant's side.
#[derive(Clone, Copy, Debug)]
pub struct SliceQueue<'a> {
    pub(super) participant: &'a ParticipantHandle,
}

impl<'a> SliceQueue<'a> {
    pub(super) fn new(seat: &'a ParticipantHandle) -> SliceQueue<'a> {
        SliceQueue { participant: seat }
    }

    /// Draws a ticket, and wakes the holder who wants to know. Who has one already keeps its place and changes its priority
    /// only; higher goes first.
    pub fn request(&self, priority: i32) -> Result<(), LedgerError> {
        if self.is_queue_lost() {
            return Ok(());
        }
        if self.draw_ticket(priority)? {
            self.wake_waiters();
        }
        Ok(())
    }

    /// Whether the ticket is a new one.
    fn draw_ticket(&self, priority: i32) -> Result<bool, LedgerError> {
        let _guard = self.participant.files.lock(self.participant.instance())?;
        if self.held().is_some() {
            return Err(LedgerError::SliceAlreadyHeld);
        }
        let (words, record) = (&self.participant.files.words, self.participant.record());
        record.set(word::PRIORITY, i64::from(priority) as u64);
        let fresh = record.get(word::TICKET) == 0;
        if fresh {
            let ticket = words.take_next(header::NEXT_TICKET);
            self.participant.slices.requested_ns.store(since_boot_ns(), Ordering::Relaxed);
            self.participant.slices.idle_watch().reset();
            record.set(word::TICKET_EPOCH, self.current_epoch());
            record.set(word::TICKET, ticket);
        }
        Ok(fresh)
    }

    /// Gives the ticket up, if there is one. Whoever of this process waits for the turn stops waiting.
    pub fn cancel(&self) -> Result<(), LedgerError> {
        let guard = self.participant.files.lock(self.participant.instance())?;
        let had = self.participant.record().get(word::TICKET) != 0;
        if had {
            self.participant.record().set(word::TICKET, 0);
        }
        drop(guard);
        if had {
            self.wake_waiters();
        }
        Ok(())
    }

    /// Takes the turn if this participant is next and the turn is free, or its holder has exceeded its deadline
    /// for [`OVERDUE_GRACE`] as seen by this participant's own looks.
    pub fn try_acquire(&self, order: TurnOrder) -> Result<Option<Epoch>, LedgerError> {
        let (shared, record) = (&self.participant.files, self.participant.record());
        let faults = &shared.words.faults;
        if self.is_queue_lost() {
            return self.acquire_without_queue();
        }
        if record.get(word::TICKET) == 0 {
            return Err(LedgerError::NoTicket);
        }
        self.clear_skipped();
        // Without the guard: those who wait long do not disturb those who reserve.
        if matches!(self.check_slice()?, SliceStatus::Held) && !faults.unlocked_slice {
            return Ok(None);
        }
        let _guard = shared.lock(self.participant.instance())?;
        if record.get(word::TICKET) == 0 {
            return Err(LedgerError::NoTicket);
        }
        if !faults.ignore_queue && !self.is_eligible(order)? {
            return Ok(None);
        }
        // Again, under the guard: others may have taken it meanwhile, or its holder has extended its deadline.
        match self.check_slice()? {
            SliceStatus::Held if !faults.unlocked_slice => Ok(None),
            SliceStatus::Overdue(holder) => self.start_slice(Some(&holder)),
            SliceStatus::Free | SliceStatus::Held => self.start_slice(None),
        }
    }

    /// Whether the turn may be had, apart from the line.
    fn check_slice(&self) -> Result<SliceStatus, LedgerError> {
        let (shared, turns) = (&self.participant.files, &self.participant.slices);
        let (faults, now_ns) = (&shared.words.faults, since_boot_ns());
        if !shared.is_slice_locked()? {
            turns.overdue_watch().reset();
            return Ok(SliceStatus::Free);
        }
        let late = shared.active_slice()?.filter(|held| faults.ignore_deadline || held.is_overdue(now_ns));
        let Some(held) = late else {
            turns.overdue_watch().reset();
            return Ok(SliceStatus::Held);
        };
        let seen_ns = turns.overdue_watch().observe((held.epoch, held.deadline_ns), now_ns, faults);
        // From now on it is overdue: those before in the line have their time again.
        if seen_ns == 0 {
            turns.idle_watch().reset();
        }
        let over = faults.ignore_deadline || u128::from(seen_ns) >= OVERDUE_GRACE.as_nanos();
        Ok(if over { SliceStatus::Overdue(held) } else { SliceStatus::Held })
    }

    /// Whether there is no line any more, because one of the two files was cut or emptied.
    pub(super) fn is_queue_lost(&self) -> bool {
        self.participant.files.words.check_file().is_err() || self.participant.files.fence.epoch().is_none()
    }

    /// The epoch in force; 0 where that is not known.
    pub(super) fn current_epoch(&self) -> u64 {
        self.participant.files.fence.epoch().unwrap_or(0)
    }

    /// Takes the turn where there is no line: the first to find it free has it, except that the last to release it
    /// leaves it to others for a while. It is not taken over there, since the deadlines are lost with the line.
    fn acquire_without_queue(&self) -> Result<Option<Epoch>, LedgerError> {
        let (shared, turns) = (&self.participant.files, &self.participant.slices);
        let since_ns = since_boot_ns().saturating_sub(turns.released_ns.load(Ordering::Acquire));
        if since_ns <= REQUEUE_PAUSE.as_nanos() as u64 || shared.is_slice_locked()? {
            return Ok(None);
        }
        let _guard = shared.lock_unchecked(locks::GUARD_TIMEOUT)?;
        if shared.is_slice_locked()? {
            return Ok(None);
        }
        self.start_slice(None)
    }

    /// As [`TurnLine::try_take`], and sleeps until it succeeds, the ticket is cancelled or `limit` is over.
    pub fn acquire_within(&self, order: TurnOrder, limit: Duration) -> Result<Option<Epoch>, LedgerError> {
        let deadline = Instant::now() + limit;
        loop {
            // Read first: a bell that rings after a vain try is not slept through.
            let bell = self.participant.files.words.futex_word().load(Ordering::Acquire);
            if let Some(epoch) = self.try_acquire(order)? {
                return Ok(Some(epoch));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.futex_wait(bell, left.min(POLL_INTERVAL))?;
        }
    }

    /// Takes the turn: the byte of the next epoch, what the own record says of it, and, last of all, the epoch in force. The caller
    /// has the guard. `None` when others have the bytes of all epochs that come next.
    fn start_slice(&self, from: Option<&ActiveSlice>) -> Result<Option<Epoch>, LedgerError> {
        let (shared, turns, record) =
            (&self.participant.files, &self.participant.slices, self.participant.record());
        let overtaken = from.map(|held| shared.takeover(held));
        let mut own = turns.last_slice();
        let Some(epoch) = self.lock_next_epoch()? else { return Ok(None) };
        turns.last_handover_ns.store(self.handover_ns(), Ordering::Release);
        record.set(word::DEADLINE, since_boot_ns().saturating_add(FIRST_DEADLINE.as_nanos() as u64));
        record.set(word::SLICE_EPOCH, epoch);
        if record.get(word::TICKET) != 0 {
            record.set(word::TICKET, 0);
        }
        shared.words.faults.before_write();
        shared.fence.set_epoch(epoch);
        own.reset(overtaken);
        turns.epoch.store(epoch, Ordering::Release);
        turns.held_epoch.store(epoch, Ordering::Release);
        drop(own);
        if from.is_some() {
            self.wake_waiters();
        }
        Ok(Some(Epoch(epoch)))
    }

    /// Locks the byte of the next epoch. An epoch is skipped whose byte is still held: its participant died between locking it and
    /// putting it in force, and its engine lives. Where the epoch in force is not known, all bytes.
    fn lock_next_epoch(&self) -> Result<Option<u64>, LedgerError> {
        let life = self.participant.liveness_fd.as_fd();
        // What is left of a turn that was taken over.
        locks::unlock(life, locks::slice_byte(None)).map_err(kernel_error("fcntl(F_OFD_SETLK)"))?;
        let try_lock = |epoch| {
            locks::try_lock(life, locks::slice_byte(epoch)).map_err(kernel_error("fcntl(F_OFD_SETLK)"))
        };
        let Some(in_force) = self.participant.files.fence.epoch() else {
            let next = next_nonzero(self.participant.slices.epoch.load(Ordering::Acquire));
            return Ok(try_lock(None)?.then_some(next));
        };
        let mut epoch = next_nonzero(in_force);
        // Each other record has at most one byte.
        for _ in 0..RECORDS {
            if try_lock(Some(epoch))? {
                return Ok(Some(epoch));
            }
            epoch = next_nonzero(epoch);
        }
        Ok(None)
    }

    pub(super) fn wake_waiters(&self) {
        let words = &self.participant.files.words;
        words.faults.before_write();
        words.futex_word().fetch_add(1, Ordering::AcqRel);
        // Between processes, so not a private futex. Whoever is not woken looks again by itself.
        let _ = futex::wake(words.futex_word(), futex::Flags::empty(), i32::MAX as u32);
    }

    pub(super) fn futex_wait(&self, bell: u32, limit: Duration) -> Result<(), LedgerError> {
        let timeout = futex::Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        match futex::wait(
            self.participant.files.words.futex_word(),
            futex::Flags::empty(),
            bell,
            Some(&timeout),
        ) {
            Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => Ok(()),
            Err(error) => Err(kernel_error("futex")(error)),
        }
    }
}

pub(super) fn since_boot_ns() -> u64 {
    u64::try_from(since_boot().as_nanos()).expect("the clock since boot ends in centuries")
}
