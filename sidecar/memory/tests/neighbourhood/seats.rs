//! Joining, reserving and handing over, within one process.

use sluice_memory::neighbourhood::{Cleared, JoinError, LedgerError, Neighbourhood, Peer, Seat, TRANSFERS};

use super::stage::{CAPACITY, Stage};

/// Two seats with all memory, and somebody else's view.
pub fn full() -> (Stage, Neighbourhood, Seat, Seat) {
    let stage = Stage::new();
    let (a, b) = (stage.open().join("a", 100, 600).unwrap(), stage.open().join("b", 100, 400).unwrap());
    a.reserve(600).unwrap();
    b.reserve(400).unwrap();
    let watch = stage.open();
    (stage, watch, a, b)
}

#[test]
fn floors_and_shares_of_the_living_fit_the_capacity() {
    let stage = Stage::new();
    let neighbourhood = stage.open();
    let a = neighbourhood.join("a", 700, 800).unwrap();
    let floor = neighbourhood.join("b", 301, 301).unwrap_err();
    let text = "the floors sum to 700 bytes; 301 more do not fit the capacity of 1000";
    assert_eq!(floor.to_string(), text);
    let share = neighbourhood.join("b", 100, 201).unwrap_err();
    assert_eq!(share.to_string(), "the shares sum to 800 bytes; 201 more do not fit the capacity of 1000");
    assert!(matches!(neighbourhood.join("b", 2, 1), Err(JoinError::ShareBelowFloor { .. })));
    neighbourhood.join("b", 100, 200).unwrap();
    stage.end(a);
    neighbourhood.join("c", 1000, 1000).unwrap();
}

#[test]
fn a_name_is_taken_as_long_as_its_owner_lives() {
    let stage = Stage::new();
    let a = stage.open().join("a", 0, 0).unwrap();
    assert!(matches!(stage.open().join("a", 0, 0), Err(JoinError::NameTaken { index: 0, .. })));
    let first = a.instance();
    stage.end(a);
    assert_ne!(stage.open().join("a", 0, 0).unwrap().instance(), first);
    for name in [String::new(), "n".repeat(257)] {
        assert!(matches!(stage.open().join(&name, 0, 0), Err(JoinError::Name { .. })));
    }
    let longest = stage.open().join(&"n".repeat(256), 0, 0).unwrap();
    let survey = longest.survey().unwrap();
    let own = survey.iter().find(|one| one.peer == longest.peer()).unwrap();
    assert_eq!(own.name, "n".repeat(256));
}

#[test]
fn what_is_reserved_never_exceeds_the_capacity() {
    let (_stage, watch, a, b) = full();
    let refused = LedgerError::OutOfMemory { counted: 1000, capacity: CAPACITY, asked: 1 };
    assert_eq!(b.reserve(1), Err(refused));
    assert!(b.reserve(u64::MAX).is_err());
    a.release(50);
    b.reserve(50).unwrap();
    assert_eq!(watch.audit().unwrap().participants, [(a.peer(), 550), (b.peer(), 450)]);
}

#[test]
fn the_memory_of_the_dead_is_free_at_once() {
    let (stage, watch, a, b) = full();
    stage.end(a);
    let of_a = &watch.survey().unwrap()[0];
    assert!(!of_a.live && of_a.held_bytes == 600, "{of_a:?}");
    b.reserve(600).unwrap();
    assert_eq!(watch.audit().unwrap().counted_bytes, 1000);
}

#[test]
#[should_panic(expected = "601 bytes are given back of 600 that are held")]
fn giving_back_what_is_not_held_is_a_broken_invariant() {
    let (_stage, _watch, a, _b) = full();
    a.release(601);
}

#[test]
fn a_transfer_counts_its_bytes_once_at_every_step() {
    let (_stage, watch, a, b) = full();
    let counts = || {
        let audit = watch.audit().unwrap();
        assert_eq!(audit.counted_bytes, 1000);
        [audit.participants[0].1, audit.participants[1].1]
    };
    a.earmark(&b.peer(), 100, 0, 7).unwrap();
    assert_eq!((a.held_bytes(), counts()), (500, [600, 400]));
    assert_eq!(b.accept(&a.peer(), 7, 100), Ok(()));
    assert_eq!(counts(), [500, 500]);
    // The borrower keeps the nonce as long as the lender has the earmark.
    assert_eq!(b.clear(), Ok(Cleared { earmarks: 0, nonces: 0 }));
    assert_eq!(a.clear(), Ok(Cleared { earmarks: 1, nonces: 0 }));
    assert_eq!(counts(), [500, 500]);
    assert_eq!(b.clear(), Ok(Cleared { earmarks: 0, nonces: 1 }));
    assert_eq!(counts(), [500, 500]);
    let survey = watch.survey().unwrap();
    assert!(survey.iter().all(|one| one.earmarks.is_empty() && one.accepted.is_empty()));
}

#[test]
fn an_earmark_is_for_its_borrower_alone() {
    let (stage, watch, a, b) = full();
    let c = stage.open().join("c", 0, 0).unwrap();
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
fn earmarks_that_make_no_sense_are_refused_and_change_nothing() {
    let (_stage, watch, a, b) = full();
    let other_life = Peer { instance: b.instance() + 100, ..b.peer() };
    let nowhere = Peer { index: 9999, instance: 1 };
    a.earmark(&b.peer(), 10, 0, 5).unwrap();
    b.accept(&a.peer(), 5, 10).unwrap();
    a.clear().unwrap();
    let before = watch.survey().unwrap();
    assert_eq!(a.earmark(&b.peer(), 591, 0, 1), Err(LedgerError::NotHeld { held: 590, asked: 591 }));
    assert_eq!(a.earmark(&b.peer(), 1, 0, 0), Err(LedgerError::Nonce { nonce: 0 }));
    assert_eq!(a.earmark(&a.peer(), 1, 0, 1), Err(LedgerError::Nonce { nonce: 1 }));
    for peer in [other_life, nowhere, Peer { index: 5, instance: 0 }] {
        assert_eq!(a.earmark(&peer, 1, 0, 1), Err(LedgerError::Gone { peer }));
        assert_eq!(a.accept(&peer, 1, 1), Err(LedgerError::Gone { peer }));
    }
    assert_eq!(watch.survey().unwrap(), before);
}

/// A loan comes back in parts under its one name, and nobody has looked at the ledger between two of them.
#[test]
fn the_next_part_under_a_name_waits_for_nothing_but_the_last_one() {
    let (_stage, watch, a, b) = full();
    a.earmark(&b.peer(), 10, 0, 5).unwrap();
    assert_eq!(a.earmark(&b.peer(), 20, 0, 5), Err(LedgerError::Nonce { nonce: 5 }), "the last part waits");
    b.accept(&a.peer(), 5, 10).unwrap();
    a.earmark(&b.peer(), 20, 0, 5).unwrap();
    let counted = || watch.audit().unwrap().counted_bytes;
    assert_eq!((a.held_bytes(), b.held_bytes(), counted()), (570, 410, 1000), "it is not taken for accepted");
    b.accept(&a.peer(), 5, 20).unwrap();
    // The lender's look alone has put the last part away.
    a.clear().unwrap();
    a.earmark(&b.peer(), 30, 0, 5).unwrap();
    assert_eq!(counted(), 1000);
    assert_eq!(a.void(5), Ok(30));
    assert_eq!((a.held_bytes(), b.held_bytes(), counted()), (540, 430, 970));
}

#[test]
fn what_a_dead_lender_had_earmarked_cannot_be_accepted() {
    let (stage, watch, a, b) = full();
    let c = stage.open().join("c", 0, 0).unwrap();
    let peer = a.peer();
    a.earmark(&b.peer(), 100, 0, 7).unwrap();
    stage.end(a);
    c.reserve(600).unwrap();
    assert_eq!(b.accept(&peer, 7, 100), Err(LedgerError::Gone { peer }));
    assert_eq!(watch.audit().unwrap().counted_bytes, 1000);
    // Nor after somebody else has its record.
    let heir = stage.open().join("a", 0, 0).unwrap();
    assert_eq!(heir.index(), peer.index);
    assert_eq!(b.accept(&peer, 7, 100), Err(LedgerError::Gone { peer }));
    assert_eq!(b.accept(&heir.peer(), 7, 100), Err(LedgerError::NoEarmark { nonce: 7 }));
}

#[test]
fn so_many_transfers_wait_and_no_more() {
    let (_stage, _watch, a, b) = full();
    for nonce in 1..=TRANSFERS as u64 {
        a.earmark(&b.peer(), 1, 0, nonce).unwrap();
    }
    assert_eq!(a.earmark(&b.peer(), 1, 0, 1000), Err(LedgerError::TooMany { limit: TRANSFERS }));
    for nonce in 1..=TRANSFERS as u64 {
        b.accept(&a.peer(), nonce, 1).unwrap();
    }
    a.clear().unwrap();
    a.earmark(&b.peer(), 1, 0, 1000).unwrap();
    assert_eq!(b.accept(&a.peer(), 1000, 1), Err(LedgerError::TooMany { limit: TRANSFERS }));
    assert_eq!(b.clear(), Ok(Cleared { earmarks: 0, nonces: TRANSFERS }));
    b.accept(&a.peer(), 1000, 1).unwrap();
    assert_eq!((a.held_bytes(), b.held_bytes()), (600 - 65, 400 + 65));
}

#[test]
fn a_new_life_in_a_dead_record_owns_nothing() {
    let (stage, watch, a, b) = full();
    a.earmark(&b.peer(), 100, 0, 7).unwrap();
    b.earmark(&a.peer(), 30, 0, 8).unwrap();
    a.accept(&b.peer(), 8, 30).unwrap();
    a.turn().request(1).unwrap();
    stage.end(a);
    let heir = stage.open().join("heir", 1, 2).unwrap();
    assert_eq!(heir.index(), 0);
    let of_heir = &watch.survey().unwrap()[0];
    assert_eq!((of_heir.held_bytes, of_heir.floor_bytes, of_heir.share_bytes), (0, 1, 2));
    assert!(of_heir.earmarks.is_empty() && of_heir.accepted.is_empty() && !of_heir.waits);
    assert_eq!((of_heir.name.as_str(), of_heir.live, of_heir.has_turn), ("heir", true, false));
}
