//! A holder that exceeds its deadline loses the turn to the next in line, and sees that before it does anything more.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sluice_memory::neighbourhood::{
    Epoch, FIRST_DEADLINE, LedgerError, LedgerFaults, OVERDUE_GRACE, PASSED_OVER, Seat, TakenOver, TurnOrder,
};
use sluice_memory::{TurnFence, since_boot};

use super::stage::{Actor, Stage};
use super::turns::bell;

const ORDER: TurnOrder = TurnOrder::RoundRobin;
const LONG: Duration = Duration::from_secs(60);
/// How late a busy machine may make a takeover.
const SLACK: Duration = Duration::from_secs(5);

/// Seats of this process, by faults.
fn seats_with<const N: usize>(faults: LedgerFaults) -> (Stage, [Seat; N]) {
    let stage = Stage::new();
    let seats =
        std::array::from_fn(|at| stage.open_with(faults.clone()).join(&at.to_string(), 0, 0).unwrap());
    (stage, seats)
}

fn seats<const N: usize>() -> (Stage, [Seat; N]) {
    seats_with(LedgerFaults::default())
}

fn ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// `seat` takes the free turn, and its deadline is over at once.
fn take_overdue(seat: &Seat) -> Epoch {
    seat.turn().request(0).unwrap();
    let epoch = seat.turn().try_take(ORDER).unwrap().expect("the turn is free");
    seat.turn().promise(1).unwrap();
    epoch
}

fn take(seat: &Seat, limit: Duration) -> Option<Epoch> {
    seat.turn().take_within(ORDER, limit).unwrap()
}

/// A sidecar that has the turn, and its engine.
fn pair(stage: &Stage) -> (Actor, Actor) {
    let mut sidecar = stage.joined("team/hung", 100);
    let engine = stage.engine_of(&mut sidecar);
    (sidecar, engine)
}

#[test]
fn the_turn_of_a_stopped_pair_passes_after_its_deadline_and_the_resumed_pair_changes_nothing() {
    let stage = Stage::new();
    let next = stage.open().join("team/next", 0, 0).unwrap();
    let (mut sidecar, engine) = pair(&stage);
    let fence = TurnFence::open(sidecar.lend_liveness(&stage).as_fd()).unwrap().expect("it has neighbours");
    sidecar.ok("request");
    let begun = Instant::now();
    assert_eq!(sidecar.ok("take_turn"), "Some(Epoch(1))");
    assert!(!fence.passed(1));
    [&sidecar, &engine].into_iter().for_each(Actor::stop);
    next.turn().request(0).unwrap();
    assert_eq!(take(&next, LONG), Some(Epoch(2)));
    let took = begun.elapsed();
    let least = FIRST_DEADLINE + OVERDUE_GRACE;
    assert!(least <= took && took < least + SLACK, "{took:?}");
    let TakenOver { from, overdue } = next.turn().taken_over().unwrap();
    assert!(from == "team/hung" && OVERDUE_GRACE <= overdue && overdue < took, "{from} {overdue:?}");
    assert_eq!(next.turn().handover(), None, "it was not handed over");
    assert_eq!((fence.passed(1), fence.passed(2), fence.passed(0)), (true, false, false));
    [&sidecar, &engine].into_iter().for_each(Actor::go_on);
    let before = (std::fs::read(stage.folder().join("locks")).unwrap(), next.survey().unwrap());
    assert_eq!(sidecar.ok("held"), "None");
    assert_eq!(sidecar.ask("promise 0").unwrap().unwrap_err(), "Overtaken");
    assert_eq!(sidecar.ask("give_turn").unwrap().unwrap_err(), "Overtaken");
    assert_eq!(sidecar.ask("give_turn").unwrap().unwrap_err(), "NoTurn");
    assert_eq!(sidecar.ok("overtaken"), "1");
    let after = (std::fs::read(stage.folder().join("locks")).unwrap(), next.survey().unwrap());
    assert_eq!(before, after);
    assert_eq!(next.turn().held(), Some(Epoch(2)));
    sidecar.ok("request");
    next.turn().release().unwrap();
    assert_eq!(sidecar.ok("take_turn"), "Some(Epoch(3))");
    assert_eq!(sidecar.ok("held"), "Some(Epoch(3))");
    assert_eq!(next.turn().overtaken_total(), 0);
}

#[test]
fn memory_of_a_stopped_holder_counts_as_before_when_its_turn_has_passed() {
    let stage = Stage::new();
    let next = stage.open().join("next", 0, 0).unwrap();
    let mut hung = stage.joined("hung", 100);
    for command in ["reserve 900", "request", "take_turn", "promise 1"] {
        hung.ok(command);
    }
    hung.stop();
    next.turn().request(0).unwrap();
    assert!(take(&next, LONG).is_some());
    assert_eq!(next.audit().unwrap().counted_bytes, 900);
    assert!(matches!(next.reserve(101), Err(LedgerError::OutOfMemory { .. })));
}

/// Whether a holder keeps the turn that has `left` until its deadline, or says none.
fn keeps(left: Option<Duration>, faults: LedgerFaults) -> bool {
    let (_stage, [a, b]) = seats_with(faults);
    a.turn().request(0).unwrap();
    assert!(take(&a, LONG).is_some());
    a.turn().promise(left.map_or(0, |left| ns(since_boot() + left))).unwrap();
    b.turn().request(0).unwrap();
    let taken = take(&b, FIRST_DEADLINE + 3 * OVERDUE_GRACE);
    assert_eq!(a.turn().held().is_some(), taken.is_none());
    taken.is_none()
}

#[test]
fn a_holder_that_extends_its_deadline_or_says_none_keeps_the_turn() {
    assert!(keeps(Some(LONG), LedgerFaults::default()));
    assert!(keeps(None, LedgerFaults::default()));
    assert!(!keeps(Some(Duration::ZERO), LedgerFaults::default()));
    // The control: a waiter that ignores deadlines takes over from a holder that extends.
    assert!(!keeps(Some(LONG), LedgerFaults { ignore_deadline: true, ..LedgerFaults::default() }));
}

#[test]
fn a_deadline_that_is_extended_after_it_was_over_gives_the_holder_the_whole_grace_again() {
    let (_stage, [a, b]) = seats();
    take_overdue(&a);
    b.turn().request(0).unwrap();
    for until in 2..6 {
        assert_eq!(take(&b, OVERDUE_GRACE * 3 / 5), None, "until {until}");
        a.turn().promise(until).unwrap();
    }
    assert!(take(&b, LONG).is_some());
}

/// Whether a waiter takes over that looked, was stopped for longer than the grace, and looks again.
fn jumps(faults: LedgerFaults) -> bool {
    let (_stage, [a, b]) = seats_with(faults);
    take_overdue(&a);
    b.turn().request(0).unwrap();
    assert_eq!(b.turn().try_take(ORDER), Ok(None), "the first look");
    std::thread::sleep(2 * OVERDUE_GRACE);
    let taken = b.turn().try_take(ORDER).unwrap().is_some();
    assert!(taken || take(&b, LONG).is_some(), "it goes on looking and takes over then");
    taken
}

#[test]
fn the_time_in_which_a_waiter_was_itself_stopped_does_not_count() {
    assert!(!jumps(LedgerFaults::default()));
    assert!(jumps(LedgerFaults { count_own_stops: true, ..LedgerFaults::default() }));
}

#[test]
fn the_first_in_line_takes_over_and_the_next_only_when_the_first_does_not() {
    let (_stage, [a, b, c]) = seats();
    take_overdue(&a);
    [&b, &c].into_iter().for_each(|seat| seat.turn().request(0).unwrap());
    std::thread::scope(|scope| {
        let second = scope.spawn(|| take(&c, OVERDUE_GRACE + PASSED_OVER / 2));
        assert_eq!(take(&b, LONG), Some(Epoch(2)));
        assert_eq!(second.join().unwrap(), None, "the first has it, within its deadline");
    });
    assert!(c.turn().take_skipped().is_empty(), "the first took it");
    b.turn().promise(1).unwrap();
    // Now the first in line does not look.
    c.turn().cancel().unwrap();
    a.turn().request(0).unwrap();
    c.turn().request(0).unwrap();
    let begun = Instant::now();
    assert_eq!(take(&c, LONG), Some(Epoch(3)));
    assert!(begun.elapsed() >= OVERDUE_GRACE + PASSED_OVER, "{:?}", begun.elapsed());
    assert_eq!(c.turn().taken_over().unwrap().from, "1");
    assert_eq!(c.turn().take_skipped(), ["0"]);
    assert!(c.turn().take_skipped().is_empty(), "it is reported once");
    c.turn().release().unwrap();
    assert_eq!(take(&a, LONG), Some(Epoch(4)), "it has kept its place");
    assert_eq!(a.turn().taken_over(), None, "it was free");
}

#[test]
fn the_first_in_line_has_its_whole_time_again_when_the_deadline_was_extended() {
    let (_stage, [a, b, c]) = seats();
    take_overdue(&a);
    [&b, &c].into_iter().for_each(|seat| seat.turn().request(0).unwrap());
    assert_eq!(take(&c, OVERDUE_GRACE + PASSED_OVER * 3 / 4), None);
    a.turn().promise(2).unwrap();
    let begun = Instant::now();
    assert!(take(&c, LONG).is_some());
    assert!(begun.elapsed() >= OVERDUE_GRACE + PASSED_OVER, "{:?}", begun.elapsed());
}

#[test]
fn a_holder_that_waits_to_be_sought_hears_that_it_was_overtaken() {
    let (_stage, [a, b]) = seats();
    take_overdue(&a);
    b.turn().request(0).unwrap();
    assert_eq!(a.turn().sought_within(LONG), Ok(true));
    std::thread::scope(|scope| {
        let sought = scope.spawn(|| while a.turn().sought_within(LONG).unwrap() {});
        assert!(take(&b, LONG).is_some());
        let begun = Instant::now();
        sought.join().unwrap();
        assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
    });
    assert_eq!(a.turn().overtaken_total(), 1);
}

#[test]
fn a_takeover_rings_the_bell_on_which_others_sleep() {
    let (stage, [a, b]) = seats();
    take_overdue(&a);
    b.turn().request(0).unwrap();
    let bell = bell(&stage);
    let before = bell.load(Ordering::Acquire);
    assert!(take(&b, LONG).is_some());
    assert_ne!(bell.load(Ordering::Acquire), before);
}

#[test]
fn hand_overs_are_timed_right_after_a_takeover() {
    const PAUSE: Duration = Duration::from_millis(20);
    let (_stage, [a, b]) = seats();
    take_overdue(&a);
    b.turn().request(0).unwrap();
    assert!(take(&b, LONG).is_some());
    // A ticket first: then only the release of the turn in force begins the hand-over.
    a.turn().request(0).unwrap();
    assert_eq!(a.turn().release(), Err(LedgerError::Overtaken));
    std::thread::sleep(PAUSE);
    let begun = Instant::now();
    b.turn().release().unwrap();
    std::thread::sleep(PAUSE);
    assert!(a.turn().try_take(ORDER).unwrap().is_some());
    let took = a.turn().handover().expect("it came from another");
    assert!(PAUSE <= took && took <= begun.elapsed(), "{took:?}");
}

#[test]
fn people_see_who_has_the_turn_and_how_long_it_is_overdue() {
    let (_stage, [a, b]) = seats();
    assert_eq!(b.turn().holder(), Ok(None));
    a.turn().request(0).unwrap();
    a.turn().try_take(ORDER).unwrap().unwrap();
    let holder = b.turn().holder().unwrap().unwrap();
    assert_eq!((holder.peer, holder.name.as_str(), holder.overdue), (a.peer(), "0", Duration::ZERO));
    let over = Duration::from_secs(7);
    let before = since_boot();
    a.turn().promise(ns(before - over)).unwrap();
    let overdue = a.turn().holder().unwrap().unwrap().overdue;
    assert!(over <= overdue && overdue <= since_boot() - before + over, "{overdue:?}");
    a.turn().promise(0).unwrap();
    assert_eq!(b.turn().holder().unwrap().unwrap().overdue, Duration::ZERO);
    a.turn().release().unwrap();
    assert_eq!(b.turn().holder(), Ok(None));
    assert_eq!(a.turn().promise(1), Err(LedgerError::NoTurn));
}

#[test]
fn the_turn_of_a_dead_sidecar_passes_while_its_engine_lives() {
    let stage = Stage::new();
    let next = stage.open().join("next", 0, 0).unwrap();
    let mut sidecar = stage.joined("a", 0);
    sidecar.ok("request");
    sidecar.ok("take_turn");
    let engine = sidecar.lend_liveness(&stage);
    let fence = TurnFence::open(engine.as_fd()).unwrap().unwrap();
    sidecar.kill();
    next.turn().request(0).unwrap();
    assert_eq!(take(&next, LONG), Some(Epoch(2)));
    assert!(fence.passed(1));
    assert!(next.survey().unwrap().iter().any(|one| one.name == "a" && one.live && !one.has_turn));
}
