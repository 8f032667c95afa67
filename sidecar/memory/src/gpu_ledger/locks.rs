//! Locks that belong to an open file description. The kernel drops such a lock when the last process with the
//! description exits, in any PID namespace. Locks of one description never conflict with each other.

use std::path::Path;
use std::time::Duration;

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use sluice_common::back_off::BackOff;

use super::layout::RECORDS;

/// Longest wait for the guard. Its holder only reads and writes some words, so a holder that keeps it longer
/// is frozen for an unknown time.
pub const GUARD_TIMEOUT: Duration = Duration::from_secs(1);
/// First and longest pause between two attempts; doubled after each attempt.
const MIN_BACKOFF: Duration = Duration::from_micros(20);
const MAX_BACKOFF: Duration = Duration::from_millis(1);

/// A range of bytes of the lock file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ByteRange {
    first: u64,
    count: u64,
}

/// Byte that is locked while a process checks and changes the ledger.
pub(super) const GUARD: ByteRange = ByteRange { first: 0, count: 1 };
/// Bytes that mark live participants, one per record. Byte 1 was the time slice in version 1 of the layout.
const LIVENESS: ByteRange = ByteRange { first: 2, count: RECORDS as u64 };
/// Bytes of the time slices, one per epoch.
const SLICES: ByteRange = ByteRange { first: 1 << 10, count: 1 << 40 };
const _: () = assert!(LIVENESS.first + LIVENESS.count <= SLICES.first);

/// Returns the byte of record `index`.
pub(super) fn liveness_byte(index: u32) -> ByteRange {
    assert!(index < RECORDS, "record {index} is one of {RECORDS}");
    ByteRange { first: LIVENESS.first + u64::from(index), count: 1 }
}

/// Returns the byte of the time slice `epoch`, or the bytes of all time slices if the current epoch is
/// unknown.
pub(super) fn slice_byte(epoch: Option<u64>) -> ByteRange {
    epoch.map_or(SLICES, |epoch| ByteRange { first: SLICES.first + epoch % SLICES.count, count: 1 })
}

/// Opens a new description of the lock file. Creates the file if it is missing; the file is never replaced.
pub(super) fn open_lock_file(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP)
}

/// Retries until `attempt` succeeds. Returns false once `patience` has passed.
pub(super) fn retry_within(
    patience: Duration,
    mut attempt: impl FnMut() -> Result<bool, Errno>,
) -> Result<bool, Errno> {
    let (mut back_off, mut left) = (BackOff::new(MIN_BACKOFF, MAX_BACKOFF), patience);
    while !attempt()? {
        if left.is_zero() {
            return Ok(false);
        }
        // Only time slept counts, so that a process that was itself stopped does not use up its wait.
        let slept = back_off.next_delay().min(left);
        std::thread::sleep(slept);
        left -= slept;
    }
    Ok(true)
}

/// Locks all of the bytes or none. Returns false if another description holds one. Never waits, because the
/// holder may be frozen.
pub(super) fn try_lock(file: BorrowedFd<'_>, bytes: ByteRange) -> Result<bool, Errno> {
    match fcntl_lock(file, libc::F_OFD_SETLK, libc::F_WRLCK, bytes) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Unlocks the bytes that this description holds.
pub(super) fn unlock(file: BorrowedFd<'_>, bytes: ByteRange) -> Result<(), Errno> {
    fcntl_lock(file, libc::F_OFD_SETLK, libc::F_UNLCK, bytes).map(drop)
}

/// Whether a description other than `file` holds one of the bytes.
pub(super) fn is_held(file: BorrowedFd<'_>, bytes: ByteRange) -> Result<bool, Errno> {
    let found = fcntl_lock(file, libc::F_OFD_GETLK, libc::F_WRLCK, bytes)?;
    Ok(i32::from(found.l_type) != libc::F_UNLCK)
}

/// Whether a description other than `file` holds any record's byte.
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
        // The kernel requires 0 for locks of an open file description.
        l_pid: 0,
    };
    // SAFETY: the descriptor is open while it is borrowed, and the three commands used here read and write
    // one `flock`, which outlives the call.
    let result = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, &raw mut range) };
    if result == 0 { Ok(range) } else { Err(last_error()) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).expect("a failed fcntl leaves an error number")
}
