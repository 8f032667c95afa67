//! The ledger file behind the pool of chunks.

use sluice_agent::neighbours::quota::SeatQuota;
use sluice_memory::gpu_ledger::TRANSFERS;
use sluice_memory::{Quota, QuotaError};
use sluice_policy::action::Earmark;
use sluice_policy::peers::Peer;
use sluice_policy::peers::loans::Nonce;

use super::desk::{CHUNK, seats};

#[test]
fn a_promise_of_another_size_than_announced_goes_back_to_its_lender_whole() {
    let (_folder, [lender, borrower]) = seats(["story", "code"]);
    lender.reserve(10 * CHUNK).unwrap();
    lender.earmark(&borrower.peer(), 4 * CHUNK, 0, 9).unwrap();
    let quota = SeatQuota(borrower.clone());
    let earmark = Earmark { peer: lender.peer(), nonce: Nonce(9) };
    assert!(quota.accept(earmark, 3 * CHUNK).is_err());
    let counted = || lender.audit().unwrap().counted_bytes;
    assert_eq!((borrower.held_bytes(), counted()), (0, 10 * CHUNK), "no byte is lost");
    assert_eq!(lender.cancel_earmark(9), Ok(4 * CHUNK));
    assert_eq!((lender.held_bytes(), counted()), (6 * CHUNK, 6 * CHUNK));
}

#[test]
fn a_debt_to_the_dead_needs_no_bytes_that_the_next_life_has_taken() {
    let (_folder, [other, borrower]) = seats(["story", "code"]);
    let dead = Peer { instance: other.peer().instance + 1000, ..other.peer() };
    let capacity = borrower.audit().unwrap().capacity_bytes;
    other.reserve(capacity - 3 * CHUNK).unwrap();
    borrower.reserve(3 * CHUNK).unwrap();
    let debt = Earmark { peer: dead, nonce: Nonce(9) };
    SeatQuota(borrower.clone()).earmark(debt, CHUNK, CHUNK).unwrap();
    assert_eq!(borrower.held_bytes(), 2 * CHUNK, "one that existed and one that never did");
}

#[test]
fn a_full_ledger_is_busy_until_transfers_are_settled() {
    let (_folder, [lender, borrower]) = seats(["story", "code"]);
    let transfers = TRANSFERS as u64;
    lender.reserve((transfers + 1) * CHUNK).unwrap();
    let (lends, takes) = (SeatQuota(lender.clone()), SeatQuota(borrower.clone()));
    let to = |nonce| Earmark { peer: borrower.peer(), nonce: Nonce(nonce) };
    let from = |nonce| Earmark { peer: lender.peer(), nonce: Nonce(nonce) };
    let busy = |result: Result<(), QuotaError>| matches!(result, Err(QuotaError::Busy(_)));
    (1..=transfers).for_each(|nonce| lends.earmark(to(nonce), CHUNK, 0).unwrap());
    assert!(busy(lends.earmark(to(1000), CHUNK, 0)));
    assert_eq!(lender.held_bytes(), CHUNK, "the bytes of the refused loan stay with the lender");

    (1..=transfers).for_each(|nonce| takes.accept(from(nonce), CHUNK).unwrap());
    lender.clear_settled().unwrap();
    lends.earmark(to(1000), CHUNK, 0).unwrap();
    assert!(busy(takes.accept(from(1000), CHUNK)));
    borrower.clear_settled().unwrap();
    takes.accept(from(1000), CHUNK).unwrap();
    assert_eq!((lender.held_bytes(), borrower.held_bytes()), (0, (transfers + 1) * CHUNK));
}
