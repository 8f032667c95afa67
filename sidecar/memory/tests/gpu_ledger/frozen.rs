//! A process that is stopped while it holds the guard: others read the ledger as usual, and wait for the
//! guard only up to the timeout.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use sluice_memory::gpu_ledger::{
    EarmarkState, GUARD_PATIENCE, GpuLedger, JoinError, LedgerError, OpenError, ParticipantHandle, SliceOrder,
};

use super::env::{LedgerEnv, LedgerProcess};

/// Longer than all waits of a test together, even on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Starts a participant that stops in the middle of a reservation.
fn spawn_frozen(env: &LedgerEnv) -> LedgerProcess {
    let mut actor = env.spawn_joined("frozen", 300);
    actor.ok("freeze 1");
    actor.send("reserve 100");
    actor.wait_until_stopped();
    actor
}

/// Returns the result of `operation`; panics if it does not return in time.
fn run_within_timeout<T: Send + 'static>(what: &str, operation: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, ends) = channel();
    std::thread::spawn(move || done.send(operation()));
    ends.recv_timeout(TIMEOUT).unwrap_or_else(|_| panic!("{what} waits for a frozen peer"))
}

#[test]
fn frozen_guard_holder_does_not_block_survey() {
    let env = LedgerEnv::new();
    let participant = Arc::new(env.open().join("b", 0, 300).unwrap());
    participant.reserve(50).unwrap();
    let actor = spawn_frozen(&env);
    let looking = participant.clone();
    let (seen, waiters) =
        run_within_timeout("a look", move || (looking.survey().unwrap(), looking.slice_queue().waiters()));
    let participants: Vec<_> = seen.iter().map(|p| (p.name.as_str(), p.is_live, p.held_bytes)).collect();
    assert_eq!(participants, [("b", true, 50), ("frozen", true, 0)]);
    assert_eq!((waiters, participant.held_bytes()), (Ok(0), 50));
    participant.release(20);
    assert_eq!(participant.survey().unwrap()[0].held_bytes, 30, "what is released needs no guard");
    drop(actor);
}

#[test]
fn frozen_guard_holder_is_reported_after_timeout() {
    let env = LedgerEnv::new();
    let ledger = env.open();
    let participant = Arc::new(ledger.join("b", 0, 300).unwrap());
    let mut actor = spawn_frozen(&env);
    let waited_ms = GUARD_PATIENCE.as_millis() as u64;
    let busy = || LedgerError::Busy { holder: "frozen (record 1)".to_owned(), waited_ms };
    type Operation = fn(&ParticipantHandle) -> Result<(), LedgerError>;
    let operations: [(&str, Operation); 6] = [
        ("reserve", |participant| participant.reserve(10)),
        ("clear", |participant| participant.clear_settled().map(drop)),
        ("void", |participant| participant.cancel_earmark(7).map(drop)),
        ("audit", |participant| participant.audit().map(drop)),
        ("request", |participant| participant.slice_queue().request(0)),
        ("earmark", |participant| participant.earmark(&participant.peer(), 0, 0, 7)),
    ];
    for (what, operation) in operations {
        let participant = participant.clone();
        assert_eq!(run_within_timeout(what, move || operation(&participant)), Err(busy()), "{what}");
    }
    let joined = run_within_timeout("join", move || ledger.join("c", 0, 100).map(drop));
    assert!(matches!(joined, Err(JoinError::Busy(error)) if error == busy()));
    let (folder, identity) = (env.folder().to_owned(), env.identity());
    let opened = run_within_timeout("open", move || GpuLedger::open(&folder, &identity).map(drop));
    assert!(matches!(opened, Err(OpenError::Busy { .. })), "{opened:?}");
    actor.resume();
    actor.answer().unwrap().unwrap();
    participant.reserve(10).unwrap();
    assert_eq!(participant.audit().unwrap().counted_bytes, 110, "nothing of what was refused is left");
    participant.slice_queue().request(0).unwrap();
    assert!(participant.slice_queue().try_acquire(SliceOrder::RoundRobin).unwrap().is_some());
}

/// A survey does not take the guard, but never shows an earmark as waiting that was already accepted.
#[test]
fn survey_during_transfers_shows_no_settled_earmark() {
    const LAST: u64 = 3000;
    let env = LedgerEnv::new();
    let (lender, borrower) = (env.open().join("a", 0, 0).unwrap(), env.open().join("b", 0, 0).unwrap());
    let watch = env.open();
    let settled = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for nonce in 1..=LAST {
                lender.reserve(10).unwrap();
                lender.earmark(&borrower.peer(), 10, 0, nonce).unwrap();
                borrower.accept(&lender.peer(), nonce, 10).unwrap();
                settled.store(nonce, Ordering::SeqCst);
                lender.clear_settled().unwrap();
                borrower.clear_settled().unwrap();
                borrower.release(10);
            }
        });
        while settled.load(Ordering::SeqCst) < LAST {
            let before = settled.load(Ordering::SeqCst);
            for mark in watch.survey().unwrap().into_iter().flat_map(|p| p.earmarks) {
                assert_eq!((mark.to, mark.bytes), (borrower.instance(), 10));
                assert!(mark.state != EarmarkState::Orphaned, "its borrower lives: {mark:?}");
                let waits = mark.state == EarmarkState::Waiting;
                assert!(!waits || mark.nonce > before, "accepted before the look ({before}): {mark:?}");
            }
        }
    });
}
