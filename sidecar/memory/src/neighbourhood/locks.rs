//! Locks that belong to an open file description: the kernel drops one when the last process that holds the description
//! is gone, whatever its process id and in whatever namespace. A description is one holder: its own locks never
//! conflict with each other.

use std::path::Path;
use std::time::Duration;

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::layout::RECORDS;

/// The guard is waited for this long. Its holder does no more than read and write some words: who has it longer is frozen,
/// and nobody knows until when.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// Between two tries for it; doubled up to the longest.
const FIRST_NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_millis(1);

/// A range of bytes of the lock file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bytes {
    first: u64,
    count: u64,
}

/// The byte that is held while the ledger is checked and changed.
pub(super) const GUARD: Bytes = Bytes { first: 0, count: 1 };
/// The bytes that say who lives, one for each record. Byte 1 was the turn in version 1 of the layout.
const LIVES: Bytes = Bytes { first: 2, count: RECORDS as u64 };
/// The bytes of turns, one for each epoch, which no two turns share.
const TURNS: Bytes = Bytes { first: 1 << 10, count: 1 << 40 };
const _: () = assert!(LIVES.first + LIVES.count <= TURNS.first);

/// The byte of record `index`.
pub(super) fn life(index: u32) -> Bytes {
    assert!(index < RECORDS, "record {index} is one of {RECORDS}");
    Bytes { first: LIVES.first + u64::from(index), count: 1 }
}

/// The byte of the turn `epoch`; those of all turns where the epoch in force is not known.
pub(super) fn turn(epoch: Option<u64>) -> Bytes {
    epoch.map_or(TURNS, |epoch| Bytes { first: TURNS.first + epoch % TURNS.count, count: 1 })
}

/// A new description of the lock file, which is created when it is missing and never replaced.
pub(super) fn describe(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP)
}

/// Tries until it succeeds or `patience` is over: false then.
pub(super) fn patiently(
    patience: Duration,
    mut attempt: impl FnMut() -> Result<bool, Errno>,
) -> Result<bool, Errno> {
    let (mut nap, mut left) = (FIRST_NAP, patience);
    while !attempt()? {
        if left.is_zero() {
            return Ok(false);
        }
        // What counts is what was slept for: a process that was itself stopped has not waited meanwhile.
        let slept = nap.min(left);
        std::thread::sleep(slept);
        left -= slept;
        nap = (nap * 2).min(LONGEST_NAP);
    }
    Ok(true)
}

/// Takes the bytes, all or none; false when another description has one. Never waits: its holder may be frozen.
pub(super) fn try_lock(file: BorrowedFd<'_>, bytes: Bytes) -> Result<bool, Errno> {
    match call(file, libc::F_OFD_SETLK, libc::F_WRLCK, bytes) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Gives those of the bytes back that this description has.
pub(super) fn unlock(file: BorrowedFd<'_>, bytes: Bytes) -> Result<(), Errno> {
    call(file, libc::F_OFD_SETLK, libc::F_UNLCK, bytes).map(drop)
}

/// Whether another description than `file` has one of the bytes.
pub(super) fn is_held(file: BorrowedFd<'_>, bytes: Bytes) -> Result<bool, Errno> {
    let found = call(file, libc::F_OFD_GETLK, libc::F_WRLCK, bytes)?;
    Ok(i32::from(found.l_type) != libc::F_UNLCK)
}

/// Whether any record's byte is held by another description than `file`.
pub(super) fn anybody_lives(file: BorrowedFd<'_>) -> Result<bool, Errno> {
    is_held(file, LIVES)
}

fn call(
    file: BorrowedFd<'_>,
    command: libc::c_int,
    kind: libc::c_int,
    bytes: Bytes,
) -> Result<libc::flock, Errno> {
    let offset = |value: u64| libc::off_t::try_from(value).expect("an offset within a file");
    let mut range = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: offset(bytes.first),
        l_len: offset(bytes.count),
        // Has to be 0 for locks of a description.
        l_pid: 0,
    };
    // SAFETY: the descriptor is open while it is borrowed, and the three commands used here read and write one
    // `flock`, which outlives the call.
    let result = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, &raw mut range) };
    if result == 0 { Ok(range) } else { Err(last_error()) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).expect("a failed fcntl leaves an error number")
}
