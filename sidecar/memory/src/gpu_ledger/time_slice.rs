//! The time slice: a lock on the participant's liveness description, a queue of tickets in the records, an
//! epoch in the lock file, and a deadline.
//!
//! Each epoch has its own lock byte. A participant takes the slice by locking the byte of the next epoch and
//! then writing that epoch to the lock file. So it can also take over a slice whose holder has its byte
//! locked but does not run: the new slice takes effect with that one write, and everything done under the old
//! epoch is refused.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::futex;
use sluice_policy::peers::time_slice::SliceOrder;

use super::error::{LedgerError, kernel_error};
use super::layout::{RECORDS, header, record as word};
use super::locks;
use super::mapped_words::next_nonzero;
use super::participant::ParticipantHandle;
use super::slice_tracker::ActiveSlice;
use crate::clock::since_boot;

/// An exited holder wakes no waiter, so waiters check again after this time.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Without a queue, a participant that released the slice leaves it to others for this time; they check more
/// often.
const REQUEUE_PAUSE: Duration = Duration::from_millis(20);

/// Deadline of a new time slice until [`SliceQueue::set_deadline`] changes it.
pub const FIRST_DEADLINE: Duration = Duration::from_secs(1);

/// How long the next waiter must observe an exceeded deadline before it takes the slice over. Only time
/// between close observations counts, so that a waiter that was itself stopped gives the holder this time
/// again.
pub const OVERDUE_GRACE: Duration = Duration::from_millis(250);

/// Number of a time slice; rises with every handover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// State of the time slice at one check.
enum SliceStatus {
    /// No participant holds it.
    Free,
    /// A participant holds it.
    Held,
    /// It may be taken over from this holder.
    Overdue(ActiveSlice),
}

/// One participant's view of the wait queue.
#[derive(Clone, Copy, Debug)]
pub struct SliceQueue<'a> {
    pub(super) participant: &'a ParticipantHandle,
}

impl ParticipantHandle {
    /// Returns this participant's view of the wait queue.
    pub fn slice_queue(&self) -> SliceQueue<'_> {
        SliceQueue::new(self)
    }
}

impl<'a> SliceQueue<'a> {
    pub(super) fn new(participant: &'a ParticipantHandle) -> SliceQueue<'a> {
        SliceQueue { participant }
    }

    /// Draws a ticket and wakes a holder that waits for waiters. If there is a ticket already, keeps it and
    /// changes only its priority; a higher priority goes first.
    pub fn request(&self, priority: i32) -> Result<(), LedgerError> {
        if self.is_queue_lost() {
            return Ok(());
        }
        if self.draw_ticket(priority)? {
            self.wake_waiters();
        }
        Ok(())
    }

    /// Returns whether the ticket is new.
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

    /// Cancels the ticket, if any. Threads of this process that wait for the time slice stop waiting.
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

    /// Takes the time slice if this participant is next, and the slice is free or its holder has exceeded its
    /// deadline for [`OVERDUE_GRACE`] in this participant's own observations.
    pub fn try_acquire(&self, order: SliceOrder) -> Result<Option<Epoch>, LedgerError> {
        let (shared, record) = (&self.participant.files, self.participant.record());
        let faults = &shared.words.faults;
        if self.is_queue_lost() {
            return self.acquire_without_queue();
        }
        if record.get(word::TICKET) == 0 {
            return Err(LedgerError::NoTicket);
        }
        self.clear_skipped();
        // Check without the guard first, so that long waits do not disturb participants that reserve bytes.
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
        // Check again under the guard: another may have taken the slice, or the holder may have extended its
        // deadline.
        match self.check_slice()? {
            SliceStatus::Held if !faults.unlocked_slice => Ok(None),
            SliceStatus::Overdue(holder) => self.start_slice(Some(&holder)),
            SliceStatus::Free | SliceStatus::Held => self.start_slice(None),
        }
    }

    /// Checks whether the time slice is available, regardless of the queue.
    fn check_slice(&self) -> Result<SliceStatus, LedgerError> {
        let (shared, slices) = (&self.participant.files, &self.participant.slices);
        let (faults, now_ns) = (&shared.words.faults, since_boot_ns());
        if !shared.is_slice_locked()? {
            slices.overdue_watch().reset();
            return Ok(SliceStatus::Free);
        }
        let late = shared.active_slice()?.filter(|held| faults.ignore_deadline || held.is_overdue(now_ns));
        let Some(held) = late else {
            slices.overdue_watch().reset();
            return Ok(SliceStatus::Held);
        };
        let seen_ns = slices.overdue_watch().observe((held.epoch, held.deadline_ns), now_ns, faults);
        // The slice has just become overdue: restart the response time of the waiters ahead.
        if seen_ns == 0 {
            slices.idle_watch().reset();
        }
        let over = faults.ignore_deadline || u128::from(seen_ns) >= OVERDUE_GRACE.as_nanos();
        Ok(if over { SliceStatus::Overdue(held) } else { SliceStatus::Held })
    }

    /// Whether the queue is lost because one of the two files was truncated or emptied.
    pub(super) fn is_queue_lost(&self) -> bool {
        self.participant.files.words.check_file().is_err() || self.participant.files.fence.epoch().is_none()
    }

    /// Returns the current epoch; 0 if unknown.
    pub(super) fn current_epoch(&self) -> u64 {
        self.participant.files.fence.epoch().unwrap_or(0)
    }

    /// Takes the time slice without a queue. The first participant to find it free takes it; the last to
    /// release it leaves it to others for a while. There is no takeover, because the deadlines are lost with
    /// the queue.
    fn acquire_without_queue(&self) -> Result<Option<Epoch>, LedgerError> {
        let (shared, slices) = (&self.participant.files, &self.participant.slices);
        let since_ns = since_boot_ns().saturating_sub(slices.released_ns.load(Ordering::Acquire));
        if since_ns <= REQUEUE_PAUSE.as_nanos() as u64 || shared.is_slice_locked()? {
            return Ok(None);
        }
        let _guard = shared.lock_unchecked(locks::GUARD_TIMEOUT)?;
        if shared.is_slice_locked()? {
            return Ok(None);
        }
        self.start_slice(None)
    }

    /// As [`SliceQueue::try_acquire`], but sleeps until it succeeds or `limit` has passed. Fails if the
    /// ticket is cancelled.
    pub fn acquire_within(&self, order: SliceOrder, limit: Duration) -> Result<Option<Epoch>, LedgerError> {
        let deadline = Instant::now() + limit;
        loop {
            // Read the futex word first, so that a wake-up after a failed attempt is not missed.
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

    /// Takes the time slice: locks the byte of the next epoch, fills the own record, and last makes the epoch
    /// current. The caller holds the guard. Returns `None` if other participants hold the bytes of all next
    /// epochs.
    fn start_slice(&self, from: Option<&ActiveSlice>) -> Result<Option<Epoch>, LedgerError> {
        let (shared, slices, record) =
            (&self.participant.files, &self.participant.slices, self.participant.record());
        let overtaken = from.map(|held| shared.takeover(held));
        let mut own = slices.last_slice();
        let Some(epoch) = self.lock_next_epoch()? else { return Ok(None) };
        slices.last_handover_ns.store(self.handover_ns(), Ordering::Release);
        record.set(word::DEADLINE, since_boot_ns().saturating_add(FIRST_DEADLINE.as_nanos() as u64));
        record.set(word::SLICE_EPOCH, epoch);
        if record.get(word::TICKET) != 0 {
            record.set(word::TICKET, 0);
        }
        shared.words.faults.before_write();
        shared.fence.set_epoch(epoch);
        own.reset(overtaken);
        slices.epoch.store(epoch, Ordering::Release);
        slices.held_epoch.store(epoch, Ordering::Release);
        drop(own);
        if from.is_some() {
            self.wake_waiters();
        }
        Ok(Some(Epoch(epoch)))
    }

    /// Locks the byte of the next epoch. Skips an epoch whose byte is still held: its sidecar exited after it
    /// had locked the byte and before it made the epoch current, and its engine still runs. If the current
    /// epoch is unknown, locks the bytes of all epochs.
    fn lock_next_epoch(&self) -> Result<Option<u64>, LedgerError> {
        let life = self.participant.liveness_fd.as_fd();
        // Drop the lock of a slice that was taken over.
        locks::unlock(life, locks::slice_byte(None)).map_err(kernel_error("fcntl(F_OFD_SETLK)"))?;
        let try_lock = |epoch| {
            locks::try_lock(life, locks::slice_byte(epoch)).map_err(kernel_error("fcntl(F_OFD_SETLK)"))
        };
        let Some(in_force) = self.participant.files.fence.epoch() else {
            let next = next_nonzero(self.participant.slices.epoch.load(Ordering::Acquire));
            return Ok(try_lock(None)?.then_some(next));
        };
        let mut epoch = next_nonzero(in_force);
        // Each other participant holds at most one byte.
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
        // The futex is shared between processes, so it is not private. A waiter that is not woken checks
        // again after its timeout.
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
