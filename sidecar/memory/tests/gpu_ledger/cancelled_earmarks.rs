//! Earmarks that are not accepted.

use sluice_memory::gpu_ledger::{ClearedTransfers, EarmarkState, LedgerError};

use super::participants::full_ledger;

#[test]
fn earmark_of_wrong_size_stays_with_lender() {
    let (_stage, watch, a, b) = full_ledger();
    a.earmark(&b.peer(), 100, 0, 7).unwrap();
    let other = LedgerError::EarmarkSizeMismatch { nonce: 7, earmarked: 100 };
    assert_eq!(b.accept(&a.peer(), 7, 60), Err(other));
    assert_eq!((b.held_bytes(), watch.audit().unwrap().counted_bytes), (400, 1000), "nothing has changed");
    assert_eq!(a.cancel_earmark(7), Ok(100));
    assert_eq!(watch.audit().unwrap().counted_bytes, 900);
}

#[test]
fn earmark_is_accepted_or_cancelled_but_never_both() {
    let (_stage, watch, a, b) = full_ledger();
    a.earmark(&b.peer(), 100, 0, 1).unwrap();
    a.earmark(&b.peer(), 50, 0, 2).unwrap();
    b.accept(&a.peer(), 2, 50).unwrap();
    assert_eq!(a.cancel_earmark(1), Ok(100));
    assert_eq!(b.accept(&a.peer(), 1, 100), Err(LedgerError::NoEarmark { nonce: 1 }));
    assert_eq!(a.cancel_earmark(1), Err(LedgerError::NoEarmark { nonce: 1 }));
    assert_eq!(a.cancel_earmark(2), Err(LedgerError::AlreadyAccepted { nonce: 2 }));
    assert_eq!(b.accept(&a.peer(), 2, 50), Err(LedgerError::AlreadyAccepted { nonce: 2 }));
    a.clear_settled().unwrap();
    assert_eq!(a.cancel_earmark(2), Err(LedgerError::NoEarmark { nonce: 2 }));
    assert_eq!((a.held_bytes(), b.held_bytes()), (450, 450));
    assert_eq!(watch.audit().unwrap().counted_bytes, 900);
}

#[test]
fn earmark_for_dead_borrower_is_not_counted_and_frees_its_slot() {
    let (env, watch, a, b) = full_ledger();
    for nonce in [6, 7] {
        a.earmark(&b.peer(), 100, 0, nonce).unwrap();
    }
    env.end(b);
    assert_eq!(watch.survey().unwrap()[0].earmarks[0].state, EarmarkState::Orphaned);
    assert_eq!(watch.audit().unwrap().counted_bytes, 400);
    assert_eq!(a.cancel_earmark(6), Ok(100));
    assert_eq!(a.clear_settled(), Ok(ClearedTransfers { earmarks: 1, nonces: 0 }));
    assert_eq!(watch.survey().unwrap()[0].earmarks, []);
    assert_eq!(watch.audit().unwrap().counted_bytes, 400);
}

#[test]
fn released_bytes_do_not_count_again_after_borrower_death() {
    let (env, watch, a, b) = full_ledger();
    a.earmark(&b.peer(), 100, 0, 7).unwrap();
    b.accept(&a.peer(), 7, 100).unwrap();
    b.release(100);
    a.reserve(100).unwrap();
    env.end(b);
    assert_eq!(watch.audit().unwrap().counted_bytes, 600);
    assert_eq!(a.clear_settled(), Ok(ClearedTransfers { earmarks: 1, nonces: 0 }));
    assert_eq!(watch.audit().unwrap().counted_bytes, 600);
}

#[test]
fn spare_bytes_are_earmarked_only_if_they_fit() {
    let (_stage, watch, a, b) = full_ledger();
    let refused = LedgerError::OutOfMemory { counted: 1000, capacity: 1000, asked: 20 };
    assert_eq!(a.earmark(&b.peer(), 100, 20, 1), Err(refused));
    assert_eq!(a.held_bytes(), 600, "nothing has changed");
    a.release(20);
    a.earmark(&b.peer(), 100, 20, 1).unwrap();
    assert_eq!((a.held_bytes(), watch.audit().unwrap().counted_bytes), (480, 1000));
    b.accept(&a.peer(), 1, 120).unwrap();
    assert_eq!((b.held_bytes(), watch.audit().unwrap().counted_bytes), (520, 1000));
}
