//! Negative controls: with each mechanism of the ledger disabled, the checks of the other tests must fail.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sluice_memory::gpu_ledger::{LedgerAudit, LedgerError, LedgerFaults, ParticipantHandle};

use super::env::LedgerEnv;
use super::kills;

/// How long a write waits for a participant that the guard excludes, so that it cannot answer in time.
const GAP: Duration = Duration::from_millis(50);
/// How long a write waits for a participant that nothing excludes.
const LONG: Duration = Duration::from_secs(180);

/// Runs `interrupted` while another participant reserves all free bytes just before write number `at_write`.
fn run_interrupted(
    faults: LedgerFaults,
    at_write: u32,
    interrupted: impl Fn(&ParticipantHandle, &ParticipantHandle),
) -> Result<LedgerAudit, LedgerError> {
    let env = LedgerEnv::new();
    let (reached, reached_in) = channel::<()>();
    let (answered, answer) = channel::<()>();
    let armed = Arc::new(AtomicBool::new(false));
    let gap = if faults.unlocked_reserve || faults.subtract_first { LONG } else { GAP };
    let tap = interruption(Arc::clone(&armed), (at_write, gap), reached.clone(), answer);
    let participant =
        env.open_with(LedgerFaults { before_write: Some(tap), ..faults }).join("a", 0, 0).unwrap();
    let (other, third) = (env.open().join("b", 0, 0).unwrap(), env.open().join("c", 0, 0).unwrap());
    participant.reserve(900).unwrap();
    std::thread::scope(|scope| {
        let other = &other;
        scope.spawn(move || {
            reached_in.recv().unwrap();
            // The reservation may be refused; only the sum afterwards matters.
            let _ = other.reserve(100);
            let _ = answered.send(());
        });
        armed.store(true, Ordering::SeqCst);
        interrupted(&participant, &third);
        // Start the other participant now if the write was never reached.
        let _ = reached.send(());
    });
    env.open().audit()
}

/// Returns a hook that, once armed, lets the other participant run before write number `at_write`, for at
/// most `gap`.
fn interruption(
    armed: Arc<AtomicBool>,
    (at_write, gap): (u32, Duration),
    reached: Sender<()>,
    answer: Receiver<()>,
) -> Arc<dyn Fn() + Send + Sync> {
    let state = Mutex::new((0, reached, answer));
    Arc::new(move || {
        let mut state = state.lock().unwrap();
        state.0 += u32::from(armed.load(Ordering::SeqCst));
        if armed.load(Ordering::SeqCst) && state.0 == at_write {
            state.1.send(()).unwrap();
            let _ = state.2.recv_timeout(gap);
        }
    })
}

fn reserve(participant: &ParticipantHandle, _: &ParticipantHandle) {
    let _ = participant.reserve(100);
}

#[test]
fn reserve_is_atomic_only_under_lock() {
    let good = run_interrupted(LedgerFaults::default(), 1, reserve).unwrap();
    assert_eq!(good.counted_bytes, 1000);
    let faults = LedgerFaults { unlocked_reserve: true, ..LedgerFaults::default() };
    let bad = run_interrupted(faults, 1, reserve);
    let expected = LedgerError::Overcounted { counted: 1100, unsettled: 0, capacity: 1000 };
    assert_eq!(bad, Err(expected));
}

/// Reserves the remaining 100 bytes and earmarks 100.
fn earmark(participant: &ParticipantHandle, to: &ParticipantHandle) {
    participant.reserve(100).unwrap();
    participant.earmark(&to.peer(), 100, 0, 7).unwrap();
}

#[test]
fn an_earmark_is_written_before_its_bytes_are_subtracted() {
    // The first write is that of `reserve`; each of the others is tried.
    for at_write in 2..=7 {
        let good = run_interrupted(LedgerFaults::default(), at_write, earmark).unwrap();
        assert_eq!(good.counted_bytes, 1000, "at write {at_write}");
    }
    let faults = LedgerFaults { subtract_first: true, ..LedgerFaults::default() };
    // Between the subtraction and the earmark's first word.
    let bad = run_interrupted(faults, 3, earmark);
    let expected = LedgerError::Overcounted { counted: 1100, unsettled: 0, capacity: 1000 };
    assert_eq!(bad, Err(expected));
}

#[test]
fn lost_earmark_fault_is_detected() {
    assert_eq!(kills::transfer_with(None), Ok(()));
    let error = kills::transfer_with(Some("lose_earmark")).unwrap_err();
    assert!(error.contains("900 bytes counted"), "{error}");
}
