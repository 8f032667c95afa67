//! Which ledger file is opened, refused or made anew.

use std::fs::{self, OpenOptions};

use sluice_memory::TurnFence;
use sluice_memory::neighbourhood::{
    Identity, JoinError, Neighbourhood, OpenError, RECORDS, TurnOrder, this_boot,
};

use super::stage::{CAPACITY, Stage};

fn open_as(stage: &Stage, change: impl Fn(&mut Identity)) -> Result<Neighbourhood, OpenError> {
    let mut identity = stage.identity();
    change(&mut identity);
    Neighbourhood::open(stage.folder(), &identity)
}

#[test]
fn a_ledger_of_another_boot_or_claim_is_replaced_only_when_nobody_of_it_lives() {
    let others: [fn(&mut Identity); 2] =
        [|identity| identity.boot_id[15] += 1, |identity| identity.claim_id = "claim-2".into()];
    for (other, word) in others.into_iter().zip(["boot", "claim"]) {
        let stage = Stage::new();
        let seat = stage.open().join("a", 0, 0).unwrap();
        let refused = open_as(&stage, other);
        assert!(matches!(&refused, Err(OpenError::OtherLife { what, .. }) if *what == word), "{refused:?}");
        seat.reserve(CAPACITY).unwrap();
        stage.end(seat);
        let fresh = open_as(&stage, other).unwrap();
        assert!(fresh.survey().unwrap().is_empty());
        let back = stage.open();
        assert!(matches!(fresh.join("b", 0, 0), Err(JoinError::Replaced)));
        back.join("b", 0, 0).unwrap();
    }
}

#[test]
fn another_capacity_or_chunk_size_is_refused_with_both_values() {
    let stage = Stage::new();
    stage.open();
    let capacity = open_as(&stage, |identity| identity.capacity_bytes = 2000);
    let text = "the ledger has 1000 bytes of capacity, this participant expects 2000";
    assert_eq!(capacity.unwrap_err().to_string(), text);
    let chunk = open_as(&stage, |identity| identity.chunk_bytes = 20);
    assert_eq!(
        chunk.unwrap_err().to_string(),
        "the ledger has 10 bytes a chunk, this participant expects 20"
    );
}

#[test]
fn a_damaged_ledger_is_refused_while_somebody_lives_and_then_replaced() {
    let damages: [fn(&mut Vec<u8>); 4] = [
        |bytes| bytes.truncate(100),
        |bytes| bytes.clear(),
        |bytes| bytes[3] ^= 1,
        |bytes| bytes[16 * 8 + 1] = 9,
    ];
    for damage in damages {
        let stage = Stage::new();
        let seat = stage.open().join("a", 0, 0).unwrap();
        let path = stage.folder().join("ledger");
        let mut bytes = fs::read(&path).unwrap();
        damage(&mut bytes);
        // Another file in its place: cutting the one that is mapped would end this process.
        fs::remove_file(&path).unwrap();
        fs::write(&path, bytes).unwrap();
        let refused = open_as(&stage, |_| {});
        assert!(matches!(refused, Err(OpenError::Damaged { .. })), "{refused:?}");
        drop(seat);
        // See `Stage::end`: the description may live a moment longer.
        while let Err(refused) = open_as(&stage, |_| {}) {
            assert!(matches!(refused, OpenError::Damaged { .. }), "{refused:?}");
            std::thread::yield_now();
        }
        stage.open().join("a", CAPACITY, CAPACITY).unwrap().reserve(CAPACITY).unwrap();
    }
}

#[test]
fn a_ledger_of_another_version_is_waited_for_while_in_use_and_then_replaced() {
    let stage = Stage::new();
    let seat = stage.open().join("old", 0, 0).unwrap();
    let path = stage.folder().join("ledger");
    let mut bytes = fs::read(&path).unwrap();
    // Version 1 had the same length, the same liveness bytes, and nothing in the file of locks.
    bytes[8..16].copy_from_slice(&1_u64.to_ne_bytes());
    fs::remove_file(&path).unwrap();
    fs::write(&path, &bytes).unwrap();
    let locks = OpenOptions::new().write(true).open(stage.folder().join("locks")).unwrap();
    locks.set_len(0).unwrap();
    let refused = open_as(&stage, |_| {}).unwrap_err();
    assert!(matches!(refused, OpenError::OtherVersion { found: 1, expected: 2 }), "{refused:?}");
    assert_eq!(fs::read(&path).unwrap(), bytes, "what is in use stays");
    assert_eq!(locks.metadata().unwrap().len(), 0);
    drop(seat);
    // See `Stage::end`: the description may live a moment longer.
    while let Err(refused) = open_as(&stage, |_| {}) {
        assert!(matches!(refused, OpenError::OtherVersion { .. }), "{refused:?}");
        std::thread::yield_now();
    }
    let new = stage.open().join("new", 0, 0).unwrap();
    new.turn().request(0).unwrap();
    assert!(new.turn().try_take(TurnOrder::RoundRobin).unwrap().is_some());
    assert_eq!(TurnFence::open(new.liveness()).unwrap().map(|fence| fence.passed(7)), Some(true));
}

#[test]
fn what_was_written_of_a_new_ledger_before_a_death_does_not_disturb_the_next() {
    let stage = Stage::new();
    fs::write(stage.folder().join("ledger.new"), b"half").unwrap();
    stage.open().join("a", 0, 0).unwrap();
}

#[test]
fn a_folder_that_is_missing_and_a_claim_without_a_name_are_refused() {
    let stage = Stage::new();
    let missing = stage.folder().join("missing");
    let error = Neighbourhood::open(&missing, &stage.identity()).unwrap_err();
    assert!(matches!(error, OpenError::Kernel { call: "open", .. }), "{error:?}");
    for claim in [String::new(), "c".repeat(129)] {
        let refused = open_as(&stage, |identity| identity.claim_id.clone_from(&claim));
        assert!(matches!(refused, Err(OpenError::ClaimId { .. })));
    }
    open_as(&stage, |identity| identity.claim_id = "c".repeat(128)).unwrap();
}

#[test]
fn many_who_open_at_once_get_the_same_ledger() {
    let stage = Stage::new();
    let mut actors: Vec<_> = (0..8).map(|_| stage.actor()).collect();
    for actor in &mut actors {
        actor.tell("open");
    }
    for (at, actor) in actors.iter_mut().enumerate() {
        actor.answer().unwrap().unwrap();
        actor.join(&format!("tenant-{at}"), 100);
    }
    assert_eq!(stage.open().survey().unwrap().len(), 8);
}

#[test]
fn all_records_can_be_taken_and_no_more() {
    let stage = Stage::new();
    let neighbourhood = stage.open();
    let seats: Vec<_> = (0..RECORDS).map(|at| neighbourhood.join(&format!("t{at}"), 1, 2).unwrap()).collect();
    assert!(matches!(neighbourhood.join("late", 0, 0), Err(JoinError::Full { records: RECORDS })));
    for seat in &seats {
        seat.reserve(15).unwrap();
    }
    assert_eq!(neighbourhood.audit().unwrap().counted_bytes, 15 * u64::from(RECORDS));
}

#[test]
fn the_boot_has_one_id() {
    assert_eq!(this_boot().unwrap(), this_boot().unwrap());
    assert_ne!(this_boot().unwrap(), [0; 16]);
}
