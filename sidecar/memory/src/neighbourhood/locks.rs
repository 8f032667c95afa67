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

/// Byte of the lock file that whoever checks and changes holds.
pub(super) const GUARD: u32 = 0;
/// Byte that the holder of the turn holds.
pub(super) const TURN: u32 = 1;
/// First of the bytes that say who lives, one for each record.
const FIRST_LIFE: u32 = 2;

/// The byte of record `index`.
pub(super) fn life(index: u32) -> u32 {
    assert!(index < RECORDS, "record {index} is one of {RECORDS}");
    FIRST_LIFE + index
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

/// Takes the byte; false when another description has it. Never waits: its holder may be frozen.
pub(super) fn try_lock(file: BorrowedFd<'_>, byte: u32) -> Result<bool, Errno> {
    match call(file, libc::F_OFD_SETLK, libc::F_WRLCK, byte, 1) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Gives the byte back.
pub(super) fn unlock(file: BorrowedFd<'_>, byte: u32) -> Result<(), Errno> {
    call(file, libc::F_OFD_SETLK, libc::F_UNLCK, byte, 1).map(drop)
}

/// Whether another description than `file` has the byte.
pub(super) fn is_held(file: BorrowedFd<'_>, byte: u32) -> Result<bool, Errno> {
    call(file, libc::F_OFD_GETLK, libc::F_WRLCK, byte, 1).map(conflicts)
}

/// Whether any record's byte is held by another description than `file`.
pub(super) fn anybody_lives(file: BorrowedFd<'_>) -> Result<bool, Errno> {
    call(file, libc::F_OFD_GETLK, libc::F_WRLCK, FIRST_LIFE, RECORDS).map(conflicts)
}

fn conflicts(found: libc::flock) -> bool {
    i32::from(found.l_type) != libc::F_UNLCK
}

fn call(
    file: BorrowedFd<'_>,
    command: libc::c_int,
    kind: libc::c_int,
    first: u32,
    bytes: u32,
) -> Result<libc::flock, Errno> {
    let mut range = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: first.into(),
        l_len: bytes.into(),
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
