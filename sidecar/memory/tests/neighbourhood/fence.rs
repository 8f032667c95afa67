//! The engine's view of the epoch in force.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::time::Duration;

use sluice_memory::TurnFence;
use sluice_memory::neighbourhood::{
    Epoch, LedgerError, Neighbourhood, OVERDUE_GRACE, OpenError, Seat, TurnOrder,
};

use super::stage::Stage;

const ORDER: TurnOrder = TurnOrder::RoundRobin;
const LONG: Duration = Duration::from_secs(60);

fn open(seat: &Seat) -> TurnFence {
    TurnFence::open(seat.liveness()).unwrap().expect("it has neighbours")
}

fn take(seat: &Seat) -> Epoch {
    seat.turn().request(0).unwrap();
    seat.turn().take_within(ORDER, LONG).unwrap().expect("the turn comes")
}

fn cut(stage: &Stage, file: &str, bytes: u64) -> File {
    let file = OpenOptions::new().write(true).open(stage.folder().join(file)).unwrap();
    file.set_len(bytes).unwrap();
    file
}

#[test]
fn an_epoch_passes_when_the_next_turn_is_taken_and_not_before() {
    let stage = Stage::new();
    let seats = ["a", "b"].map(|name| stage.open().join(name, 0, 0).unwrap());
    let fences = seats.each_ref().map(open);
    let passed = |epoch| fences.each_ref().map(|fence| fence.passed(epoch));
    assert_eq!((take(&seats[0]), passed(1), passed(0)), (Epoch(1), [false; 2], [false; 2]));
    seats[0].turn().release().unwrap();
    assert_eq!(passed(1), [false; 2], "no other turn is in force");
    assert_eq!(
        (take(&seats[1]), passed(1), passed(2), passed(0)),
        (Epoch(2), [true; 2], [false; 2], [false; 2])
    );
    assert_eq!(passed(3), [true; 2], "an epoch that nobody has taken is not in force");
}

#[test]
fn what_is_no_file_of_locks_has_no_epoch() {
    let null = File::open("/dev/null").unwrap();
    assert!(TurnFence::open(null.as_fd()).unwrap().is_none());
    let pool = rustix::fs::memfd_create("pool", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    for bytes in [0, 4096, 1 << 20] {
        rustix::fs::ftruncate(&pool, bytes).unwrap();
        assert!(TurnFence::open(pool.as_fd()).unwrap().is_none(), "{bytes} bytes");
    }
}

#[test]
fn an_engine_can_read_the_epoch_and_not_write_it() {
    let stage = Stage::new();
    let seat = stage.open().join("a", 0, 0).unwrap();
    let mappings = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let locks = stage.folder().join("locks").display().to_string();
        let ours = maps.lines().filter(|line| line.ends_with(&locks));
        let mut access: Vec<_> = ours.map(|line| line.split(' ').nth(1).unwrap().to_owned()).collect();
        access.sort_unstable();
        access
    };
    assert_eq!(mappings(), ["rw-s"], "the sidecar's");
    let fence = open(&seat);
    assert_eq!(mappings(), ["r--s", "rw-s"]);
    drop(fence);
    assert_eq!(mappings(), ["rw-s"]);
}

/// More often than a process can have mappings of such files at once.
#[test]
fn a_view_that_ends_leaves_its_place_to_the_next() {
    let stage = Stage::new();
    let seat = stage.open().join("a", 0, 0).unwrap();
    for _ in 0..2000 {
        assert!(!open(&seat).passed(0));
    }
}

#[test]
fn epochs_go_on_without_the_ledger() {
    let stage = Stage::new();
    let [a, b] = ["a", "b"].map(|name| stage.open().join(name, 0, 0).unwrap());
    let fence = open(&a);
    take(&a);
    cut(&stage, "ledger", 0);
    assert_eq!(a.turn().held(), Some(Epoch(1)));
    a.turn().release().unwrap();
    assert_eq!(take(&b), Epoch(2));
    assert!(fence.passed(1) && !fence.passed(2));
    assert_eq!(a.turn().held(), None);
}

/// By the locks alone then: exclusive as ever, and taken over by nobody.
#[test]
fn a_file_of_locks_that_is_cut_ends_nobody_and_passes_no_epoch() {
    for (bytes, grown) in [(0, false), (1, false), (100, false), (4095, false), (0, true), (8, true)] {
        let stage = Stage::new();
        let [a, b] = ["a", "b"].map(|name| stage.open().join(name, 0, 0).unwrap());
        let fence = open(&a);
        let first = take(&a);
        let file = cut(&stage, "locks", bytes);
        if grown {
            file.set_len(4096).unwrap();
        }
        assert!(!fence.passed(first.0) && !fence.passed(7), "{bytes} bytes");
        assert!(TurnFence::open(a.liveness()).unwrap().is_none());
        assert_eq!(a.turn().held(), Some(first), "{bytes} bytes");
        a.turn().promise(1).unwrap();
        b.turn().request(0).unwrap();
        let vain = |seat: &Seat, limit| seat.turn().take_within(ORDER, limit).unwrap().is_none();
        assert!(vain(&b, 2 * OVERDUE_GRACE), "{bytes} bytes: the other has it");
        a.turn().release().unwrap();
        let second = take(&b);
        assert_eq!(b.turn().held(), Some(second));
        assert!(vain(&a, Duration::from_millis(50)), "{bytes} bytes: the other has it");
        b.turn().release().unwrap();
        assert!(take(&a) > first, "{bytes} bytes: epochs of a tenant rise");
        assert_eq!(a.turn().release(), Ok(()));
        assert_eq!(a.turn().release(), Err(LedgerError::NoTurn));
        a.reserve(10).unwrap();
        let refused = Neighbourhood::open(stage.folder(), &stage.identity());
        assert!(matches!(refused, Err(OpenError::Damaged { .. })), "others still use it");
    }
}

#[test]
fn an_overtaken_holder_that_notices_keeps_no_lock_of_the_turn() {
    let stage = Stage::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| stage.open().join(name, 0, 0).unwrap());
    take(&a);
    a.turn().promise(1).unwrap();
    take(&b);
    assert_eq!(a.turn().held(), None);
    b.turn().release().unwrap();
    // Without epochs the turn is had only where no description has any of its bytes.
    cut(&stage, "locks", 0);
    take(&c);
}
