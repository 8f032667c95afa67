//! Accounting of the bytes of an earmark.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluice_memory::{Faults, Quota, QuotaError};
use sluice_policy::action::{Earmark, Work};
use sluice_policy::event::{Failure, Outcome};
use sluice_policy::peers::Peer;
use sluice_policy::peers::loans::Nonce;

use super::harness::{Harness, chunks, geometry};

const CHUNK: u64 = 64 << 10;

/// A quota with one earmark.
#[derive(Debug)]
struct SingleEarmarkQuota {
    nonce: Nonce,
    held: AtomicU64,
}

impl Quota for SingleEarmarkQuota {
    fn reserve(&self, bytes: u64) -> Result<(), QuotaError> {
        self.held.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn release(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn accept(&self, earmark: Earmark, bytes: u64) -> Result<(), QuotaError> {
        if earmark.nonce == self.nonce {
            return self.reserve(bytes);
        }
        Err(QuotaError::OutOfMemory("no such promise".into()))
    }

    fn earmark(&self, _earmark: Earmark, _bytes: u64, _spare_bytes: u64) -> Result<(), QuotaError> {
        Err(QuotaError::Busy("64 transfers wait already".into()))
    }
}

#[test]
fn accept_distinguishes_out_of_memory_from_invalid_earmark() {
    let ledger = Arc::new(SingleEarmarkQuota { nonce: Nonce(7), held: AtomicU64::new(0) });
    let mut world = Harness::with(&geometry(CHUNK, 4, 1, CHUNK), |options| options.quota = ledger.clone());
    let accept = |nonce| {
        let earmark = Earmark { peer: Peer { index: 1, instance: 5 }, nonce: Nonce(nonce) };
        Work::Accept { chunks: chunks(0..3), earmark }
    };
    assert_eq!(world.run(accept(8)), Outcome::Failed(Failure::Refused), "the promise does not hold");
    world.memory.set_faults(Faults { fail_creates: 1, ..Faults::default() });
    assert_eq!(world.run(accept(7)), Outcome::Failed(Failure::OutOfMemory), "the bytes are ours");
    assert_eq!(ledger.held.load(Ordering::Relaxed), 0, "and no chunk holds them");
    world.succeed(accept(7));
    assert_eq!(ledger.held.load(Ordering::Relaxed), 3 * CHUNK);
}

#[test]
fn refused_earmark_leaves_chunks_with_lender() {
    let ledger = Arc::new(SingleEarmarkQuota { nonce: Nonce(7), held: AtomicU64::new(0) });
    let mut world = Harness::with(&geometry(CHUNK, 4, 1, CHUNK), |options| options.quota = ledger.clone());
    world.succeed(Work::Create(chunks(0..3)));
    let earmark = Earmark { peer: Peer { index: 1, instance: 5 }, nonce: Nonce(9) };
    let loan = Work::Lend { chunks: chunks(0..2), spare_chunks: 0, earmark };
    assert_eq!(world.run(loan), Outcome::Failed(Failure::Busy));
    assert_eq!(ledger.held.load(Ordering::Relaxed), 3 * CHUNK);
    world.succeed(Work::Release(chunks(0..3)));
    assert_eq!(ledger.held.load(Ordering::Relaxed), 0, "all three were there to release");
}
