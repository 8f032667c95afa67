//! A holder that exceeds its deadline loses the time slice to the next waiter, and sees this before it does
//! anything else.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sluice_memory::gpu_ledger::{
    Epoch, FIRST_DEADLINE, LedgerError, LedgerFaults, OVERDUE_GRACE, ParticipantHandle, SKIP_AFTER,
    SliceOrder, SliceTakeover,
};
use sluice_memory::{SliceFence, since_boot};

use super::env::{LedgerEnv, LedgerProcess};
use super::time_slices::futex_word;

const ORDER: SliceOrder = SliceOrder::RoundRobin;
const LONG: Duration = Duration::from_secs(60);
/// Longest delay of a takeover on a busy machine.
const SLACK: Duration = Duration::from_secs(5);

/// Returns participants of this process with faults.
fn participants_with<const N: usize>(faults: LedgerFaults) -> (LedgerEnv, [ParticipantHandle; N]) {
    let env = LedgerEnv::new();
    let participants =
        std::array::from_fn(|at| env.open_with(faults.clone()).join(&at.to_string(), 0, 0).unwrap());
    (env, participants)
}

fn participants<const N: usize>() -> (LedgerEnv, [ParticipantHandle; N]) {
    participants_with(LedgerFaults::default())
}

fn ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// Lets `participant` take the free time slice with a deadline that is over at once.
fn take_overdue(participant: &ParticipantHandle) -> Epoch {
    participant.slice_queue().request(0).unwrap();
    let epoch = participant.slice_queue().try_acquire(ORDER).unwrap().expect("the slice is free");
    participant.slice_queue().set_deadline(1).unwrap();
    epoch
}

fn take(participant: &ParticipantHandle, limit: Duration) -> Option<Epoch> {
    participant.slice_queue().acquire_within(ORDER, limit).unwrap()
}

/// Starts a sidecar that holds the time slice, and its engine.
fn pair(env: &LedgerEnv) -> (LedgerProcess, LedgerProcess) {
    let mut sidecar = env.spawn_joined("team/hung", 100);
    let engine = env.spawn_engine_of(&mut sidecar);
    (sidecar, engine)
}

#[test]
fn stopped_holder_is_taken_over_after_deadline_and_changes_nothing_on_resume() {
    let env = LedgerEnv::new();
    let next = env.open().join("team/next", 0, 0).unwrap();
    let (mut sidecar, engine) = pair(&env);
    let fence = SliceFence::open(sidecar.receive_liveness(&env).as_fd()).unwrap().expect("it has peers");
    sidecar.ok("request");
    let begun = Instant::now();
    assert_eq!(sidecar.ok("take_turn"), "Some(Epoch(1))");
    assert!(!fence.is_stale(1));
    [&sidecar, &engine].into_iter().for_each(LedgerProcess::stop);
    next.slice_queue().request(0).unwrap();
    assert_eq!(take(&next, LONG), Some(Epoch(2)));
    let took = begun.elapsed();
    let least = FIRST_DEADLINE + OVERDUE_GRACE;
    assert!(least <= took && took < least + SLACK, "{took:?}");
    let SliceTakeover { from, overdue } = next.slice_queue().takeover().unwrap();
    assert!(from == "team/hung" && OVERDUE_GRACE <= overdue && overdue < took, "{from} {overdue:?}");
    assert_eq!(next.slice_queue().handover(), None, "it was not handed over");
    assert_eq!((fence.is_stale(1), fence.is_stale(2), fence.is_stale(0)), (true, false, false));
    [&sidecar, &engine].into_iter().for_each(LedgerProcess::resume);
    let before = (std::fs::read(env.folder().join("locks")).unwrap(), next.survey().unwrap());
    assert_eq!(sidecar.ok("held"), "None");
    assert_eq!(sidecar.request("promise 0").unwrap().unwrap_err(), "SliceTakenOver");
    assert_eq!(sidecar.request("give_turn").unwrap().unwrap_err(), "SliceTakenOver");
    assert_eq!(sidecar.request("give_turn").unwrap().unwrap_err(), "SliceNotHeld");
    assert_eq!(sidecar.ok("overtaken"), "1");
    let after = (std::fs::read(env.folder().join("locks")).unwrap(), next.survey().unwrap());
    assert_eq!(before, after);
    assert_eq!(next.slice_queue().held(), Some(Epoch(2)));
    sidecar.ok("request");
    next.slice_queue().release().unwrap();
    assert_eq!(sidecar.ok("take_turn"), "Some(Epoch(3))");
    assert_eq!(sidecar.ok("held"), "Some(Epoch(3))");
    assert_eq!(next.slice_queue().takeovers_total(), 0);
}

#[test]
fn stopped_holder_keeps_memory_after_takeover() {
    let env = LedgerEnv::new();
    let next = env.open().join("next", 0, 0).unwrap();
    let mut hung = env.spawn_joined("hung", 100);
    for command in ["reserve 900", "request", "take_turn", "promise 1"] {
        hung.ok(command);
    }
    hung.stop();
    next.slice_queue().request(0).unwrap();
    assert!(take(&next, LONG).is_some());
    assert_eq!(next.audit().unwrap().counted_bytes, 900);
    assert!(matches!(next.reserve(101), Err(LedgerError::OutOfMemory { .. })));
}

/// Whether a holder keeps a time slice that has `left` until its deadline, or no deadline.
fn keeps_slice(left: Option<Duration>, faults: LedgerFaults) -> bool {
    let (_stage, [a, b]) = participants_with(faults);
    a.slice_queue().request(0).unwrap();
    assert!(take(&a, LONG).is_some());
    a.slice_queue().set_deadline(left.map_or(0, |left| ns(since_boot() + left))).unwrap();
    b.slice_queue().request(0).unwrap();
    let taken = take(&b, FIRST_DEADLINE + 3 * OVERDUE_GRACE);
    assert_eq!(a.slice_queue().held().is_some(), taken.is_none());
    taken.is_none()
}

#[test]
fn holder_with_extended_or_no_deadline_keeps_slice() {
    assert!(keeps_slice(Some(LONG), LedgerFaults::default()));
    assert!(keeps_slice(None, LedgerFaults::default()));
    assert!(!keeps_slice(Some(Duration::ZERO), LedgerFaults::default()));
    // The control: a waiter that ignores deadlines takes over from a holder that extends them.
    assert!(!keeps_slice(Some(LONG), LedgerFaults { ignore_deadline: true, ..LedgerFaults::default() }));
}

#[test]
fn late_deadline_extension_restarts_grace() {
    let (_stage, [a, b]) = participants();
    take_overdue(&a);
    b.slice_queue().request(0).unwrap();
    for until in 2..6 {
        assert_eq!(take(&b, OVERDUE_GRACE * 3 / 5), None, "until {until}");
        a.slice_queue().set_deadline(until).unwrap();
    }
    assert!(take(&b, LONG).is_some());
}

/// Whether a waiter takes over if it checked, was stopped for longer than the grace, and checks again.
fn takes_over_after_pause(faults: LedgerFaults) -> bool {
    let (_stage, [a, b]) = participants_with(faults);
    take_overdue(&a);
    b.slice_queue().request(0).unwrap();
    assert_eq!(b.slice_queue().try_acquire(ORDER), Ok(None), "the first look");
    std::thread::sleep(2 * OVERDUE_GRACE);
    let taken = b.slice_queue().try_acquire(ORDER).unwrap().is_some();
    assert!(taken || take(&b, LONG).is_some(), "it goes on looking and takes over then");
    taken
}

#[test]
fn waiter_pause_does_not_count_as_overdue_time() {
    assert!(!takes_over_after_pause(LedgerFaults::default()));
    assert!(takes_over_after_pause(LedgerFaults { count_own_pauses: true, ..LedgerFaults::default() }));
}

#[test]
fn first_waiter_takes_over_before_next() {
    let (_stage, [a, b, c]) = participants();
    take_overdue(&a);
    [&b, &c].into_iter().for_each(|participant| participant.slice_queue().request(0).unwrap());
    std::thread::scope(|scope| {
        let second = scope.spawn(|| take(&c, OVERDUE_GRACE + SKIP_AFTER / 2));
        assert_eq!(take(&b, LONG), Some(Epoch(2)));
        assert_eq!(second.join().unwrap(), None, "the first has it, within its deadline");
    });
    assert!(c.slice_queue().take_skipped().is_empty(), "the first took it");
    b.slice_queue().set_deadline(1).unwrap();
    // Now the first waiter does not check.
    c.slice_queue().cancel().unwrap();
    a.slice_queue().request(0).unwrap();
    c.slice_queue().request(0).unwrap();
    let begun = Instant::now();
    assert_eq!(take(&c, LONG), Some(Epoch(3)));
    assert!(begun.elapsed() >= OVERDUE_GRACE + SKIP_AFTER, "{:?}", begun.elapsed());
    assert_eq!(c.slice_queue().takeover().unwrap().from, "1");
    assert_eq!(c.slice_queue().take_skipped(), ["0"]);
    assert!(c.slice_queue().take_skipped().is_empty(), "it is reported once");
    c.slice_queue().release().unwrap();
    assert_eq!(take(&a, LONG), Some(Epoch(4)), "it has kept its place");
    assert_eq!(a.slice_queue().takeover(), None, "it was free");
}

#[test]
fn deadline_extension_restarts_first_waiter_timeout() {
    let (_stage, [a, b, c]) = participants();
    take_overdue(&a);
    [&b, &c].into_iter().for_each(|participant| participant.slice_queue().request(0).unwrap());
    assert_eq!(take(&c, OVERDUE_GRACE + SKIP_AFTER * 3 / 4), None);
    a.slice_queue().set_deadline(2).unwrap();
    let begun = Instant::now();
    assert!(take(&c, LONG).is_some());
    assert!(begun.elapsed() >= OVERDUE_GRACE + SKIP_AFTER, "{:?}", begun.elapsed());
}

#[test]
fn wait_for_waiter_returns_on_takeover() {
    let (_stage, [a, b]) = participants();
    take_overdue(&a);
    b.slice_queue().request(0).unwrap();
    assert_eq!(a.slice_queue().wait_for_waiter(LONG), Ok(true));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| while a.slice_queue().wait_for_waiter(LONG).unwrap() {});
        assert!(take(&b, LONG).is_some());
        let begun = Instant::now();
        waiting.join().unwrap();
        assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
    });
    assert_eq!(a.slice_queue().takeovers_total(), 1);
}

#[test]
fn takeover_wakes_waiters() {
    let (env, [a, b]) = participants();
    take_overdue(&a);
    b.slice_queue().request(0).unwrap();
    let bell = futex_word(&env);
    let before = bell.load(Ordering::Acquire);
    assert!(take(&b, LONG).is_some());
    assert_ne!(bell.load(Ordering::Acquire), before);
}

#[test]
fn handover_time_is_correct_after_takeover() {
    const PAUSE: Duration = Duration::from_millis(20);
    let (_stage, [a, b]) = participants();
    take_overdue(&a);
    b.slice_queue().request(0).unwrap();
    assert!(take(&b, LONG).is_some());
    // A ticket first, so that the handover begins with the release of the current time slice.
    a.slice_queue().request(0).unwrap();
    assert_eq!(a.slice_queue().release(), Err(LedgerError::SliceTakenOver));
    std::thread::sleep(PAUSE);
    let begun = Instant::now();
    b.slice_queue().release().unwrap();
    std::thread::sleep(PAUSE);
    assert!(a.slice_queue().try_acquire(ORDER).unwrap().is_some());
    let took = a.slice_queue().handover().expect("it came from another");
    assert!(PAUSE <= took && took <= begun.elapsed(), "{took:?}");
}

#[test]
fn holder_reports_name_and_overdue_time() {
    let (_stage, [a, b]) = participants();
    assert_eq!(b.slice_queue().holder(), Ok(None));
    a.slice_queue().request(0).unwrap();
    a.slice_queue().try_acquire(ORDER).unwrap().unwrap();
    let holder = b.slice_queue().holder().unwrap().unwrap();
    assert_eq!((holder.peer, holder.name.as_str(), holder.overdue), (a.peer(), "0", Duration::ZERO));
    let over = Duration::from_secs(7);
    let before = since_boot();
    a.slice_queue().set_deadline(ns(before - over)).unwrap();
    let overdue = a.slice_queue().holder().unwrap().unwrap().overdue;
    assert!(over <= overdue && overdue <= since_boot() - before + over, "{overdue:?}");
    a.slice_queue().set_deadline(0).unwrap();
    assert_eq!(b.slice_queue().holder().unwrap().unwrap().overdue, Duration::ZERO);
    a.slice_queue().release().unwrap();
    assert_eq!(b.slice_queue().holder(), Ok(None));
    assert_eq!(a.slice_queue().set_deadline(1), Err(LedgerError::SliceNotHeld));
}

#[test]
fn slice_of_dead_sidecar_is_taken_over_while_engine_lives() {
    let env = LedgerEnv::new();
    let next = env.open().join("next", 0, 0).unwrap();
    let mut sidecar = env.spawn_joined("a", 0);
    sidecar.ok("request");
    sidecar.ok("take_turn");
    let engine = sidecar.receive_liveness(&env);
    let fence = SliceFence::open(engine.as_fd()).unwrap().unwrap();
    sidecar.kill();
    next.slice_queue().request(0).unwrap();
    assert_eq!(take(&next, LONG), Some(Epoch(2)));
    assert!(fence.is_stale(1));
    assert!(next.survey().unwrap().iter().any(|one| one.name == "a" && one.is_live && !one.has_slice));
}
