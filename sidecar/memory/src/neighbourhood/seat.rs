//! A participant's own place in the neighbourhood.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluice_policy::peers::Peer;

use super::count::{LedgerAudit, Living, Participant, counted};
use super::error::{JoinError, LedgerError, kernel};
use super::guard::{Guard, Shared};
use super::hold::Turns;
use super::layout::{RECORDS, header, record as word};
use super::locks;
use super::record::{self, Record};
use super::share::{self, Wish};
use super::turn::TurnLine;

/// A record that is ours as long as the description lives that [`Seat::liveness`] shows.
///
/// Dropping the seat leaves what is held as it stands: an engine that has the description may still map it. The end
/// of the last process that has it is what frees.
#[derive(Debug)]
pub struct Seat {
    pub(super) shared: Arc<Shared>,
    pub(super) peer: Peer,
    /// Holds the byte of the record and, while this participant has the turn, the byte of its epoch.
    pub(super) life: OwnedFd,
    /// Bytes that are reserved, by this process's own account: what the file says may be a faulty neighbour's word.
    held: AtomicU64,
    /// Bytes that are granted as its share, by this process's own account.
    pub(super) share: AtomicU64,
    /// What this process knows of its turns.
    pub(super) turns: Turns,
}

impl Seat {
    pub(super) fn join(shared: &Arc<Shared>, name: &str, wish: Wish) -> Result<Seat, JoinError> {
        check_name(name)?;
        let Wish { floor_bytes, share_bytes, .. } = wish;
        if share_bytes < floor_bytes {
            return Err(JoinError::ShareBelowFloor { floor_bytes, share_bytes });
        }
        let life = locks::describe(shared.locks_path())
            .map_err(|source| JoinError::Kernel { call: "open", source })?;
        let _guard = shared.lock(0)?;
        if !shared.is_current()? {
            return Err(JoinError::Replaced);
        }
        let share_bytes = admit(shared, name, wish)?;
        let record = vacate(shared)?;
        let taken = locks::try_lock(life.as_fd(), locks::life(record.index)).map_err(kernel("fcntl"))?;
        assert!(taken, "records are taken under the guard alone");
        let instance = shared.words.draw(header::NEXT_INSTANCE);
        let peer = Peer { index: record.index, instance };
        record.set_name(name);
        record.set(word::FLOOR, floor_bytes);
        record.set(word::SHARE, share_bytes);
        record.set(word::INSTANCE, peer.instance);
        Ok(Seat {
            shared: Arc::clone(shared),
            peer,
            life,
            held: AtomicU64::new(0),
            share: AtomicU64::new(share_bytes),
            turns: Turns::default(),
        })
    }

    /// How others name this life of the participant.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// The record.
    pub fn index(&self) -> u32 {
        self.peer.index
    }

    /// The nonce of this life.
    pub fn instance(&self) -> u64 {
        self.peer.instance
    }

    /// The description to pass to the engine: while one of both has it, the participant counts as living and keeps the
    /// turn if it had it.
    pub fn liveness(&self) -> BorrowedFd<'_> {
        self.life.as_fd()
    }

    /// Bytes that are reserved.
    pub fn held_bytes(&self) -> u64 {
        self.held.load(Ordering::Acquire)
    }

    /// Reserves `bytes` more if they fit beside all that is counted.
    pub fn reserve(&self, bytes: u64) -> Result<(), LedgerError> {
        let unlocked = self.shared.words.faults.unlocked_reserve;
        let _guard = if unlocked { None } else { Some(self.lock()?) };
        self.check_room(bytes)?;
        self.shared.words.sound()?;
        self.hold_more(bytes);
        Ok(())
    }

    /// The guard, to count bytes.
    pub(super) fn lock(&self) -> Result<Guard<'_>, LedgerError> {
        self.own(self.shared.lock(self.instance())?)
    }

    /// The guard, if it is free: for who must not wait.
    pub(super) fn try_lock(&self) -> Result<Guard<'_>, LedgerError> {
        self.own(self.shared.lock_within(Duration::ZERO, self.instance())?)
    }

    fn own<'a>(&self, guard: Guard<'a>) -> Result<Guard<'a>, LedgerError> {
        self.shared.words.unspoilt()?;
        if self.record().instance() != self.instance() {
            return Err(self.shared.words.spoilt("the record of this tenant names another life"));
        }
        Ok(guard)
    }

    pub(super) fn hold_more(&self, bytes: u64) {
        self.held.fetch_add(bytes, Ordering::AcqRel);
        self.record().hold_more(bytes);
    }

    /// Panics when less is held: its owner gives back what it does not have.
    pub(super) fn hold_less(&self, bytes: u64) -> Result<(), LedgerError> {
        let less =
            self.held.fetch_update(Ordering::AcqRel, Ordering::Acquire, |held| held.checked_sub(bytes));
        if let Err(held) = less {
            panic!("{bytes} bytes are given back of {held} that are held");
        }
        self.record().hold_less(bytes)
    }

    /// Gives reserved bytes back, after the memory was released. Needs no lock. Panics when less is held. Of a damaged
    /// ledger there is nothing to tell whoever releases: [`Seat::trouble`] does.
    pub fn release(&self, bytes: u64) {
        let _ = self.hold_less(bytes);
    }

    /// Why this tenant counts no bytes by the ledger any more, if that is so. What is held stays held.
    pub fn trouble(&self) -> Option<LedgerError> {
        self.shared.words.sound().err()
    }

    /// As [`Neighbourhood::survey`](super::Neighbourhood::survey).
    pub fn survey(&self) -> Result<Vec<Participant>, LedgerError> {
        self.shared.survey()
    }

    /// As [`Neighbourhood::audit`](super::Neighbourhood::audit).
    pub fn audit(&self) -> Result<LedgerAudit, LedgerError> {
        self.shared.audit()
    }

    /// The line for the turn, from this participant's side.
    pub fn turn(&self) -> TurnLine<'_> {
        TurnLine::new(self)
    }

    pub(super) fn record(&self) -> Record<'_> {
        self.shared.record(self.peer.index)
    }

    /// Asks the kernel who is dead only if the bytes do not fit beside everybody's.
    pub(super) fn check_room(&self, asked: u64) -> Result<(), LedgerError> {
        let (words, capacity) = (&self.shared.words, self.shared.capacity_bytes());
        let fits = |counted: u64| counted.checked_add(asked).is_some_and(|sum| sum <= capacity);
        if fits(counted(words, Living::ALL)) {
            return Ok(());
        }
        let counted = counted(words, self.shared.living()?);
        if fits(counted) { Ok(()) } else { Err(LedgerError::OutOfMemory { counted, capacity, asked }) }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // Only a courtesy to those who wait behind: a ticket ends with its owner in any case.
        if self.record().get(word::TICKET) != 0 {
            let _ = self.turn().cancel();
        }
    }
}

fn check_name(name: &str) -> Result<(), JoinError> {
    let (bytes, limit_bytes) = (name.len(), word::NAME_BYTES);
    if bytes == 0 || bytes > limit_bytes {
        return Err(JoinError::Name { bytes, limit_bytes });
    }
    Ok(())
}

/// Refuses whom the living leave no room or name for. Returns what is granted of the share.
fn admit(shared: &Shared, name: &str, wish: Wish) -> Result<u64, JoinError> {
    let living = shared.living()?;
    if let Some(same) = living.records(&shared.words).find(|record| record.name() == name) {
        return Err(JoinError::NameTaken { name: name.to_owned(), index: same.index });
    }
    let capacity = shared.capacity_bytes();
    let least = wish.least_bytes.max(wish.floor_bytes).min(wish.share_bytes);
    for (what, at, asked) in [("floor", word::FLOOR, wish.floor_bytes), ("share", word::SHARE, least)] {
        let taken = share::sum(&shared.words, living, at);
        if taken.checked_add(asked).is_none_or(|sum| sum > capacity) {
            return Err(JoinError::Overcommitted { what, taken, asked, capacity });
        }
    }
    let left = capacity.saturating_sub(share::sum(&shared.words, living, word::SHARE));
    Ok(wish.share_bytes.min(left))
}

/// A record without an owner. Its words are gone before it is locked, so that the dead never count again.
fn vacate(shared: &Shared) -> Result<Record<'_>, JoinError> {
    for record in record::all(&shared.words) {
        if !shared.lives(record.index)? {
            record.wipe();
            return Ok(record);
        }
    }
    Err(JoinError::Full { records: RECORDS })
}
