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
pub const GUARD_TIMEOUT: Duration = Duration::from_secs(1);
/// Between two tries for it; doubled up to the longest.
const MIN_BACKOFF: Duration = Duration::from_micros(20);
const MAX_BACKOFF: Duration = Duration::from_millis(1);

/// A range of bytes of the lock file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ByteRange {
    first: u64,
    count: u64,
}

/// The byte that is held while the ledger is checked and changed.
pub(super) const GUARD: ByteRange = ByteRange { first: 0, count: 1 };
/// The bytes that say who lives, one for each record. Byte 1 was the turn in version 1 of the layout.
const LIVENESS: ByteRange = ByteRange { first: 2, count: RECORDS as u64 };
/// The bytes of turns, one for each epoch, which no two turns share.
const SLICES: ByteRange = ByteRange { first: 1 << 10, count: 1 << 40 };
const _: () = assert!(LIVENESS.first + LIVENESS.count <= SLICES.first);

/// The byte of record `index`.
pub(super) fn liveness_byte(index: u32) -> ByteRange {
    assert!(index < RECORDS, "record {index} is one of {RECORDS}");
    ByteRange { first: LIVENESS.first + u64::from(index), count: 1 }
}

/// The byte of the turn `epoch`; those of all turns where the epoch in force is not known.
pub(super) fn slice_byte(epoch: Option<u64>) -> ByteRange {
    epoch.map_or(SLICES, |epoch| ByteRange { first: SLICES.first + epoch % SLICES.count, count: 1 })
}

/// A new description of the lock file, which is created when it is missing and never replaced.
pub(super) fn open_lock_file(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP)
}

/// Tries until it succeeds or `patience` is over: false then.
pub(super) fn retry_within(
    patience: Duration,
    mut attempt: impl FnMut() -> Result<bool, Errno>,
) -> Result<bool, Errno> {
    let (mut nap, mut left) = (MIN_BACKOFF, patience);
    while !attempt()? {
        if left.is_zero() {
            return Ok(false);
        }
        // What counts is what was slept for: a process that was itself stopped has not waited meanwhile.
        let slept = nap.min(left);
        std::thread::sleep(slept);
        left -= slept;
        nap = (nap * 2).min(MAX_BACKOFF);
    }
    Ok(true)
}

/// Takes the bytes, all or none; false when another description has one. Never waits: its holder may be frozen.
pub(super) fn try_lock(file: BorrowedFd<'_>, bytes: ByteRange) -> Result<bool, Errno> {
    match fcntl_lock(file, libc::F_OFD_SETLK, libc::F_WRLCK, bytes) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Gives those of the bytes back that this description has.
pub(super) fn unlock(file: BorrowedFd<'_>, bytes: ByteRange) -> Result<(), Errno> {
    fcntl_lock(file, libc::F_OFD_SETLK, libc::F_UNLCK, bytes).map(drop)
}

/// Whether another description than `file` has one of the bytes.
pub(super) fn is_held(file: BorrowedFd<'_>, bytes: ByteRange) -> Result<bool, Errno> {
    let found = fcntl_lock(file, libc::F_OFD_GETLK, libc::F_WRLCK, bytes)?;
    Ok(i32::from(found.l_type) != libc::F_UNLCK)
}

/// Whether any record's byte is held by another description than `file`.
pub(super) fn is_any_live(file: BorrowedFd<'_>) -> Result<bool, Errno> {
    is_held(file, LIVENESS)
}

fn fcntl_lock(
    file: BorrowedFd<'_>,
    command: libc::c_int,
    kind: libc::c_int,
    bytes: ByteRange,
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
