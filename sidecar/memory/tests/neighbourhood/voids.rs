//! Earmarks that come to nothing.

use sluice_memory::neighbourhood::{Cleared, EarmarkState, LedgerError};

use super::seats::full;

#[test]
fn an_earmark_of_another_size_than_announced_stays_with_its_lender() {
    let (_stage, watch, a, b) = full();
    a.earmark(&b.peer(), 100, 0, 7).unwrap();
    let other = LedgerError::OtherBytes { nonce: 7, earmarked: 100 };
    assert_eq!(b.accept(&a.peer(), 7, 60), Err(other));
    assert_eq!((b.held_bytes(), watch.audit().unwrap().counted_bytes), (400, 1000), "nothing has changed");
    assert_eq!(a.void(7), Ok(100));
    assert_eq!(watch.audit().unwrap().counted_bytes, 900);
}

#[test]
fn an_earmark_is_accepted_or_void_but_never_both() {
    let (_stage, watch, a, b) = full();
    a.earmark(&b.peer(), 100, 0, 1).unwrap();
    a.earmark(&b.peer(), 50, 0, 2).unwrap();
    b.accept(&a.peer(), 2, 50).unwrap();
    assert_eq!(a.void(1), Ok(100));
    assert_eq!(b.accept(&a.peer(), 1, 100), Err(LedgerError::NoEarmark { nonce: 1 }));
    assert_eq!(a.void(1), Err(LedgerError::NoEarmark { nonce: 1 }));
    assert_eq!(a.void(2), Err(LedgerError::Accepted { nonce: 2 }));
    assert_eq!(b.accept(&a.peer(), 2, 50), Err(LedgerError::Accepted { nonce: 2 }));
    a.clear().unwrap();
    assert_eq!(a.void(2), Err(LedgerError::NoEarmark { nonce: 2 }));
    assert_eq!((a.held_bytes(), b.held_bytes()), (450, 450));
    assert_eq!(watch.audit().unwrap().counted_bytes, 900);
}

#[test]
fn what_was_earmarked_for_the_dead_is_nobodys_and_leaves_its_place() {
    let (stage, watch, a, b) = full();
    for nonce in [6, 7] {
        a.earmark(&b.peer(), 100, 0, nonce).unwrap();
    }
    stage.end(b);
    assert_eq!(watch.survey().unwrap()[0].earmarks[0].state, EarmarkState::Orphaned);
    assert_eq!(watch.audit().unwrap().counted_bytes, 400);
    assert_eq!(a.void(6), Ok(100));
    assert_eq!(a.clear(), Ok(Cleared { earmarks: 1, nonces: 0 }));
    assert_eq!(watch.survey().unwrap()[0].earmarks, []);
    assert_eq!(watch.audit().unwrap().counted_bytes, 400);
}

#[test]
fn bytes_that_a_borrower_accepted_and_gave_back_do_not_count_again_when_it_dies() {
    let (stage, watch, a, b) = full();
    a.earmark(&b.peer(), 100, 0, 7).unwrap();
    b.accept(&a.peer(), 7, 100).unwrap();
    b.release(100);
    a.reserve(100).unwrap();
    stage.end(b);
    assert_eq!(watch.audit().unwrap().counted_bytes, 600);
    assert_eq!(a.clear(), Ok(Cleared { earmarks: 1, nonces: 0 }));
    assert_eq!(watch.audit().unwrap().counted_bytes, 600);
}

#[test]
fn spare_bytes_are_promised_only_if_they_fit() {
    let (_stage, watch, a, b) = full();
    let refused = LedgerError::OutOfMemory { counted: 1000, capacity: 1000, asked: 20 };
    assert_eq!(a.earmark(&b.peer(), 100, 20, 1), Err(refused));
    assert_eq!(a.held_bytes(), 600, "nothing has changed");
    a.release(20);
    a.earmark(&b.peer(), 100, 20, 1).unwrap();
    assert_eq!((a.held_bytes(), watch.audit().unwrap().counted_bytes), (480, 1000));
    b.accept(&a.peer(), 1, 120).unwrap();
    assert_eq!((b.held_bytes(), watch.audit().unwrap().counted_bytes), (520, 1000));
}
