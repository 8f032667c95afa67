//! The engine has the liveness description too: what the sidecar held counts until both have exited.

use sluice_memory::gpu_ledger::{JoinError, LedgerError};

use super::env::{CAPACITY, LedgerEnv, LedgerProcess};

/// Starts a sidecar that holds all memory, and its engine in another process.
fn pair(env: &LedgerEnv) -> (LedgerProcess, LedgerProcess) {
    let mut sidecar = env.spawn_joined("a", CAPACITY);
    sidecar.ok("reserve 1000");
    let engine = env.spawn_engine_of(&mut sidecar);
    (sidecar, engine)
}

#[test]
fn memory_counts_until_sidecar_and_engine_exit() {
    for engine_first in [false, true] {
        let env = LedgerEnv::new();
        let watch = env.open();
        let (sidecar, engine) = pair(&env);
        let (mut first, mut last) = if engine_first { (engine, sidecar) } else { (sidecar, engine) };
        let participant = watch.join("b", 0, 0).unwrap();
        let full = Err(LedgerError::OutOfMemory { counted: 1000, capacity: CAPACITY, asked: 1 });
        first.kill();
        assert_eq!(participant.reserve(1), full);
        assert!(matches!(watch.join("a", 0, 0), Err(JoinError::NameInUse { .. })));
        last.kill();
        participant.reserve(CAPACITY).unwrap();
        watch.join("a", 500, 1000).unwrap();
    }
}

#[test]
fn borrower_can_accept_from_dead_sidecar_while_engine_lives() {
    let env = LedgerEnv::new();
    let (mut sidecar, mut engine) = pair(&env);
    let b = env.open().join("b", 0, 0).unwrap();
    for nonce in [1, 2] {
        sidecar.ok(&format!("earmark {} {} 100 0 {nonce}", b.index(), b.instance()));
    }
    let lender = sidecar.peer;
    sidecar.kill();
    assert_eq!(b.accept(&lender, 1, 100), Ok(()));
    assert_eq!(b.audit().unwrap().counted_bytes, CAPACITY);
    engine.kill();
    assert_eq!(b.accept(&lender, 2, 100), Err(LedgerError::PeerDead { peer: lender }));
    assert_eq!(b.audit().unwrap().counted_bytes, 100);
}
