//! The turn: one at a time, in order, with rising epochs.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::futex;
use sluice_memory::neighbourhood::{Epoch, LedgerError, Neighbourhood, PASSED_OVER, Seat, TurnOrder};

use super::stage::{Actor, CAPACITY, Stage};

const ROUND_ROBIN: TurnOrder = TurnOrder::RoundRobin;
const LONG: Duration = Duration::from_secs(60);

/// `names` in a fresh neighbourhood.
fn seats<const N: usize>() -> (Stage, Neighbourhood, [Seat; N]) {
    let stage = Stage::new();
    let neighbourhood = stage.open();
    let seats = std::array::from_fn(|at| stage.open().join(&at.to_string(), 0, 0).unwrap());
    (stage, neighbourhood, seats)
}

#[test]
fn the_oldest_ticket_is_next_and_epochs_rise() {
    let (_stage, _, [a, b, c]) = seats();
    for seat in [&b, &c, &a] {
        seat.turn().request(0).unwrap();
    }
    for (epoch, seat) in (1..).zip([&b, &c, &a]) {
        let others = [&a, &b, &c].into_iter().filter(|other| other.peer() != seat.peer());
        for other in others.filter(|other| other.turn().try_take(ROUND_ROBIN) != Err(LedgerError::NoTicket)) {
            assert_eq!(other.turn().try_take(ROUND_ROBIN), Ok(None));
        }
        assert_eq!(seat.turn().try_take(ROUND_ROBIN), Ok(Some(Epoch(epoch))));
        assert_eq!(seat.turn().held(), Some(Epoch(epoch)));
        assert_eq!(seat.turn().waiters(), Ok(3 - epoch as usize));
        seat.turn().release().unwrap();
    }
    a.turn().request(0).unwrap();
    assert_eq!(a.turn().try_take(ROUND_ROBIN), Ok(Some(Epoch(4))));
}

#[test]
fn the_turn_is_had_by_one_and_asked_for_in_order() {
    let (_stage, watch, [a, b]) = seats();
    assert_eq!(a.turn().try_take(ROUND_ROBIN), Err(LedgerError::NoTicket));
    assert_eq!(a.turn().release(), Err(LedgerError::NoTurn));
    a.turn().request(0).unwrap();
    b.turn().request(0).unwrap();
    a.turn().try_take(ROUND_ROBIN).unwrap().unwrap();
    assert_eq!(a.turn().request(0), Err(LedgerError::HasTurn));
    assert_eq!(b.turn().try_take(ROUND_ROBIN), Ok(None));
    let survey = watch.survey().unwrap();
    assert_eq!(
        survey.iter().map(|one| (one.has_turn, one.waits)).collect::<Vec<_>>(),
        [(true, false), (false, true)]
    );
    a.turn().release().unwrap();
    assert!(!watch.survey().unwrap()[0].has_turn);
    assert_eq!(a.turn().release(), Err(LedgerError::NoTurn));
}

#[test]
fn who_asks_twice_keeps_its_place_and_who_cancels_loses_it() {
    let (_stage, _, [a, b]) = seats();
    a.turn().request(0).unwrap();
    b.turn().request(0).unwrap();
    a.turn().request(0).unwrap();
    assert_eq!(b.turn().try_take(ROUND_ROBIN), Ok(None));
    a.turn().cancel().unwrap();
    a.turn().cancel().unwrap();
    a.turn().request(0).unwrap();
    assert_eq!(a.turn().try_take(ROUND_ROBIN), Ok(None));
    assert_eq!(b.turn().try_take(ROUND_ROBIN), Ok(Some(Epoch(1))));
}

#[test]
fn the_dead_are_not_waited_for_and_leave_no_ticket_to_their_heirs() {
    let stage = Stage::new();
    let mut dead = stage.joined("dead", 0);
    let b = stage.open().join("b", 0, 0).unwrap();
    dead.ok("request");
    b.turn().request(0).unwrap();
    assert_eq!((b.turn().waiters(), b.turn().try_take(ROUND_ROBIN)), (Ok(1), Ok(None)));
    dead.kill();
    assert_eq!(b.turn().waiters(), Ok(0));
    assert!(b.turn().try_take(ROUND_ROBIN).unwrap().is_some());
    let heir = stage.open().join("heir", 0, 0).unwrap();
    assert_eq!((heir.index(), b.turn().waiters()), (dead.peer.index, Ok(0)));
    assert_eq!(heir.turn().try_take(ROUND_ROBIN), Err(LedgerError::NoTicket));
}

#[test]
fn who_lets_a_free_turn_lie_is_passed_over_and_takes_it_when_it_wakes() {
    let (_stage, _, [frozen, one, other]) = seats();
    for seat in [&frozen, &one, &other] {
        seat.turn().request(0).unwrap();
    }
    let begun = Instant::now();
    assert_eq!(one.turn().try_take(ROUND_ROBIN).unwrap(), None, "it is not next");
    let waits = |seat: &Seat| seat.turn().take_within(ROUND_ROBIN, 10 * PASSED_OVER).unwrap();
    assert!(waits(&one).is_some() && begun.elapsed() >= PASSED_OVER, "after {:?}", begun.elapsed());
    // Once is enough for all: it does not have to lie again, also not for those who have passed over no participant yet.
    one.turn().release().unwrap();
    one.turn().request(0).unwrap();
    assert_eq!(one.turn().try_take(ROUND_ROBIN).unwrap(), None, "another participant is before it");
    assert!(other.turn().try_take(ROUND_ROBIN).unwrap().is_some(), "at once");
    other.turn().release().unwrap();
    assert!(one.turn().try_take(ROUND_ROBIN).unwrap().is_some(), "at once");
    assert_eq!(frozen.turn().try_take(ROUND_ROBIN).unwrap(), None, "it runs again");
    one.turn().release().unwrap();
    one.turn().request(0).unwrap();
    assert_eq!(one.turn().try_take(ROUND_ROBIN).unwrap(), None, "it counts again");
    assert!(frozen.turn().try_take(ROUND_ROBIN).unwrap().is_some(), "it has kept its place");
    frozen.turn().release().unwrap();
    frozen.turn().request(0).unwrap();
    assert!(one.turn().try_take(ROUND_ROBIN).unwrap().is_some(), "it was first");
    one.turn().release().unwrap();
    one.turn().request(0).unwrap();
    assert_eq!(one.turn().try_take(ROUND_ROBIN).unwrap(), None, "its new ticket counts again");
}

#[test]
fn the_highest_priority_is_next_until_somebody_has_waited_long_enough() {
    const AGING_TURNS: u64 = 5;
    let order = TurnOrder::Priority { aging_turns: AGING_TURNS };
    let (_stage, _, [low, lowest, high]) = seats();
    lowest.turn().request(-3).unwrap();
    low.turn().request(-2).unwrap();
    let mut won = vec![];
    for _ in 0..AGING_TURNS + 2 {
        if high.turn().held().is_none() {
            high.turn().request(i32::MAX).unwrap();
        }
        let next =
            |seat: &&&Seat| !matches!(seat.turn().try_take(order), Ok(None) | Err(LedgerError::NoTicket));
        let all = [&low, &lowest, &high];
        let winner = all.iter().find(next).unwrap();
        won.push(winner.index());
        winner.turn().release().unwrap();
    }
    let mut expected = vec![high.index(); AGING_TURNS as usize];
    // Then the oldest ticket of those who have waited, whatever their priority.
    expected.extend([lowest.index(), low.index()]);
    assert_eq!(won, expected);
}

#[test]
fn of_equal_priority_the_oldest_ticket_is_next_and_a_changed_priority_counts() {
    let order = TurnOrder::Priority { aging_turns: 100 };
    let (_stage, _, [a, b]) = seats();
    a.turn().request(1).unwrap();
    b.turn().request(1).unwrap();
    assert_eq!(b.turn().try_take(order), Ok(None));
    b.turn().request(2).unwrap();
    assert_eq!(a.turn().try_take(order), Ok(None));
    assert!(b.turn().try_take(order).unwrap().is_some());
}

#[test]
fn whoever_waits_is_woken_by_a_release_and_by_a_cancellation() {
    let (_stage, _, [a, b]) = seats();
    a.turn().request(0).unwrap();
    a.turn().try_take(ROUND_ROBIN).unwrap().unwrap();
    b.turn().request(0).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| b.turn().take_within(ROUND_ROBIN, LONG));
        a.turn().release().unwrap();
        assert_eq!(waits.join().unwrap(), Ok(Some(Epoch(2))));
        b.turn().release().unwrap();
        a.turn().request(0).unwrap();
        a.turn().try_take(ROUND_ROBIN).unwrap().unwrap();
        b.turn().request(0).unwrap();
        let waits = scope.spawn(|| b.turn().take_within(ROUND_ROBIN, LONG));
        b.turn().cancel().unwrap();
        assert_eq!(waits.join().unwrap(), Err(LedgerError::NoTicket));
    });
}

/// The futex of the turn, through a mapping of the test's own: word 10 of the header.
pub fn bell(stage: &Stage) -> &'static AtomicU32 {
    let file = OpenOptions::new().read(true).write(true).open(stage.folder().join("ledger")).unwrap();
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a fresh mapping that is never unmapped; the word is aligned and only reached atomically.
    unsafe {
        &*rustix::mm::mmap(std::ptr::null_mut(), 4096, access, flags, file, 0).unwrap().byte_add(80).cast()
    }
}

#[test]
fn a_release_wakes_sleepers_whatever_their_mapping() {
    let (stage, _, [a]) = seats();
    let bell = bell(&stage);
    let patience = futex::Timespec { tv_sec: 60, tv_nsec: 0 };
    let once = || {
        a.turn().request(0).unwrap();
        a.turn().try_take(ROUND_ROBIN).unwrap().unwrap();
        let seen = bell.load(Ordering::Acquire);
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| futex::wait(bell, futex::Flags::empty(), seen, Some(&patience)));
            // Time to fall asleep; a sleeper that comes too late says so.
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(1) {
                std::thread::yield_now();
            }
            a.turn().release().unwrap();
            sleeper.join().unwrap()
        })
    };
    let woken = std::iter::repeat_with(once).find(|result| *result != Err(Errno::AGAIN));
    assert_eq!(woken, Some(Ok(())));
}

/// Nanoseconds that this thread has run.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn waiting_in_vain_ends_at_the_limit_and_sleeps_meanwhile() {
    let (_stage, _, [a, b]) = seats();
    a.turn().request(0).unwrap();
    a.turn().try_take(ROUND_ROBIN).unwrap().unwrap();
    b.turn().request(0).unwrap();
    let (begun, ran) = (Instant::now(), cpu_ns());
    assert_eq!(b.turn().take_within(ROUND_ROBIN, Duration::from_millis(300)), Ok(None));
    assert!(begun.elapsed() >= Duration::from_millis(300));
    let busy = Duration::from_nanos(cpu_ns() - ran);
    assert!(busy < Duration::from_millis(30), "{busy:?} of 300 ms were spent computing");
}

/// The child's half of mutual exclusion: takes the turn `count` times, and while it has it nobody else may write the
/// two words of the file "turn": instance of the holder, epoch.
pub fn spin(seat: &Seat, folder: &Path, count: u64) -> Result<String, String> {
    let file = OpenOptions::new().read(true).write(true).open(folder.join("turn")).unwrap();
    let read = || {
        let mut words = [0; 16];
        file.read_exact_at(&mut words, 0).unwrap();
        let word = |at: usize| u64::from_ne_bytes(words[at..at + 8].try_into().unwrap());
        (word(0), word(8))
    };
    for _ in 0..count {
        seat.turn().request(0).unwrap();
        let Epoch(epoch) =
            seat.turn().take_within(ROUND_ROBIN, LONG).unwrap().ok_or("no turn in a minute")?;
        let (_, before) = read();
        if before >= epoch {
            return Err(format!("epoch {epoch} after {before}"));
        }
        let words = [seat.instance(), epoch].map(u64::to_ne_bytes).concat();
        file.write_all_at(&words, 0).unwrap();
        for _ in 0..5 {
            std::thread::yield_now();
            if read() != (seat.instance(), epoch) {
                return Err(format!("somebody else had the turn in epoch {epoch}"));
            }
        }
        seat.turn().release().map_err(|error| format!("{error} in epoch {epoch}"))?;
    }
    Ok(String::new())
}

/// Six processes that take turns, some of which are killed.
fn crowd(fault: Option<&str>) -> Result<(), String> {
    let stage = Stage::new();
    std::fs::write(stage.folder().join("turn"), [0; 16]).unwrap();
    let start = |at: usize| {
        let mut actor = stage.actor();
        if let Some(fault) = fault {
            actor.ok(&format!("fault {fault}"));
        }
        actor.ok("open");
        actor.join(&at.to_string(), 0);
        actor
    };
    let mut actors: Vec<Actor> = (0..6).map(start).collect();
    for (at, actor) in actors.iter_mut().enumerate() {
        // The last two do not end by themselves.
        actor.tell(if at < 4 { "spin 150" } else { "spin 1000000" });
    }
    actors[4].kill();
    let first = actors[0].answer().unwrap();
    actors[5].kill();
    let mut answers = vec![first];
    answers.extend(actors[1..4].iter_mut().map(|actor| actor.answer().unwrap()));
    answers.into_iter().find(Result::is_err).unwrap_or(Ok(String::new())).map(drop)
}

#[test]
fn one_process_at_a_time_has_the_turn() {
    assert_eq!(crowd(None), Ok(()));
}

#[test]
fn the_crowd_tells_when_the_turn_is_not_locked() {
    let error = crowd(Some("unlocked_turn")).unwrap_err();
    assert!(error.contains("epoch"), "{error}");
}

#[test]
fn the_turn_of_a_killed_holder_goes_on_within_50_ms() {
    let stage = Stage::new();
    let heir = stage.open().join("heir", 0, 0).unwrap();
    let mut last = Epoch(0);
    let once = |at: u32| {
        let mut holder = stage.joined(&format!("holder-{at}"), CAPACITY / 10);
        holder.ok("request");
        holder.ok("take_turn");
        heir.turn().request(0).unwrap();
        let (took, epoch) = std::thread::scope(|scope| {
            let (waiting, waits_now) = channel();
            let heir = &heir;
            let waits = scope.spawn(move || {
                assert_eq!(heir.turn().try_take(ROUND_ROBIN), Ok(None));
                waiting.send(()).unwrap();
                let epoch = heir.turn().take_within(ROUND_ROBIN, LONG).unwrap().unwrap();
                (Instant::now(), epoch)
            });
            waits_now.recv().unwrap();
            let killed = Instant::now();
            holder.kill();
            let (at, epoch) = waits.join().unwrap();
            (at.duration_since(killed), epoch)
        });
        heir.turn().release().unwrap();
        assert!(epoch > last);
        last = epoch;
        took
    };
    // The median: a busy machine may be late at times, and whoever is late to wait may find the holder dead already.
    let mut times: Vec<_> = (0..5).map(once).collect();
    times.sort_unstable();
    assert!(times[2] < Duration::from_millis(50), "{times:?}");
}

#[test]
fn an_engine_that_still_computes_keeps_the_turn_of_its_dead_sidecar() {
    let stage = Stage::new();
    let next = stage.open().join("next", 0, 0).unwrap();
    let mut sidecar = stage.joined("a", 0);
    sidecar.ok("request");
    sidecar.ok("take_turn");
    let engine = sidecar.lend_liveness(&stage);
    sidecar.kill();
    next.turn().request(0).unwrap();
    assert_eq!(next.turn().take_within(ROUND_ROBIN, Duration::from_millis(30)), Ok(None));
    assert!(stage.open().survey().unwrap().iter().any(|one| one.name == "a" && one.has_turn));
    drop(engine);
    assert_eq!(next.turn().take_within(ROUND_ROBIN, LONG), Ok(Some(Epoch(2))));
}

#[test]
fn a_hand_over_is_timed_from_the_release_of_another() {
    const PAUSE: Duration = Duration::from_millis(20);
    let (_stage, _, [a, b]) = seats();
    let take = |seat: &Seat| seat.turn().try_take(ROUND_ROBIN).unwrap().expect("nobody has it");
    a.turn().request(0).unwrap();
    take(&a);
    assert_eq!(a.turn().handover(), None, "nobody had it before");
    b.turn().request(0).unwrap();
    let begun = Instant::now();
    a.turn().release().unwrap();
    std::thread::sleep(PAUSE);
    take(&b);
    let took = b.turn().handover().expect("it came from another");
    assert!(PAUSE <= took && took <= begun.elapsed(), "{took:?}");
    b.turn().release().unwrap();
    std::thread::sleep(PAUSE);
    // Nobody waited meanwhile.
    let begun = Instant::now();
    a.turn().request(0).unwrap();
    take(&a);
    assert!(a.turn().handover().expect("it came from another") <= begun.elapsed());
    a.turn().release().unwrap();
    a.turn().request(0).unwrap();
    take(&a);
    assert_eq!(a.turn().handover(), None, "it was its own");
}

#[test]
fn a_turn_whose_holder_died_was_not_handed_over() {
    let (stage, _, [a, b]) = seats();
    a.turn().request(0).unwrap();
    a.turn().try_take(ROUND_ROBIN).unwrap().expect("nobody has it");
    b.turn().request(0).unwrap();
    stage.end(a);
    b.turn().take_within(ROUND_ROBIN, LONG).unwrap().expect("the dead hold nothing");
    assert_eq!(b.turn().handover(), None);
}

#[test]
fn the_holder_hears_at_once_that_somebody_waits_and_of_nothing_else() {
    let (_stage, _, [a, b]) = seats();
    a.turn().request(0).unwrap();
    a.turn().try_take(ROUND_ROBIN).unwrap().unwrap();
    assert_eq!(a.turn().sought_within(Duration::from_millis(20)), Ok(false), "nobody does");
    std::thread::scope(|scope| {
        let begun = Instant::now();
        let holder = scope.spawn(|| a.turn().sought_within(LONG));
        b.turn().request(0).unwrap();
        assert_eq!(holder.join().unwrap(), Ok(true));
        assert!(begun.elapsed() < LONG / 2, "a ticket wakes it");
    });
    assert_eq!(a.turn().sought_within(LONG), Ok(true), "it waits already");
    b.turn().cancel().unwrap();
    std::thread::scope(|scope| {
        let holder = scope.spawn(|| a.turn().sought_within(LONG));
        a.turn().release().unwrap();
        assert_eq!(holder.join().unwrap(), Ok(false), "it is not the holder any more");
    });
}
