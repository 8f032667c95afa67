//! A faulty participant may write to the file what it likes, and cut it: others go on without the ledger.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use sluice_memory::neighbourhood::{Epoch, LedgerError, LedgerFaults, OpenError, Seat, TurnOrder};

use super::stage::Stage;

/// Longer than any wait here.
const LONG: Duration = Duration::from_secs(60);
const PAGE: u64 = 4096;
const HEADER: u64 = 0;
/// Of the epoch in force, in the file of locks.
const EPOCH_AT: u64 = 0;

fn file(stage: &Stage) -> File {
    OpenOptions::new().read(true).write(true).open(stage.folder().join("ledger")).unwrap()
}

fn locks(stage: &Stage) -> File {
    OpenOptions::new().read(true).write(true).open(stage.folder().join("locks")).unwrap()
}

fn write(stage: &Stage, page: u64, word: u64, value: u64) {
    file(stage).write_all_at(&value.to_ne_bytes(), page * PAGE + word * 8).unwrap();
}

/// Everything is refused with this word, and nothing ends the process.
fn refuses(seat: &Seat, what: &'static str) {
    let damaged = || LedgerError::Damaged { what };
    assert_eq!(seat.survey().unwrap_err(), damaged());
    assert_eq!(seat.reserve(10), Err(damaged()));
    assert_eq!(seat.earmark(&seat.peer(), 10, 0, 7), Err(damaged()));
    assert_eq!(seat.accept(&seat.peer(), 7, 10), Err(damaged()));
    assert_eq!(seat.clear().unwrap_err(), damaged());
    assert_eq!(seat.void(7).unwrap_err(), damaged());
    assert_eq!(seat.trouble(), Some(damaged()));
    seat.release(10);
    assert_eq!(seat.held_bytes(), 90, "what it holds it knows by itself");
}

#[test]
fn a_file_that_is_cut_short_ends_nobody() {
    for bytes in [0, 1, PAGE, 2 * PAGE, 64 * PAGE] {
        let stage = Stage::new();
        let seats = ["a", "b"].map(|name| stage.open().join(name, 0, 100).unwrap());
        seats.iter().for_each(|seat| seat.reserve(100).unwrap());
        assert_eq!(seats[0].trouble(), None);
        file(&stage).set_len(bytes).unwrap();
        seats.iter().for_each(|seat| refuses(seat, "the file was cut short"));
        let refused = sluice_memory::neighbourhood::Neighbourhood::open(stage.folder(), &stage.identity());
        assert!(matches!(refused, Err(OpenError::Damaged { .. })), "others still use it");
    }
}

#[test]
fn a_file_that_is_cut_and_grows_again_is_no_ledger_without_participants() {
    let stage = Stage::new();
    let seat = stage.open().join("a", 0, 100).unwrap();
    seat.reserve(100).unwrap();
    let bytes = file(&stage).metadata().unwrap().len();
    file(&stage).set_len(0).unwrap();
    file(&stage).set_len(bytes).unwrap();
    refuses(&seat, "the file was emptied");
}

#[test]
fn a_file_that_is_cut_between_the_check_and_the_write_ends_nobody() {
    for bytes in [0, PAGE] {
        let stage = Stage::new();
        let path = stage.folder().join("ledger");
        let armed = Arc::new(AtomicBool::new(false));
        let cuts = armed.clone();
        let tap = move || {
            if cuts.swap(false, Ordering::SeqCst) {
                OpenOptions::new().write(true).open(&path).unwrap().set_len(bytes).unwrap();
            }
        };
        let faults = LedgerFaults { before_write: Some(Arc::new(tap)), ..LedgerFaults::default() };
        let seat = stage.open_with(faults).join("a", 0, 100).unwrap();
        seat.reserve(90).unwrap();
        armed.store(true, Ordering::SeqCst);
        let _ = seat.reserve(10);
        refuses(&seat, "the file was cut short");
    }
}

#[test]
fn a_record_that_says_less_than_its_owner_holds_is_an_error_and_no_panic() {
    let stage = Stage::new();
    let seat = stage.open().join("a", 0, 100).unwrap();
    seat.reserve(110).unwrap();
    write(&stage, 1, 3, 5);
    assert_eq!(seat.trouble(), None, "not known yet");
    seat.release(10);
    refuses(&seat, "a record says that less is held than its owner holds");
}

#[test]
fn a_record_that_names_another_life_is_an_error() {
    let stage = Stage::new();
    let seat = stage.open().join("a", 0, 100).unwrap();
    seat.reserve(100).unwrap();
    write(&stage, 1, 0, 77);
    assert!(matches!(seat.reserve(1), Err(LedgerError::Damaged { .. })));
    refuses(&seat, "the record of this tenant names another life");
}

#[test]
fn counters_and_priorities_at_their_ends_are_numbers_as_others() {
    let stage = Stage::new();
    let seat = stage.open().join("a", 0, 100).unwrap();
    for word in [6, 7] {
        write(&stage, HEADER, word, u64::MAX);
    }
    locks(&stage).write_all_at(&u64::MAX.to_ne_bytes(), EPOCH_AT).unwrap();
    let other = stage.open().join("b", 0, 100).unwrap();
    other.turn().request(0).unwrap();
    write(&stage, 2, 6, i64::MIN as u64);
    seat.turn().request(0).unwrap();
    let order = TurnOrder::Priority { aging_turns: 64 };
    let taken = [&seat, &other].map(|seat| seat.turn().try_take(order).unwrap().is_some());
    assert_eq!(taken.iter().filter(|taken| **taken).count(), 1, "{taken:?}");
    let held = [&seat, &other].map(|seat| seat.turn().held());
    assert!(held.contains(&Some(Epoch(1))), "0 belongs to no turn: {held:?}");
    let joined = stage.open().join("c", 0, 100).unwrap();
    assert!(joined.instance() > 0);
}

/// The tickets are gone; the lock of the turn is in the other file.
#[test]
fn turns_go_on_by_the_lock_alone_when_the_file_is_cut() {
    let stage = Stage::new();
    let seats = ["a", "b"].map(|name| stage.open().join(name, 0, 100).unwrap());
    seats[0].turn().request(0).unwrap();
    let first = seats[0].turn().try_take(TurnOrder::RoundRobin).unwrap().expect("nobody has it");
    file(&stage).set_len(0).unwrap();
    seats.iter().for_each(|seat| seat.turn().request(0).unwrap());
    let take = |seat: &Seat, limit| seat.turn().take_within(TurnOrder::RoundRobin, limit).unwrap();
    assert_eq!(take(&seats[1], Duration::from_millis(20)), None, "one has it");
    assert_eq!(seats[0].turn().waiters(), Ok(1), "so that it is given up in time");
    seats[0].turn().release().unwrap();
    assert_eq!(seats[0].turn().try_take(TurnOrder::RoundRobin), Ok(None), "the others first");
    assert!(take(&seats[1], LONG).is_some());
    assert_eq!(take(&seats[0], Duration::from_millis(20)), None, "one has it");
    seats[1].turn().release().unwrap();
    assert!(take(&seats[0], LONG) > Some(first), "its epochs go on");
}

#[test]
fn a_bus_error_outside_of_ledgers_still_ends_the_process() {
    let stage = Stage::new();
    let mut actor = stage.joined("a", 100);
    assert_eq!(actor.ask("bus"), None);
    assert_eq!(actor.end(), Some(Signal::BUS.as_raw()));
}
