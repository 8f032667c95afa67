//! Earmarks that come to nothing.

use sluice_memory::neighbourhood::LedgerError;

use super::seats::full;

#[test]
fn an_earmark_of_another_size_than_announced_stays_with_its_lender() {
    let (_stage, watch, a, b) = full();
    a.earmark(&b.peer(), 100, 7).unwrap();
    let other = LedgerError::OtherBytes { nonce: 7, earmarked: 100 };
    assert_eq!(b.accept_exactly(&a.peer(), 7, 60), Err(other));
    assert_eq!((b.held_bytes(), watch.audit().unwrap().counted_bytes), (400, 1000), "nothing has changed");
    assert_eq!(a.take_back(7), Ok(100));
    a.earmark(&b.peer(), 100, 8).unwrap();
    assert_eq!(b.accept_exactly(&a.peer(), 8, 100), Ok(()));
    assert_eq!((a.held_bytes(), b.held_bytes()), (500, 500));
}

#[test]
fn a_void_earmark_is_nobodys_unless_it_was_accepted() {
    let (_stage, watch, a, b) = full();
    a.earmark(&b.peer(), 100, 1).unwrap();
    a.earmark(&b.peer(), 50, 2).unwrap();
    b.accept(&a.peer(), 2).unwrap();
    assert_eq!(a.void(1), Ok(100));
    assert_eq!(b.accept(&a.peer(), 1), Err(LedgerError::NoEarmark { nonce: 1 }));
    assert_eq!(a.void(1), Err(LedgerError::NoEarmark { nonce: 1 }));
    assert_eq!(a.void(2), Err(LedgerError::Accepted { nonce: 2 }));
    assert_eq!((a.held_bytes(), b.held_bytes()), (450, 450));
    assert_eq!(watch.audit().unwrap().counted_bytes, 900);
}
