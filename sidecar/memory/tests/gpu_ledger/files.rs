//! Which ledger file is opened, refused or created again.

use std::fs::{self, OpenOptions};

use sluice_memory::SliceFence;
use sluice_memory::gpu_ledger::{
    GpuLedger, JoinError, LedgerIdentity, OpenError, RECORDS, SliceOrder, current_boot_id,
};

use super::env::{CAPACITY, LedgerEnv};

fn open_as(env: &LedgerEnv, change: impl Fn(&mut LedgerIdentity)) -> Result<GpuLedger, OpenError> {
    let mut identity = env.identity();
    change(&mut identity);
    GpuLedger::open(env.folder(), &identity)
}

#[test]
fn ledger_of_other_boot_or_claim_is_replaced_when_unused() {
    let others: [fn(&mut LedgerIdentity); 2] =
        [|identity| identity.boot_id[15] += 1, |identity| identity.claim_id = "claim-2".into()];
    for (other, word) in others.into_iter().zip(["boot", "claim"]) {
        let env = LedgerEnv::new();
        let participant = env.open().join("a", 0, 0).unwrap();
        let refused = open_as(&env, other);
        assert!(
            matches!(&refused, Err(OpenError::IdentityMismatch { what, .. }) if *what == word),
            "{refused:?}"
        );
        participant.reserve(CAPACITY).unwrap();
        env.end(participant);
        let fresh = open_as(&env, other).unwrap();
        assert!(fresh.survey().unwrap().is_empty());
        let back = env.open();
        assert!(matches!(fresh.join("b", 0, 0), Err(JoinError::Replaced)));
        back.join("b", 0, 0).unwrap();
    }
}

#[test]
fn another_capacity_or_chunk_size_is_refused_with_both_values() {
    let env = LedgerEnv::new();
    env.open();
    let capacity = open_as(&env, |identity| identity.capacity_bytes = 2000);
    let text = "the ledger has 1000 bytes of capacity, this participant expects 2000";
    assert_eq!(capacity.unwrap_err().to_string(), text);
    let chunk = open_as(&env, |identity| identity.chunk_bytes = 20);
    assert_eq!(
        chunk.unwrap_err().to_string(),
        "the ledger has 10 bytes a chunk, this participant expects 20"
    );
}

#[test]
fn damaged_ledger_is_refused_in_use_and_then_replaced() {
    let damages: [fn(&mut Vec<u8>); 4] = [
        |bytes| bytes.truncate(100),
        |bytes| bytes.clear(),
        |bytes| bytes[3] ^= 1,
        |bytes| bytes[16 * 8 + 1] = 9,
    ];
    for damage in damages {
        let env = LedgerEnv::new();
        let participant = env.open().join("a", 0, 0).unwrap();
        let path = env.folder().join("ledger");
        let mut bytes = fs::read(&path).unwrap();
        damage(&mut bytes);
        // Replace the file: truncating the one that is mapped would damage this process's ledger.
        fs::remove_file(&path).unwrap();
        fs::write(&path, bytes).unwrap();
        let refused = open_as(&env, |_| {});
        assert!(matches!(refused, Err(OpenError::Damaged { .. })), "{refused:?}");
        drop(participant);
        // See `LedgerEnv::end`: the description may exist a moment longer.
        while let Err(refused) = open_as(&env, |_| {}) {
            assert!(matches!(refused, OpenError::Damaged { .. }), "{refused:?}");
            std::thread::yield_now();
        }
        env.open().join("a", CAPACITY, CAPACITY).unwrap().reserve(CAPACITY).unwrap();
    }
}

#[test]
fn ledger_of_other_version_is_refused_in_use_and_then_replaced() {
    let env = LedgerEnv::new();
    let participant = env.open().join("old", 0, 0).unwrap();
    let path = env.folder().join("ledger");
    let mut bytes = fs::read(&path).unwrap();
    // Version 1 had the same length, the same liveness bytes, and nothing in the lock file.
    bytes[8..16].copy_from_slice(&1_u64.to_ne_bytes());
    fs::remove_file(&path).unwrap();
    fs::write(&path, &bytes).unwrap();
    let locks = OpenOptions::new().write(true).open(env.folder().join("locks")).unwrap();
    locks.set_len(0).unwrap();
    let refused = open_as(&env, |_| {}).unwrap_err();
    assert!(matches!(refused, OpenError::VersionMismatch { found: 1, expected: 2 }), "{refused:?}");
    assert_eq!(fs::read(&path).unwrap(), bytes, "host copies are dropped while no buffer exists");
    assert_eq!(locks.metadata().unwrap().len(), 0);
    drop(participant);
    // See `LedgerEnv::end`: the description may exist a moment longer.
    while let Err(refused) = open_as(&env, |_| {}) {
        assert!(matches!(refused, OpenError::VersionMismatch { .. }), "{refused:?}");
        std::thread::yield_now();
    }
    let new = env.open().join("new", 0, 0).unwrap();
    new.slice_queue().request(0).unwrap();
    assert!(new.slice_queue().try_acquire(SliceOrder::RoundRobin).unwrap().is_some());
    assert_eq!(SliceFence::open(new.liveness()).unwrap().map(|fence| fence.is_stale(7)), Some(true));
}

#[test]
fn partial_new_ledger_does_not_affect_next_open() {
    let env = LedgerEnv::new();
    fs::write(env.folder().join("ledger.new"), b"half").unwrap();
    env.open().join("a", 0, 0).unwrap();
}

#[test]
fn missing_folder_and_empty_claim_id_are_refused() {
    let env = LedgerEnv::new();
    let missing = env.folder().join("missing");
    let error = GpuLedger::open(&missing, &env.identity()).unwrap_err();
    assert!(matches!(error, OpenError::Kernel { call: "open", .. }), "{error:?}");
    for claim in [String::new(), "c".repeat(129)] {
        let refused = open_as(&env, |identity| identity.claim_id.clone_from(&claim));
        assert!(matches!(refused, Err(OpenError::InvalidClaimId { .. })));
    }
    open_as(&env, |identity| identity.claim_id = "c".repeat(128)).unwrap();
}

#[test]
fn concurrent_opens_get_same_ledger() {
    let env = LedgerEnv::new();
    let mut actors: Vec<_> = (0..8).map(|_| env.spawn_process()).collect();
    for actor in &mut actors {
        actor.send("open");
    }
    for (at, actor) in actors.iter_mut().enumerate() {
        actor.answer().unwrap().unwrap();
        actor.join(&format!("tenant-{at}"), 100);
    }
    assert_eq!(env.open().survey().unwrap().len(), 8);
}

#[test]
fn records_are_limited() {
    let env = LedgerEnv::new();
    let ledger = env.open();
    let participants: Vec<_> = (0..RECORDS).map(|at| ledger.join(&format!("t{at}"), 1, 2).unwrap()).collect();
    assert!(matches!(ledger.join("late", 0, 0), Err(JoinError::Full { records: RECORDS })));
    for participant in &participants {
        participant.reserve(15).unwrap();
    }
    assert_eq!(ledger.audit().unwrap().counted_bytes, 15 * u64::from(RECORDS));
}

#[test]
fn the_boot_has_one_id() {
    assert_eq!(current_boot_id().unwrap(), current_boot_id().unwrap());
    assert_ne!(current_boot_id().unwrap(), [0; 16]);
}
