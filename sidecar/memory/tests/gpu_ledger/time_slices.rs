//! The time slice: one holder at a time, in order, with rising epochs.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::futex;
use sluice_common::statistics::percentile;
use sluice_memory::gpu_ledger::{Epoch, GpuLedger, LedgerError, ParticipantHandle, SKIP_AFTER, SliceOrder};

use super::env::{CAPACITY, LedgerEnv, LedgerProcess};

const ROUND_ROBIN: SliceOrder = SliceOrder::RoundRobin;
const LONG: Duration = Duration::from_secs(60);

/// Returns participants of a new ledger.
fn participants<const N: usize>() -> (LedgerEnv, GpuLedger, [ParticipantHandle; N]) {
    let env = LedgerEnv::new();
    let ledger = env.open();
    let participants = std::array::from_fn(|at| env.open().join(&at.to_string(), 0, 0).unwrap());
    (env, ledger, participants)
}

#[test]
fn the_oldest_ticket_is_next_and_epochs_rise() {
    let (_stage, _, [a, b, c]) = participants();
    for participant in [&b, &c, &a] {
        participant.slice_queue().request(0).unwrap();
    }
    for (epoch, participant) in (1..).zip([&b, &c, &a]) {
        let others = [&a, &b, &c].into_iter().filter(|other| other.peer() != participant.peer());
        for other in
            others.filter(|other| other.slice_queue().try_acquire(ROUND_ROBIN) != Err(LedgerError::NoTicket))
        {
            assert_eq!(other.slice_queue().try_acquire(ROUND_ROBIN), Ok(None));
        }
        assert_eq!(participant.slice_queue().try_acquire(ROUND_ROBIN), Ok(Some(Epoch(epoch))));
        assert_eq!(participant.slice_queue().held(), Some(Epoch(epoch)));
        assert_eq!(participant.slice_queue().waiters(), Ok(3 - epoch as usize));
        participant.slice_queue().release().unwrap();
    }
    a.slice_queue().request(0).unwrap();
    assert_eq!(a.slice_queue().try_acquire(ROUND_ROBIN), Ok(Some(Epoch(4))));
}

#[test]
fn slice_has_one_holder_and_is_granted_in_order() {
    let (_stage, watch, [a, b]) = participants();
    assert_eq!(a.slice_queue().try_acquire(ROUND_ROBIN), Err(LedgerError::NoTicket));
    assert_eq!(a.slice_queue().release(), Err(LedgerError::SliceNotHeld));
    a.slice_queue().request(0).unwrap();
    b.slice_queue().request(0).unwrap();
    a.slice_queue().try_acquire(ROUND_ROBIN).unwrap().unwrap();
    assert_eq!(a.slice_queue().request(0), Err(LedgerError::SliceAlreadyHeld));
    assert_eq!(b.slice_queue().try_acquire(ROUND_ROBIN), Ok(None));
    let survey = watch.survey().unwrap();
    assert_eq!(
        survey.iter().map(|one| (one.has_slice, one.is_waiting)).collect::<Vec<_>>(),
        [(true, false), (false, true)]
    );
    a.slice_queue().release().unwrap();
    assert!(!watch.survey().unwrap()[0].has_slice);
    assert_eq!(a.slice_queue().release(), Err(LedgerError::SliceNotHeld));
}

#[test]
fn second_request_keeps_position_and_cancel_loses_it() {
    let (_stage, _, [a, b]) = participants();
    a.slice_queue().request(0).unwrap();
    b.slice_queue().request(0).unwrap();
    a.slice_queue().request(0).unwrap();
    assert_eq!(b.slice_queue().try_acquire(ROUND_ROBIN), Ok(None));
    a.slice_queue().cancel().unwrap();
    a.slice_queue().cancel().unwrap();
    a.slice_queue().request(0).unwrap();
    assert_eq!(a.slice_queue().try_acquire(ROUND_ROBIN), Ok(None));
    assert_eq!(b.slice_queue().try_acquire(ROUND_ROBIN), Ok(Some(Epoch(1))));
}

#[test]
fn dead_waiter_is_skipped_and_its_ticket_is_not_inherited() {
    let env = LedgerEnv::new();
    let mut dead = env.spawn_joined("dead", 0);
    let b = env.open().join("b", 0, 0).unwrap();
    dead.ok("request");
    b.slice_queue().request(0).unwrap();
    assert_eq!((b.slice_queue().waiters(), b.slice_queue().try_acquire(ROUND_ROBIN)), (Ok(1), Ok(None)));
    dead.kill();
    assert_eq!(b.slice_queue().waiters(), Ok(0));
    assert!(b.slice_queue().try_acquire(ROUND_ROBIN).unwrap().is_some());
    let heir = env.open().join("heir", 0, 0).unwrap();
    assert_eq!((heir.index(), b.slice_queue().waiters()), (dead.peer.index, Ok(0)));
    assert_eq!(heir.slice_queue().try_acquire(ROUND_ROBIN), Err(LedgerError::NoTicket));
}

#[test]
fn unresponsive_waiter_is_skipped_and_acquires_after_resume() {
    let (_stage, _, [frozen, one, other]) = participants();
    for participant in [&frozen, &one, &other] {
        participant.slice_queue().request(0).unwrap();
    }
    let begun = Instant::now();
    assert_eq!(one.slice_queue().try_acquire(ROUND_ROBIN).unwrap(), None, "it is not next");
    let waits = |participant: &ParticipantHandle| {
        participant.slice_queue().acquire_within(ROUND_ROBIN, 10 * SKIP_AFTER).unwrap()
    };
    assert!(waits(&one).is_some() && begun.elapsed() >= SKIP_AFTER, "after {:?}", begun.elapsed());
    // One skip applies to all waiters: no further wait is needed, even for those that have not skipped the
    // participant themselves.
    one.slice_queue().release().unwrap();
    one.slice_queue().request(0).unwrap();
    assert_eq!(one.slice_queue().try_acquire(ROUND_ROBIN).unwrap(), None, "another participant is before it");
    assert!(other.slice_queue().try_acquire(ROUND_ROBIN).unwrap().is_some(), "at once");
    other.slice_queue().release().unwrap();
    assert!(one.slice_queue().try_acquire(ROUND_ROBIN).unwrap().is_some(), "at once");
    assert_eq!(frozen.slice_queue().try_acquire(ROUND_ROBIN).unwrap(), None, "it runs again");
    one.slice_queue().release().unwrap();
    one.slice_queue().request(0).unwrap();
    assert_eq!(one.slice_queue().try_acquire(ROUND_ROBIN).unwrap(), None, "it counts again");
    assert!(frozen.slice_queue().try_acquire(ROUND_ROBIN).unwrap().is_some(), "it has kept its place");
    frozen.slice_queue().release().unwrap();
    frozen.slice_queue().request(0).unwrap();
    assert!(one.slice_queue().try_acquire(ROUND_ROBIN).unwrap().is_some(), "it was first");
    one.slice_queue().release().unwrap();
    one.slice_queue().request(0).unwrap();
    assert_eq!(one.slice_queue().try_acquire(ROUND_ROBIN).unwrap(), None, "its new ticket counts again");
}

#[test]
fn highest_priority_is_next_until_aging_applies() {
    const AGING_SLICES: u64 = 5;
    let order = SliceOrder::Priority { aging_slices: AGING_SLICES };
    let (_stage, _, [low, lowest, high]) = participants();
    lowest.slice_queue().request(-3).unwrap();
    low.slice_queue().request(-2).unwrap();
    let mut won = vec![];
    for _ in 0..AGING_SLICES + 2 {
        if high.slice_queue().held().is_none() {
            high.slice_queue().request(i32::MAX).unwrap();
        }
        let next = |participant: &&&ParticipantHandle| {
            !matches!(participant.slice_queue().try_acquire(order), Ok(None) | Err(LedgerError::NoTicket))
        };
        let all = [&low, &lowest, &high];
        let winner = all.iter().find(next).unwrap();
        won.push(winner.index());
        winner.slice_queue().release().unwrap();
    }
    let mut expected = vec![high.index(); AGING_SLICES as usize];
    // Then the oldest ticket among the aged waiters, regardless of priority.
    expected.extend([lowest.index(), low.index()]);
    assert_eq!(won, expected);
}

#[test]
fn equal_priority_is_fifo_and_priority_change_applies() {
    let order = SliceOrder::Priority { aging_slices: 100 };
    let (_stage, _, [a, b]) = participants();
    a.slice_queue().request(1).unwrap();
    b.slice_queue().request(1).unwrap();
    assert_eq!(b.slice_queue().try_acquire(order), Ok(None));
    b.slice_queue().request(2).unwrap();
    assert_eq!(a.slice_queue().try_acquire(order), Ok(None));
    assert!(b.slice_queue().try_acquire(order).unwrap().is_some());
}

#[test]
fn waiter_is_woken_by_release_and_cancel() {
    let (_stage, _, [a, b]) = participants();
    a.slice_queue().request(0).unwrap();
    a.slice_queue().try_acquire(ROUND_ROBIN).unwrap().unwrap();
    b.slice_queue().request(0).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| b.slice_queue().acquire_within(ROUND_ROBIN, LONG));
        a.slice_queue().release().unwrap();
        assert_eq!(waits.join().unwrap(), Ok(Some(Epoch(2))));
        b.slice_queue().release().unwrap();
        a.slice_queue().request(0).unwrap();
        a.slice_queue().try_acquire(ROUND_ROBIN).unwrap().unwrap();
        b.slice_queue().request(0).unwrap();
        let waits = scope.spawn(|| b.slice_queue().acquire_within(ROUND_ROBIN, LONG));
        b.slice_queue().cancel().unwrap();
        assert_eq!(waits.join().unwrap(), Err(LedgerError::NoTicket));
    });
}

/// Returns the ledger's futex, word 10 of the header, through a mapping of the test.
pub fn futex_word(env: &LedgerEnv) -> &'static AtomicU32 {
    let file = OpenOptions::new().read(true).write(true).open(env.folder().join("ledger")).unwrap();
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping that is never unmapped; the word is aligned and accessed only atomically.
    unsafe {
        &*rustix::mm::mmap(std::ptr::null_mut(), 4096, access, flags, file, 0).unwrap().byte_add(80).cast()
    }
}

#[test]
fn release_wakes_waiters_in_other_mappings() {
    let (env, _, [a]) = participants();
    let bell = futex_word(&env);
    let patience = futex::Timespec { tv_sec: 60, tv_nsec: 0 };
    let once = || {
        a.slice_queue().request(0).unwrap();
        a.slice_queue().try_acquire(ROUND_ROBIN).unwrap().unwrap();
        let seen = bell.load(Ordering::Acquire);
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| futex::wait(bell, futex::Flags::empty(), seen, Some(&patience)));
            // Gives the sleeper time to fall asleep; a late one returns EAGAIN.
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(1) {
                std::thread::yield_now();
            }
            a.slice_queue().release().unwrap();
            sleeper.join().unwrap()
        })
    };
    let woken = std::iter::repeat_with(once).find(|result| *result != Err(Errno::AGAIN));
    assert_eq!(woken, Some(Ok(())));
}

/// Returns the CPU time of this thread, nanoseconds.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn wait_times_out_without_spinning() {
    let (_stage, _, [a, b]) = participants();
    a.slice_queue().request(0).unwrap();
    a.slice_queue().try_acquire(ROUND_ROBIN).unwrap().unwrap();
    b.slice_queue().request(0).unwrap();
    let (begun, ran) = (Instant::now(), cpu_ns());
    assert_eq!(b.slice_queue().acquire_within(ROUND_ROBIN, Duration::from_millis(300)), Ok(None));
    assert!(begun.elapsed() >= Duration::from_millis(300));
    let busy = Duration::from_nanos(cpu_ns() - ran);
    assert!(busy < Duration::from_millis(30), "{busy:?} of 300 ms were spent computing");
}

/// The child's part of mutual exclusion: takes the time slice `count` times. While it holds the slice, no
/// other process may write the two words of the file "turn": the holder's instance and the epoch.
pub fn spin(participant: &ParticipantHandle, folder: &Path, count: u64) -> Result<String, String> {
    let file = OpenOptions::new().read(true).write(true).open(folder.join("turn")).unwrap();
    let read = || {
        let mut words = [0; 16];
        file.read_exact_at(&mut words, 0).unwrap();
        let word = |at: usize| u64::from_ne_bytes(words[at..at + 8].try_into().unwrap());
        (word(0), word(8))
    };
    for _ in 0..count {
        participant.slice_queue().request(0).unwrap();
        let Epoch(epoch) = participant
            .slice_queue()
            .acquire_within(ROUND_ROBIN, LONG)
            .unwrap()
            .ok_or("no slice in a minute")?;
        let (_, before) = read();
        if before >= epoch {
            return Err(format!("epoch {epoch} after {before}"));
        }
        let words = [participant.instance(), epoch].map(u64::to_ne_bytes).concat();
        file.write_all_at(&words, 0).unwrap();
        for _ in 0..5 {
            std::thread::yield_now();
            if read() != (participant.instance(), epoch) {
                return Err(format!("another tenant had the time slice in epoch {epoch}"));
            }
        }
        participant.slice_queue().release().map_err(|error| format!("{error} in epoch {epoch}"))?;
    }
    Ok(String::new())
}

/// Six processes take time slices, and some of them are killed.
fn run_contention(fault: Option<&str>) -> Result<(), String> {
    let env = LedgerEnv::new();
    std::fs::write(env.folder().join("turn"), [0; 16]).unwrap();
    let start = |at: usize| {
        let mut actor = env.spawn_process();
        if let Some(fault) = fault {
            actor.ok(&format!("fault {fault}"));
        }
        actor.ok("open");
        actor.join(&at.to_string(), 0);
        actor
    };
    let mut actors: Vec<LedgerProcess> = (0..6).map(start).collect();
    for (at, actor) in actors.iter_mut().enumerate() {
        // The last two do not end by themselves.
        actor.send(if at < 4 { "spin 150" } else { "spin 1000000" });
    }
    actors[4].kill();
    let first = actors[0].answer().unwrap();
    actors[5].kill();
    let mut answers = vec![first];
    answers.extend(actors[1..4].iter_mut().map(|actor| actor.answer().unwrap()));
    answers.into_iter().find(Result::is_err).unwrap_or(Ok(String::new())).map(drop)
}

#[test]
fn slice_is_exclusive_across_processes() {
    assert_eq!(run_contention(None), Ok(()));
}

#[test]
fn unlocked_slice_fault_is_detected() {
    let error = run_contention(Some("unlocked_turn")).unwrap_err();
    assert!(error.contains("epoch"), "{error}");
}

#[test]
fn slice_of_killed_holder_passes_within_50_ms() {
    let env = LedgerEnv::new();
    let heir = env.open().join("heir", 0, 0).unwrap();
    let mut last = Epoch(0);
    let once = |at: u32| {
        let mut holder = env.spawn_joined(&format!("holder-{at}"), CAPACITY / 10);
        holder.ok("request");
        holder.ok("take_turn");
        heir.slice_queue().request(0).unwrap();
        let (took, epoch) = std::thread::scope(|scope| {
            let (waiting, waits_now) = channel();
            let heir = &heir;
            let waits = scope.spawn(move || {
                assert_eq!(heir.slice_queue().try_acquire(ROUND_ROBIN), Ok(None));
                waiting.send(()).unwrap();
                let epoch = heir.slice_queue().acquire_within(ROUND_ROBIN, LONG).unwrap().unwrap();
                (Instant::now(), epoch)
            });
            waits_now.recv().unwrap();
            let killed = Instant::now();
            holder.kill();
            let (at, epoch) = waits.join().unwrap();
            (at.duration_since(killed), epoch)
        });
        heir.slice_queue().release().unwrap();
        assert!(epoch > last);
        last = epoch;
        took
    };
    // Takes the median, because a busy machine may be late at times, and a late waiter may find that the
    // holder has already exited.
    let mut times: Vec<_> = (0..5).map(once).collect();
    assert!(percentile(&mut times, 500).unwrap() < Duration::from_millis(50), "{times:?}");
}

#[test]
fn engine_keeps_slice_of_dead_sidecar() {
    let env = LedgerEnv::new();
    let next = env.open().join("next", 0, 0).unwrap();
    let mut sidecar = env.spawn_joined("a", 0);
    sidecar.ok("request");
    sidecar.ok("take_turn");
    let engine = sidecar.receive_liveness(&env);
    sidecar.kill();
    next.slice_queue().request(0).unwrap();
    assert_eq!(next.slice_queue().acquire_within(ROUND_ROBIN, Duration::from_millis(30)), Ok(None));
    assert!(env.open().survey().unwrap().iter().any(|one| one.name == "a" && one.has_slice));
    drop(engine);
    assert_eq!(next.slice_queue().acquire_within(ROUND_ROBIN, LONG), Ok(Some(Epoch(2))));
}

#[test]
fn handover_is_timed_from_release() {
    const PAUSE: Duration = Duration::from_millis(20);
    let (_stage, _, [a, b]) = participants();
    let take = |participant: &ParticipantHandle| {
        participant.slice_queue().try_acquire(ROUND_ROBIN).unwrap().expect("it is free")
    };
    a.slice_queue().request(0).unwrap();
    take(&a);
    assert_eq!(a.slice_queue().handover(), None, "it had no holder before");
    b.slice_queue().request(0).unwrap();
    let begun = Instant::now();
    a.slice_queue().release().unwrap();
    std::thread::sleep(PAUSE);
    take(&b);
    let took = b.slice_queue().handover().expect("it came from another");
    assert!(PAUSE <= took && took <= begun.elapsed(), "{took:?}");
    b.slice_queue().release().unwrap();
    std::thread::sleep(PAUSE);
    // No participant was waiting during the pause.
    let begun = Instant::now();
    a.slice_queue().request(0).unwrap();
    take(&a);
    assert!(a.slice_queue().handover().expect("it came from another") <= begun.elapsed());
    a.slice_queue().release().unwrap();
    a.slice_queue().request(0).unwrap();
    take(&a);
    assert_eq!(a.slice_queue().handover(), None, "it was its own");
}

#[test]
fn slice_of_dead_holder_has_no_handover_time() {
    let (env, _, [a, b]) = participants();
    a.slice_queue().request(0).unwrap();
    a.slice_queue().try_acquire(ROUND_ROBIN).unwrap().expect("it is free");
    b.slice_queue().request(0).unwrap();
    env.end(a);
    b.slice_queue().acquire_within(ROUND_ROBIN, LONG).unwrap().expect("the dead hold nothing");
    assert_eq!(b.slice_queue().handover(), None);
}

#[test]
fn holder_is_notified_only_of_waiters() {
    let (_stage, _, [a, b]) = participants();
    a.slice_queue().request(0).unwrap();
    a.slice_queue().try_acquire(ROUND_ROBIN).unwrap().unwrap();
    assert_eq!(a.slice_queue().wait_for_waiter(Duration::from_millis(20)), Ok(false), "no peer does");
    std::thread::scope(|scope| {
        let begun = Instant::now();
        let holder = scope.spawn(|| a.slice_queue().wait_for_waiter(LONG));
        b.slice_queue().request(0).unwrap();
        assert_eq!(holder.join().unwrap(), Ok(true));
        assert!(begun.elapsed() < LONG / 2, "a ticket wakes it");
    });
    assert_eq!(a.slice_queue().wait_for_waiter(LONG), Ok(true), "it waits already");
    b.slice_queue().cancel().unwrap();
    std::thread::scope(|scope| {
        let holder = scope.spawn(|| a.slice_queue().wait_for_waiter(LONG));
        a.slice_queue().release().unwrap();
        assert_eq!(holder.join().unwrap(), Ok(false), "it is not the holder any more");
    });
}
