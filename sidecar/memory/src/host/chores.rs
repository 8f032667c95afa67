//! Work on the pool that takes longer than a look: done by one thread, in order, so that `submit` never waits for it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use sluice_policy::event::{Failure, Outcome};
use sluice_policy::ids::ChunkId;

use crate::faults::SharedFaults;
use crate::pool::{Pool, PoolError};
use crate::transfers::{Event, Outbox};

/// One piece of work, checked against the table already.
#[derive(Debug)]
pub(super) enum Chore {
    Create(Vec<ChunkId>),
    Release(Vec<ChunkId>),
    Poison(Vec<ChunkId>),
    Move(Vec<BlockCopy>),
}

/// `bytes` bytes between two places in chunks, `(chunk, offset)` each.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockCopy {
    pub(super) from: (ChunkId, u64),
    pub(super) to: (ChunkId, u64),
    pub(super) bytes: u64,
}

/// The thread. Dropping it ends it after the chore at hand.
pub(super) struct Chores {
    chores: Option<Sender<Chore>>,
    thread: Option<JoinHandle<()>>,
}

impl Chores {
    pub(super) fn new(pool: Arc<Pool>, faults: SharedFaults, outbox: Outbox) -> Chores {
        let (chores, todo) = channel();
        let work = move || run(&todo, &pool, &faults, &outbox);
        let thread = std::thread::Builder::new().name("sluice-pool".into()).spawn(work);
        let thread = Some(thread.expect("the machine has room for the pool's thread"));
        Chores { chores: Some(chores), thread }
    }

    /// Orders a chore; its end is an [`Event::Chore`].
    pub(super) fn order(&self, chore: Chore) {
        let chores = self.chores.as_ref().expect("the sender lives until the drop");
        chores.send(chore).expect("the pool's thread runs until the drop");
    }
}

impl Drop for Chores {
    fn drop(&mut self) {
        self.chores = None;
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has reported itself; there is nothing to hand on while dropping.
            let _ = thread.join();
        }
    }
}

fn run(todo: &Receiver<Chore>, pool: &Pool, faults: &SharedFaults, outbox: &Outbox) {
    while let Ok(chore) = todo.recv() {
        let begun = Instant::now();
        let result = match &chore {
            Chore::Create(chunks) => create(pool, faults, chunks),
            Chore::Release(chunks) => each(chunks, |chunk| pool.release(chunk)),
            Chore::Poison(chunks) => each(chunks, |chunk| pool.poison(chunk)),
            Chore::Move(copies) => copy(pool, copies),
        };
        let outcome = match result {
            Ok(bytes) => Outcome::Done { bytes, duration_ns: begun.elapsed().as_nanos() as u64 },
            Err(failure) => Outcome::Failed(failure),
        };
        outbox.send(Event::Chore(outcome));
    }
}

/// All chunks or none.
fn create(pool: &Pool, faults: &SharedFaults, chunks: &[ChunkId]) -> Result<u64, Failure> {
    if faults.create_fails() {
        return Err(Failure::OutOfMemory);
    }
    for (at, chunk) in chunks.iter().enumerate() {
        if let Err(error) = pool.create(*chunk) {
            let undone = each(&chunks[..at], |chunk| pool.release(chunk));
            assert!(undone.is_ok(), "a chunk that was just created can be released: {undone:?}");
            return Err(failure(&error));
        }
    }
    Ok(0)
}

fn each(chunks: &[ChunkId], work: impl Fn(ChunkId) -> Result<(), PoolError>) -> Result<u64, Failure> {
    chunks.iter().try_for_each(|chunk| work(*chunk)).map_err(|error| failure(&error))?;
    Ok(0)
}

fn copy(pool: &Pool, copies: &[BlockCopy]) -> Result<u64, Failure> {
    for copy in copies {
        pool.copy(copy.from, copy.to, copy.bytes).map_err(|_| Failure::CopyFailed)?;
    }
    Ok(copies.iter().map(|copy| copy.bytes).sum())
}

fn failure(error: &PoolError) -> Failure {
    match error {
        PoolError::OutOfMemory { .. } => Failure::OutOfMemory,
        _ => Failure::Refused,
    }
}
