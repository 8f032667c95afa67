//! Joining, reserving and transferring within one process.

use sluice_memory::gpu_ledger::{
    ClearedTransfers, GpuLedger, JoinError, LedgerError, ParticipantHandle, Peer, TRANSFERS,
};

use super::env::{CAPACITY, LedgerEnv};

/// Returns two participants that hold all memory, and a ledger to observe them.
pub fn full_ledger() -> (LedgerEnv, GpuLedger, ParticipantHandle, ParticipantHandle) {
    let env = LedgerEnv::new();
    let (a, b) = (env.open().join("a", 100, 600).unwrap(), env.open().join("b", 100, 400).unwrap());
    a.reserve(600).unwrap();
    b.reserve(400).unwrap();
    let watch = env.open();
    (env, watch, a, b)
}

#[test]
fn join_rejects_floors_and_shares_above_capacity() {
    let env = LedgerEnv::new();
    let ledger = env.open();
    let a = ledger.join("a", 700, 800).unwrap();
    let floor = ledger.join("b", 301, 301).unwrap_err();
    let text = "the floors sum to 700 bytes, and 301 more exceed the capacity of 1000 bytes";
    assert_eq!(floor.to_string(), text);
    let share = ledger.join("b", 100, 201).unwrap_err();
    assert_eq!(
        share.to_string(),
        "the shares sum to 800 bytes, and 201 more exceed the capacity of 1000 bytes"
    );
    assert!(matches!(ledger.join("b", 2, 1), Err(JoinError::ShareBelowFloor { .. })));
    ledger.join("b", 100, 200).unwrap();
    env.end(a);
    ledger.join("c", 1000, 1000).unwrap();
}

#[test]
fn name_is_in_use_while_owner_lives() {
    let env = LedgerEnv::new();
    let a = env.open().join("a", 0, 0).unwrap();
    assert!(matches!(env.open().join("a", 0, 0), Err(JoinError::NameInUse { index: 0, .. })));
    let first = a.instance();
    env.end(a);
    assert_ne!(env.open().join("a", 0, 0).unwrap().instance(), first);
    for name in [String::new(), "n".repeat(257)] {
        assert!(matches!(env.open().join(&name, 0, 0), Err(JoinError::InvalidName { .. })));
    }
    let longest = env.open().join(&"n".repeat(256), 0, 0).unwrap();
    let survey = longest.survey().unwrap();
    let own = survey.iter().find(|one| one.peer == longest.peer()).unwrap();
    assert_eq!(own.name, "n".repeat(256));
}

#[test]
fn reserved_bytes_never_exceed_capacity() {
    let (_stage, watch, a, b) = full_ledger();
    let refused = LedgerError::OutOfMemory { counted: 1000, capacity: CAPACITY, asked: 1 };
    assert_eq!(b.reserve(1), Err(refused));
    assert!(b.reserve(u64::MAX).is_err());
    a.release(50);
    b.reserve(50).unwrap();
    assert_eq!(watch.audit().unwrap().participants, [(a.peer(), 550), (b.peer(), 450)]);
}

#[test]
fn memory_of_dead_participant_is_free() {
    let (env, watch, a, b) = full_ledger();
    env.end(a);
    let of_a = &watch.survey().unwrap()[0];
    assert!(!of_a.is_live && of_a.held_bytes == 600, "{of_a:?}");
    b.reserve(600).unwrap();
    assert_eq!(watch.audit().unwrap().counted_bytes, 1000);
}

#[test]
#[should_panic(expected = "601 bytes are given back of 600 that are held")]
fn releasing_more_than_held_panics() {
    let (_stage, _watch, a, _b) = full_ledger();
    a.release(601);
}

#[test]
fn a_transfer_counts_its_bytes_once_at_every_step() {
    let (_stage, watch, a, b) = full_ledger();
    let counts = || {
        let audit = watch.audit().unwrap();
        assert_eq!(audit.counted_bytes, 1000);
        [audit.participants[0].1, audit.participants[1].1]
    };
    a.earmark(&b.peer(), 100, 0, 7).unwrap();
    assert_eq!((a.held_bytes(), counts()), (500, [600, 400]));
    assert_eq!(b.accept(&a.peer(), 7, 100), Ok(()));
    assert_eq!(counts(), [500, 500]);
    // The borrower keeps the nonce until the lender has cleared the earmark.
    assert_eq!(b.clear_settled(), Ok(ClearedTransfers { earmarks: 0, nonces: 0 }));
    assert_eq!(a.clear_settled(), Ok(ClearedTransfers { earmarks: 1, nonces: 0 }));
    assert_eq!(counts(), [500, 500]);
    assert_eq!(b.clear_settled(), Ok(ClearedTransfers { earmarks: 0, nonces: 1 }));
    assert_eq!(counts(), [500, 500]);
    let survey = watch.survey().unwrap();
    assert!(survey.iter().all(|one| one.earmarks.is_empty() && one.accepted.is_empty()));
}

#[test]
fn only_named_borrower_can_accept_earmark() {
    let (env, watch, a, b) = full_ledger();
    let c = env.open().join("c", 0, 0).unwrap();
    a.earmark(&b.peer(), 100, 0, 1).unwrap();
    assert_eq!(c.accept(&a.peer(), 1, 100), Err(LedgerError::NoEarmark { nonce: 1 }));
    // The same nonce of another lender is another earmark.
    b.earmark(&c.peer(), 10, 0, 1).unwrap();
    a.earmark(&c.peer(), 20, 0, 2).unwrap();
    b.earmark(&c.peer(), 30, 0, 2).unwrap();
    assert_eq!(c.accept(&b.peer(), 1, 10), Ok(()));
    assert_eq!(c.accept(&b.peer(), 2, 30), Ok(()));
    assert_eq!(watch.audit().unwrap().counted_bytes, 1000);
    assert_eq!(c.accept(&a.peer(), 2, 20), Ok(()));
    assert_eq!(b.accept(&a.peer(), 1, 100), Ok(()));
    assert_eq!((a.held_bytes(), b.held_bytes(), c.held_bytes()), (480, 460, 60));
}

#[test]
fn invalid_earmarks_are_refused_without_effect() {
    let (_stage, watch, a, b) = full_ledger();
    let other_life = Peer { instance: b.instance() + 100, ..b.peer() };
    let nowhere = Peer { index: 9999, instance: 1 };
    a.earmark(&b.peer(), 10, 0, 5).unwrap();
    b.accept(&a.peer(), 5, 10).unwrap();
    a.clear_settled().unwrap();
    let before = watch.survey().unwrap();
    assert_eq!(a.earmark(&b.peer(), 591, 0, 1), Err(LedgerError::NotHeld { held: 590, asked: 591 }));
    assert_eq!(a.earmark(&b.peer(), 1, 0, 0), Err(LedgerError::InvalidNonce { nonce: 0 }));
    assert_eq!(a.earmark(&a.peer(), 1, 0, 1), Err(LedgerError::InvalidNonce { nonce: 1 }));
    for peer in [other_life, nowhere, Peer { index: 5, instance: 0 }] {
        assert_eq!(a.earmark(&peer, 1, 0, 1), Err(LedgerError::PeerDead { peer }));
        assert_eq!(a.accept(&peer, 1, 1), Err(LedgerError::PeerDead { peer }));
    }
    assert_eq!(watch.survey().unwrap(), before);
}

/// A loan is returned in parts under one nonce, and neither side clears between two of them.
#[test]
fn reused_nonce_waits_only_for_its_last_transfer() {
    let (_stage, watch, a, b) = full_ledger();
    a.earmark(&b.peer(), 10, 0, 5).unwrap();
    assert_eq!(
        a.earmark(&b.peer(), 20, 0, 5),
        Err(LedgerError::InvalidNonce { nonce: 5 }),
        "the last part waits"
    );
    b.accept(&a.peer(), 5, 10).unwrap();
    a.earmark(&b.peer(), 20, 0, 5).unwrap();
    let counted = || watch.audit().unwrap().counted_bytes;
    assert_eq!((a.held_bytes(), b.held_bytes(), counted()), (570, 410, 1000), "it is not taken for accepted");
    b.accept(&a.peer(), 5, 20).unwrap();
    // The lender's call alone clears the last part.
    a.clear_settled().unwrap();
    a.earmark(&b.peer(), 30, 0, 5).unwrap();
    assert_eq!(counted(), 1000);
    assert_eq!(a.cancel_earmark(5), Ok(30));
    assert_eq!((a.held_bytes(), b.held_bytes(), counted()), (540, 430, 970));
}

#[test]
fn earmark_of_dead_lender_cannot_be_accepted() {
    let (env, watch, a, b) = full_ledger();
    let c = env.open().join("c", 0, 0).unwrap();
    let peer = a.peer();
    a.earmark(&b.peer(), 100, 0, 7).unwrap();
    env.end(a);
    c.reserve(600).unwrap();
    assert_eq!(b.accept(&peer, 7, 100), Err(LedgerError::PeerDead { peer }));
    assert_eq!(watch.audit().unwrap().counted_bytes, 1000);
    // Nor after another instance has claimed its record.
    let heir = env.open().join("a", 0, 0).unwrap();
    assert_eq!(heir.index(), peer.index);
    assert_eq!(b.accept(&peer, 7, 100), Err(LedgerError::PeerDead { peer }));
    assert_eq!(b.accept(&heir.peer(), 7, 100), Err(LedgerError::NoEarmark { nonce: 7 }));
}

#[test]
fn pending_transfers_are_limited() {
    let (_stage, _watch, a, b) = full_ledger();
    for nonce in 1..=TRANSFERS as u64 {
        a.earmark(&b.peer(), 1, 0, nonce).unwrap();
    }
    assert_eq!(a.earmark(&b.peer(), 1, 0, 1000), Err(LedgerError::TooManyTransfers { limit: TRANSFERS }));
    for nonce in 1..=TRANSFERS as u64 {
        b.accept(&a.peer(), nonce, 1).unwrap();
    }
    a.clear_settled().unwrap();
    a.earmark(&b.peer(), 1, 0, 1000).unwrap();
    assert_eq!(b.accept(&a.peer(), 1000, 1), Err(LedgerError::TooManyTransfers { limit: TRANSFERS }));
    assert_eq!(b.clear_settled(), Ok(ClearedTransfers { earmarks: 0, nonces: TRANSFERS }));
    b.accept(&a.peer(), 1000, 1).unwrap();
    assert_eq!((a.held_bytes(), b.held_bytes()), (600 - 65, 400 + 65));
}

#[test]
fn new_instance_in_reused_record_holds_nothing() {
    let (env, watch, a, b) = full_ledger();
    a.earmark(&b.peer(), 100, 0, 7).unwrap();
    b.earmark(&a.peer(), 30, 0, 8).unwrap();
    a.accept(&b.peer(), 8, 30).unwrap();
    a.slice_queue().request(1).unwrap();
    env.end(a);
    let heir = env.open().join("heir", 1, 2).unwrap();
    assert_eq!(heir.index(), 0);
    let of_heir = &watch.survey().unwrap()[0];
    assert_eq!((of_heir.held_bytes, of_heir.floor_bytes, of_heir.share_bytes), (0, 1, 2));
    assert!(of_heir.earmarks.is_empty() && of_heir.accepted.is_empty() && !of_heir.is_waiting);
    assert_eq!((of_heir.name.as_str(), of_heir.is_live, of_heir.has_slice), ("heir", true, false));
}
