//! A faulty participant may write anything to the file, and truncate it; the others continue without the
//! ledger.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use sluice_memory::gpu_ledger::{Epoch, LedgerError, LedgerFaults, OpenError, ParticipantHandle, SliceOrder};

use super::env::LedgerEnv;

/// Longer than any wait here.
const LONG: Duration = Duration::from_secs(60);
const PAGE: u64 = 4096;
const HEADER: u64 = 0;
/// Offset of the current epoch in the lock file.
const EPOCH_AT: u64 = 0;

fn file(env: &LedgerEnv) -> File {
    OpenOptions::new().read(true).write(true).open(env.folder().join("ledger")).unwrap()
}

fn locks(env: &LedgerEnv) -> File {
    OpenOptions::new().read(true).write(true).open(env.folder().join("locks")).unwrap()
}

fn write(env: &LedgerEnv, page: u64, word: u64, value: u64) {
    file(env).write_all_at(&value.to_ne_bytes(), page * PAGE + word * 8).unwrap();
}

/// Checks that every operation fails with this error and none ends the process.
fn assert_refuses(participant: &ParticipantHandle, what: &'static str) {
    let damaged = || LedgerError::Damaged { what };
    assert_eq!(participant.survey().unwrap_err(), damaged());
    assert_eq!(participant.reserve(10), Err(damaged()));
    assert_eq!(participant.earmark(&participant.peer(), 10, 0, 7), Err(damaged()));
    assert_eq!(participant.accept(&participant.peer(), 7, 10), Err(damaged()));
    assert_eq!(participant.clear_settled().unwrap_err(), damaged());
    assert_eq!(participant.cancel_earmark(7).unwrap_err(), damaged());
    assert_eq!(participant.damage(), Some(damaged()));
    participant.release(10);
    assert_eq!(participant.held_bytes(), 90, "what it holds it knows by itself");
}

#[test]
fn truncated_file_ends_no_process() {
    for bytes in [0, 1, PAGE, 2 * PAGE, 64 * PAGE] {
        let env = LedgerEnv::new();
        let participants = ["a", "b"].map(|name| env.open().join(name, 0, 100).unwrap());
        participants.iter().for_each(|participant| participant.reserve(100).unwrap());
        assert_eq!(participants[0].damage(), None);
        file(&env).set_len(bytes).unwrap();
        participants.iter().for_each(|participant| assert_refuses(participant, "the file was truncated"));
        let refused = sluice_memory::gpu_ledger::GpuLedger::open(env.folder(), &env.identity());
        assert!(matches!(refused, Err(OpenError::Damaged { .. })), "others still use it");
    }
}

#[test]
fn truncated_and_regrown_file_is_damaged() {
    let env = LedgerEnv::new();
    let participant = env.open().join("a", 0, 100).unwrap();
    participant.reserve(100).unwrap();
    let bytes = file(&env).metadata().unwrap().len();
    file(&env).set_len(0).unwrap();
    file(&env).set_len(bytes).unwrap();
    assert_refuses(&participant, "the file was truncated to zero");
}

#[test]
fn truncation_between_check_and_write_ends_no_process() {
    for bytes in [0, PAGE] {
        let env = LedgerEnv::new();
        let path = env.folder().join("ledger");
        let armed = Arc::new(AtomicBool::new(false));
        let cuts = armed.clone();
        let tap = move || {
            if cuts.swap(false, Ordering::SeqCst) {
                OpenOptions::new().write(true).open(&path).unwrap().set_len(bytes).unwrap();
            }
        };
        let faults = LedgerFaults { before_write: Some(Arc::new(tap)), ..LedgerFaults::default() };
        let participant = env.open_with(faults).join("a", 0, 100).unwrap();
        participant.reserve(90).unwrap();
        armed.store(true, Ordering::SeqCst);
        let _ = participant.reserve(10);
        assert_refuses(&participant, "the file was truncated");
    }
}

#[test]
fn record_with_too_few_held_bytes_is_an_error() {
    let env = LedgerEnv::new();
    let participant = env.open().join("a", 0, 100).unwrap();
    participant.reserve(110).unwrap();
    write(&env, 1, 3, 5);
    assert_eq!(participant.damage(), None, "not known yet");
    participant.release(10);
    assert_refuses(&participant, "a record says that less is held than its owner holds");
}

#[test]
fn record_with_other_instance_is_an_error() {
    let env = LedgerEnv::new();
    let participant = env.open().join("a", 0, 100).unwrap();
    participant.reserve(100).unwrap();
    write(&env, 1, 0, 77);
    assert!(matches!(participant.reserve(1), Err(LedgerError::Damaged { .. })));
    assert_refuses(&participant, "the record of this tenant names another life");
}

#[test]
fn extreme_counters_and_priorities_are_valid() {
    let env = LedgerEnv::new();
    let participant = env.open().join("a", 0, 100).unwrap();
    for word in [6, 7] {
        write(&env, HEADER, word, u64::MAX);
    }
    locks(&env).write_all_at(&u64::MAX.to_ne_bytes(), EPOCH_AT).unwrap();
    let other = env.open().join("b", 0, 100).unwrap();
    other.slice_queue().request(0).unwrap();
    write(&env, 2, 6, i64::MIN as u64);
    participant.slice_queue().request(0).unwrap();
    let order = SliceOrder::Priority { aging_slices: 64 };
    let taken = [&participant, &other]
        .map(|participant| participant.slice_queue().try_acquire(order).unwrap().is_some());
    assert_eq!(taken.iter().filter(|taken| **taken).count(), 1, "{taken:?}");
    let held = [&participant, &other].map(|participant| participant.slice_queue().held());
    assert!(held.contains(&Some(Epoch(1))), "0 belongs to no slice: {held:?}");
    let joined = env.open().join("c", 0, 100).unwrap();
    assert!(joined.instance() > 0);
}

/// The tickets are lost; the lock of the time slice is in the other file.
#[test]
fn slices_continue_by_lock_when_file_is_truncated() {
    let env = LedgerEnv::new();
    let participants = ["a", "b"].map(|name| env.open().join(name, 0, 100).unwrap());
    participants[0].slice_queue().request(0).unwrap();
    let first =
        participants[0].slice_queue().try_acquire(SliceOrder::RoundRobin).unwrap().expect("it is free");
    file(&env).set_len(0).unwrap();
    participants.iter().for_each(|participant| participant.slice_queue().request(0).unwrap());
    let take = |participant: &ParticipantHandle, limit| {
        participant.slice_queue().acquire_within(SliceOrder::RoundRobin, limit).unwrap()
    };
    assert_eq!(take(&participants[1], Duration::from_millis(20)), None, "one has it");
    assert_eq!(participants[0].slice_queue().waiters(), Ok(1), "so that it is given up in time");
    participants[0].slice_queue().release().unwrap();
    assert_eq!(
        participants[0].slice_queue().try_acquire(SliceOrder::RoundRobin),
        Ok(None),
        "the others first"
    );
    assert!(take(&participants[1], LONG).is_some());
    assert_eq!(take(&participants[0], Duration::from_millis(20)), None, "one has it");
    participants[1].slice_queue().release().unwrap();
    assert!(take(&participants[0], LONG) > Some(first), "its epochs go on");
}

#[test]
fn a_bus_error_outside_of_ledgers_still_ends_the_process() {
    let env = LedgerEnv::new();
    let mut actor = env.spawn_joined("a", 100);
    assert_eq!(actor.request("bus"), None);
    assert_eq!(actor.end(), Some(Signal::BUS.as_raw()));
}
