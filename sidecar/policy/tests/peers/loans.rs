//! Tests the loan book case by case.

use sluice_policy::ids::Nanos;
use sluice_policy::peers::Peer;
use sluice_policy::peers::loans::{
    DeadPeerLoans, LoanBook, LoanError, Nonce, Recall, ReturnEffect, ReturnOrder,
};

const A: Peer = Peer { index: 0, instance: 7 };
const B: Peer = Peer { index: 1, instance: 8 };
const TTL: Nanos = Nanos(1000);

/// A lends 10 chunks to B.
fn lent() -> (LoanBook, LoanBook, Nonce) {
    let (mut a, mut b) = (LoanBook::new(A, 50, 20), LoanBook::new(B, 30, 10));
    let nonce = b.ask(A, 10);
    a.lent(nonce, B, 10, TTL).expect("it fits");
    b.granted(nonce, A, 10, TTL).expect("it was asked for");
    (a, b, nonce)
}

/// Checks that `order` is rejected with `misfit` and leaves the book unchanged.
#[track_caller]
fn refuses<T: std::fmt::Debug>(
    book: &mut LoanBook,
    misfit: LoanError,
    order: impl FnOnce(&mut LoanBook) -> Result<T, LoanError>,
) {
    let before = book.clone();
    assert_eq!(order(book).expect_err("it does not fit"), misfit);
    assert_eq!(*book, before);
}

#[test]
fn lender_releases_before_borrower_creates() {
    let (mut a, mut b) = (LoanBook::new(A, 50, 20), LoanBook::new(B, 30, 10));
    let nonce = b.ask(A, 10);
    assert_eq!((a.budget(), b.budget()), (50, 30));
    a.lent(nonce, B, 10, TTL).expect("it fits");
    assert_eq!((a.budget(), b.budget()), (40, 30));
    b.granted(nonce, A, 10, TTL).expect("it was asked for");
    assert_eq!((a.budget(), b.budget()), (40, 40));
    assert_eq!(b.on_gave_back(nonce, 4), Ok(ReturnEffect { nonce, to: Some(A), chunks: 4 }));
    assert_eq!((a.budget(), b.budget()), (40, 36));
    a.returned(nonce, B, 4).expect("4 of 10");
    assert_eq!((a.budget(), b.budget()), (44, 36));
    b.on_gave_back(nonce, 6).expect("the rest");
    a.returned(nonce, B, 6).expect("the rest");
    assert_eq!((a.budget(), b.budget()), (50, 30));
    assert!(a.loans_out().is_empty() && b.loans_in().is_empty());
}

#[test]
fn grant_can_be_smaller_than_request() {
    let mut b = LoanBook::new(B, 30, 10);
    let nonce = b.ask(A, 10);
    b.granted(nonce, A, 3, TTL).expect("3 of 10");
    assert_eq!(b.budget(), 33);
}

#[test]
fn floor_is_not_lent() {
    let mut a = LoanBook::new(A, 50, 20);
    assert_eq!(a.unlent_chunks_above_floor(), 30);
    refuses(&mut a, LoanError::BelowFloor { asked: 31, lendable: 30 }, |a| a.lent(Nonce(1), B, 31, TTL));
    a.lent(Nonce(1), B, 30, TTL).expect("down to the floor");
    assert_eq!((a.budget(), a.unlent_chunks_above_floor()), (20, 0));
}

#[test]
fn borrowed_chunks_are_not_lent() {
    let (_, b, _) = lent();
    assert_eq!((b.budget(), b.unlent_chunks_above_floor()), (40, 20), "share 30 less floor 10");
}

#[test]
fn sleeping_tenant_lends_floor_unless_missing() {
    let mut a = LoanBook::new(A, 50, 20);
    a.set_floor(0);
    a.lent(Nonce(1), B, 45, TTL).expect("it needs nothing");
    assert_eq!((a.budget(), a.unlent_chunks_above_floor()), (5, 5));
    a.set_floor(20);
    assert_eq!((a.budget(), a.unlent_chunks_above_floor()), (5, 0));
    a.returned(Nonce(1), B, 20).expect("20 of 45");
    assert_eq!((a.budget(), a.unlent_chunks_above_floor()), (25, 5));
}

#[test]
fn nonces_are_unique_across_instances() {
    let mut names = std::collections::BTreeSet::new();
    for instance in [7, 8, 9, (1 << 40) + 1] {
        let mut book = LoanBook::new(Peer { index: 1, instance }, 30, 10);
        names.extend((0..100).map(|_| book.ask(A, 1)));
    }
    assert_eq!(names.len(), 400);
    assert!(!names.contains(&Nonce(0)));
}

#[test]
fn duplicate_ask_is_answered_once() {
    let (mut a, mut b, nonce) = lent();
    refuses(&mut a, LoanError::Replayed { nonce, answered: nonce }, |a| a.lent(nonce, B, 10, TTL));
    b.on_gave_back(nonce, 10).expect("all");
    a.returned(nonce, B, 10).expect("all");
    refuses(&mut a, LoanError::Replayed { nonce, answered: nonce }, |a| a.lent(nonce, B, 10, TTL));
    let next = b.ask(A, 10);
    a.lent(next, B, 10, TTL).expect("a new one");
}

#[test]
fn unexpected_answer_is_refused_and_bytes_return() {
    let (mut a, mut b) = (LoanBook::new(A, 50, 20), LoanBook::new(B, 30, 10));
    let nonce = b.ask(A, 10);
    a.lent(nonce, B, 10, TTL).expect("it fits");
    assert_eq!(b.timed_out(nonce), Ok(A));
    refuses(&mut b, LoanError::UnknownNonce { nonce }, |b| b.granted(nonce, A, 10, TTL));
    assert_eq!(a.on_taken_back(nonce), Ok(10));
    assert_eq!((a.budget(), b.budget()), (50, 30));
}

#[test]
fn revocation_before_answer_cancels_grant() {
    let mut b = LoanBook::new(B, 30, 10);
    let nonce = b.ask(A, 10);
    assert_eq!(b.revoked(nonce, A, 10), Ok(ReturnOrder { nonce, peer: A, chunks: 0 }));
    refuses(&mut b, LoanError::UnknownNonce { nonce }, |b| b.granted(nonce, A, 10, TTL));
}

#[test]
fn refusal_ends_ask_but_not_grant() {
    let mut b = LoanBook::new(B, 30, 10);
    let nonce = b.ask(A, 10);
    let other = Peer { instance: 9, ..A };
    refuses(&mut b, LoanError::WrongPeer { nonce, expected: A, got: other }, |b| b.refused(nonce, other));
    b.refused(nonce, A).expect("it was asked");
    assert!(b.loans_in().is_empty());
    let (_, mut b, nonce) = lent();
    refuses(&mut b, LoanError::AlreadyGranted { nonce }, |b| b.refused(nonce, A));
    refuses(&mut b, LoanError::AlreadyGranted { nonce }, |b| b.timed_out(nonce));
}

#[test]
fn unexpected_messages_change_nothing() {
    let (mut a, mut b, nonce) = lent();
    let (none, other) = (Nonce(3), Peer { instance: 99, ..B });
    let wrong = LoanError::WrongPeer { nonce, expected: B, got: other };
    refuses(&mut a, LoanError::UnknownNonce { nonce: none }, |a| a.returned(none, B, 1));
    refuses(&mut a, LoanError::UnknownNonce { nonce: none }, |a| a.revoke(none, 1));
    refuses(&mut a, wrong, |a| a.returned(nonce, other, 1));
    refuses(&mut a, wrong, |a| a.renew(nonce, other, Nanos(9000)));
    refuses(&mut a, LoanError::MoreThanLent { nonce, lent: 10, returned: 11 }, |a| a.returned(nonce, B, 11));
    refuses(&mut a, LoanError::NoChunks { nonce }, |a| a.returned(nonce, B, 0));
    refuses(&mut a, LoanError::NoChunks { nonce: none }, |a| a.lent(none, B, 0, TTL));
    refuses(&mut b, LoanError::AlreadyGranted { nonce }, |b| b.granted(nonce, A, 10, TTL));
    refuses(&mut b, LoanError::MoreThanLent { nonce, lent: 10, returned: 11 }, |b| b.on_gave_back(nonce, 11));
    refuses(&mut b, LoanError::NoChunks { nonce }, |b| b.on_gave_back(nonce, 0));
    let next = b.ask(A, 4);
    refuses(&mut b, LoanError::NotGranted { nonce: next }, |b| b.on_gave_back(next, 1));
    refuses(&mut b, LoanError::NotGranted { nonce: next }, |b| b.renewed(next, A, TTL));
    refuses(&mut b, LoanError::MoreThanAsked { nonce: next, asked: 4, granted: 5 }, |b| {
        b.granted(next, A, 5, TTL)
    });
    refuses(&mut b, LoanError::NoChunks { nonce: next }, |b| b.granted(next, A, 0, TTL));
}

#[test]
fn partly_returned_earmark_is_not_taken_back() {
    let (mut a, _, nonce) = lent();
    a.returned(nonce, B, 1).expect("1 of 10");
    refuses(&mut a, LoanError::Accepted { nonce }, |a| a.on_taken_back(nonce));
}

#[test]
fn revocation_is_idempotent() {
    let (mut a, mut b, nonce) = lent();
    assert_eq!(a.revoke(nonce, 6), Ok(Recall { nonce, peer: B, chunks: 6 }));
    assert_eq!(a.revoke(nonce, 6), Ok(Recall { nonce, peer: B, chunks: 6 }));
    for _ in 0..2 {
        assert_eq!(b.revoked(nonce, A, 6), Ok(ReturnOrder { nonce, peer: A, chunks: 6 }));
    }
    b.on_gave_back(nonce, 4).expect("4 of 6");
    a.returned(nonce, B, 4).expect("4 of 6");
    assert_eq!(b.loans_in()[0].vacating(), 2);
    assert_eq!(a.revoke(nonce, 0), Ok(Recall { nonce, peer: B, chunks: 2 }));
    assert_eq!(a.revoke(nonce, 99), Ok(Recall { nonce, peer: B, chunks: 6 }), "all that is away");
}

#[test]
fn expiry_makes_borrower_vacate_without_transfer() {
    let (a, mut b, nonce) = lent();
    assert_eq!(b.expired(Nanos(999)), []);
    assert_eq!(a.overdue(Nanos(999)).count(), 0);
    assert_eq!(b.expired(TTL), [ReturnOrder { nonce, peer: A, chunks: 10 }]);
    assert_eq!(b.expired(TTL), [], "said once");
    assert_eq!(b.loans_in()[0].vacating(), 10, "and kept");
    assert_eq!(a.overdue(TTL).count(), 1);
    assert_eq!((a.budget(), b.budget()), (40, 40));
}

#[test]
fn renewal_only_lengthens() {
    let (mut a, mut b, nonce) = lent();
    assert_eq!(a.renew(nonce, B, Nanos(3000)), Ok(Nanos(3000)));
    assert_eq!(a.renew(nonce, B, Nanos(2000)), Ok(Nanos(3000)));
    b.renewed(nonce, A, Nanos(3000)).expect("it is held");
    b.renewed(nonce, A, Nanos(2000)).expect("an old answer");
    assert_eq!(b.expired(Nanos(2999)), []);
    assert_eq!(b.expired(Nanos(3000)).len(), 1);
    refuses(&mut b, LoanError::NotRenewable { nonce }, |b| b.renewed(nonce, A, Nanos(4000)));
    a.revoke(nonce, 10).expect("it is away");
    refuses(&mut a, LoanError::NotRenewable { nonce }, |a| a.renew(nonce, B, Nanos(4000)));
}

#[test]
fn borrower_exit_frees_only_its_instance() {
    let (mut a, _, nonce) = lent();
    let former = Peer { instance: 3, ..B };
    assert_eq!(a.on_peer_exit(former), DeadPeerLoans::default());
    assert_eq!(a.budget(), 40);
    a.returned(nonce, B, 4).expect("4 of 10");
    let freed: Vec<_> = a.on_peer_exit(B).freed.iter().map(|given| (given.nonce, given.chunks)).collect();
    assert_eq!(freed, [(nonce, 6)]);
    assert_eq!(a, LoanBook::new(A, 50, 20), "nothing is kept of the dead");
    refuses(&mut a, LoanError::UnknownNonce { nonce }, |a| a.returned(nonce, B, 6));
}

#[test]
fn loans_of_dead_lender_are_vacated_without_recipient() {
    let (_, mut b, nonce) = lent();
    let asked = b.ask(A, 5);
    assert_eq!(b.loans_in_from(A.index), 10);
    let vacate = vec![ReturnOrder { nonce, peer: A, chunks: 10 }];
    assert_eq!(b.on_peer_exit(A), DeadPeerLoans { freed: Vec::new(), vacate });
    assert_eq!(b.budget(), 40, "until it has left");
    refuses(&mut b, LoanError::UnknownNonce { nonce: asked }, |b| b.granted(asked, A, 5, TTL));
    assert_eq!(b.on_gave_back(nonce, 10), Ok(ReturnEffect { nonce, to: None, chunks: 10 }));
    assert_eq!((b.budget(), b.loans_in_from(A.index)), (30, 0));
}

#[test]
fn loan_error_shows_request_and_reason() {
    let text = LoanError::MoreThanLent { nonce: Nonce(0x2a), lent: 3, returned: 4 }.to_string();
    assert_eq!(text, "grant 0x2a returns 4 chunks, but 3 are lent");
    let wrong = LoanError::WrongPeer { nonce: Nonce(1), expected: A, got: B }.to_string();
    assert_eq!(wrong, "grant 0x1 is with participant 0 in life 7, not with 1 in life 8");
}
