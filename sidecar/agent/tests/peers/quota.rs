//! Tests of the pool's quota in the ledger file.

use sluice_agent::peers::quota::LedgerQuota;
use sluice_memory::gpu_ledger::TRANSFERS;
use sluice_memory::{Quota, QuotaError};
use sluice_policy::action::Earmark;
use sluice_policy::peers::Peer;
use sluice_policy::peers::loans::Nonce;

use super::pending_replies::{CHUNK, participants};

#[test]
fn loan_of_unexpected_size_is_returned_whole() {
    let (_folder, [lender, borrower]) = participants(["story", "code"]);
    lender.reserve(10 * CHUNK).unwrap();
    lender.earmark(&borrower.peer(), 4 * CHUNK, 0, 9).unwrap();
    let quota = LedgerQuota(borrower.clone());
    let earmark = Earmark { peer: lender.peer(), nonce: Nonce(9) };
    assert!(quota.accept(earmark, 3 * CHUNK).is_err());
    let counted = || lender.audit().unwrap().counted_bytes;
    assert_eq!((borrower.held_bytes(), counted()), (0, 10 * CHUNK), "no byte is lost");
    assert_eq!(lender.cancel_earmark(9), Ok(4 * CHUNK));
    assert_eq!((lender.held_bytes(), counted()), (6 * CHUNK, 6 * CHUNK));
}

#[test]
fn debt_to_exited_peer_needs_no_bytes_of_next_instance() {
    let (_folder, [other, borrower]) = participants(["story", "code"]);
    let dead = Peer { instance: other.peer().instance + 1000, ..other.peer() };
    let capacity = borrower.audit().unwrap().capacity_bytes;
    other.reserve(capacity - 3 * CHUNK).unwrap();
    borrower.reserve(3 * CHUNK).unwrap();
    let debt = Earmark { peer: dead, nonce: Nonce(9) };
    LedgerQuota(borrower.clone()).earmark(debt, CHUNK, CHUNK).unwrap();
    assert_eq!(borrower.held_bytes(), 2 * CHUNK, "one that existed and one that never did");
}

#[test]
fn full_ledger_is_busy_until_settled() {
    let (_folder, [lender, borrower]) = participants(["story", "code"]);
    let transfers = TRANSFERS as u64;
    lender.reserve((transfers + 1) * CHUNK).unwrap();
    let (lends, takes) = (LedgerQuota(lender.clone()), LedgerQuota(borrower.clone()));
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
