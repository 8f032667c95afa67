//! A thread that runs slow work on the pool in order, so that `submit` never waits for it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sluice_policy::action::Earmark;
use sluice_policy::copy_priority::CopyPriority;
use sluice_policy::event::{Failure, Outcome};
use sluice_policy::ids::ChunkId;

use crate::faults::SharedFaults;
use crate::pool::{ChunkPool, PoolError};
use crate::pool_lane::PoolLane;
use crate::quota::{Quota, QuotaError};
use crate::tier::{HostTier, TierCopy};
use crate::transfers::{CompletionSink, Event, set_timer_slack};

/// A job that was already checked against the table.
#[derive(Debug)]
pub(super) enum SerialJob {
    Create { chunks: Vec<ChunkId>, at_once: bool },
    Release(Vec<ChunkId>),
    Accept(Vec<ChunkId>, Earmark),
    Lend { chunks: Vec<ChunkId>, spare_chunks: u32, earmark: Earmark },
    Prepare { backed: Vec<ChunkId>, poisoned: Vec<ChunkId> },
    Move(Vec<LayerBlockCopy>),
    SwapOut(Vec<TierCopy>, CopyPriority),
    SwapIn(Vec<TierCopy>, CopyPriority),
}

/// The pool and the accounting of its bytes.
pub(super) struct ChunkAllocator {
    pub(super) pool: Arc<ChunkPool>,
    pub(super) quota: Arc<dyn Quota>,
}

/// A copy of `bytes` bytes between two locations, `(chunk, offset)` each.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerBlockCopy {
    pub(super) from: (ChunkId, u64),
    pub(super) to: (ChunkId, u64),
    pub(super) bytes: u64,
}

/// Handle of the thread. Dropping it ends the thread after the current job; a swap is aborted.
pub(super) struct SerialWorker {
    jobs: Option<Sender<SerialJob>>,
    tier: Arc<HostTier>,
    thread: Option<JoinHandle<()>>,
}

impl SerialWorker {
    pub(super) fn new(
        bank: ChunkAllocator,
        tier: Arc<HostTier>,
        faults: SharedFaults,
        outbox: CompletionSink,
    ) -> SerialWorker {
        let (chores, todo) = channel();
        let worker = Worker { allocator: bank, tier: tier.clone(), faults };
        let work = move || worker.run(&todo, &outbox);
        let thread = std::thread::Builder::new().name("sluice-pool".into()).spawn(work);
        let thread = Some(thread.expect("the machine has room for the pool's thread"));
        SerialWorker { jobs: Some(chores), tier, thread }
    }

    /// Submits a job; its end is reported as [`Event::JobDone`].
    pub(super) fn submit(&self, chore: SerialJob) {
        let chores = self.jobs.as_ref().expect("the sender lives until the drop");
        chores.send(chore).expect("the pool's thread runs until the drop");
    }
}

impl Drop for SerialWorker {
    fn drop(&mut self) {
        self.jobs = None;
        self.tier.stop();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has reported itself; a drop cannot propagate the panic.
            let _ = thread.join();
        }
    }
}

/// Resources of the thread.
struct Worker {
    allocator: ChunkAllocator,
    tier: Arc<HostTier>,
    faults: SharedFaults,
}

impl Worker {
    fn run(&self, todo: &Receiver<SerialJob>, outbox: &CompletionSink) {
        set_timer_slack();
        let mut lane = PoolLane::new(&self.allocator.pool);
        while let Ok(chore) = todo.recv() {
            outbox.send(Event::JobDone(self.execute(&mut lane, &chore)));
        }
    }

    fn execute(&self, lane: &mut PoolLane<'_>, chore: &SerialJob) -> Outcome {
        let Worker { allocator: bank, tier, faults } = self;
        let begun = Instant::now();
        let done = match chore {
            SerialJob::Create { chunks, at_once } => bank.create(faults, chunks, *at_once),
            SerialJob::Accept(chunks, earmark) => bank.accept(faults, chunks, *earmark),
            SerialJob::Release(chunks) => bank.release(chunks),
            SerialJob::Lend { chunks, spare_chunks, earmark } => {
                bank.lend(faults, chunks, *spare_chunks, *earmark)
            }
            SerialJob::Prepare { backed, poisoned } => bank.prepare(lane, backed, poisoned),
            SerialJob::Move(copies) => copy(lane, copies),
            SerialJob::SwapOut(copies, rank) => return tier.copy_out(lane, *rank, copies),
            SerialJob::SwapIn(copies, rank) => return tier.copy_in(lane, *rank, copies),
        };
        match done {
            Ok(bytes) => Outcome::Done { bytes, duration_ns: begun.elapsed().as_nanos() as u64 },
            Err(failure) => Outcome::Failed(failure),
        }
    }
}

impl ChunkAllocator {
    fn bytes(&self, chunks: usize) -> u64 {
        chunks as u64 * self.pool.chunk_bytes()
    }

    /// Creates chunks, with their pages if `at_once`. Otherwise copies into them allocate the pages, or
    /// [`ChunkAllocator::prepare`] does.
    fn create(&self, faults: &SharedFaults, chunks: &[ChunkId], at_once: bool) -> Result<u64, Failure> {
        self.quota.reserve(self.bytes(chunks.len())).map_err(|error| quota_failure(&error))?;
        let made = if at_once { ChunkPool::create_all } else { ChunkPool::create_lazy };
        self.create_reserved(faults, chunks, made)
    }

    fn accept(&self, faults: &SharedFaults, chunks: &[ChunkId], earmark: Earmark) -> Result<u64, Failure> {
        self.quota.accept(earmark, self.bytes(chunks.len())).map_err(|error| match error {
            QuotaError::Busy(_) => Failure::Busy,
            QuotaError::OutOfMemory(_) | QuotaError::Refused(_) => Failure::Refused,
        })?;
        // The bytes now belong to this tenant, so any failure to create the chunks counts as lack of memory.
        self.create_reserved(faults, chunks, ChunkPool::create_lazy).map_err(|_| Failure::OutOfMemory)
    }

    /// Creates all chunks or none; their bytes are already counted.
    fn create_reserved(
        &self,
        faults: &SharedFaults,
        chunks: &[ChunkId],
        made: fn(&ChunkPool, &[ChunkId]) -> Result<(), PoolError>,
    ) -> Result<u64, Failure> {
        let made = if faults.should_fail_create() {
            Err(Failure::OutOfMemory)
        } else {
            made(&self.pool, chunks).map_err(|error| failure(&error))
        };
        made.map(|()| 0).inspect_err(|_| self.quota.release(self.bytes(chunks.len())))
    }

    /// Allocates all pages of chunks that the engine may access, and poisons handed-over chunks (tests).
    fn prepare(
        &self,
        lane: &mut PoolLane<'_>,
        backed: &[ChunkId],
        poisoned: &[ChunkId],
    ) -> Result<u64, Failure> {
        for_each_chunk(backed, |chunk| self.pool.ensure_backed(chunk))?;
        let done = for_each_chunk(poisoned, |chunk| lane.poison(chunk));
        let finished = lane.finish().map_err(|error| failure(&error));
        finished.and(done)
    }

    fn release(&self, chunks: &[ChunkId]) -> Result<u64, Failure> {
        for_each_chunk(chunks, |chunk| self.pool.release(chunk))?;
        self.quota.release(self.bytes(chunks.len()));
        Ok(0)
    }

    /// Releases the chunks before it earmarks their bytes. If the earmark fails, creates the chunks again.
    fn lend(
        &self,
        faults: &SharedFaults,
        chunks: &[ChunkId],
        spare_chunks: u32,
        earmark: Earmark,
    ) -> Result<u64, Failure> {
        let spare_bytes = self.bytes(spare_chunks as usize);
        let early = faults.current().early_earmark;
        if !early.is_zero() {
            return self.lend_early(early, chunks, spare_bytes, earmark);
        }
        for_each_chunk(chunks, |chunk| self.pool.release(chunk))?;
        let promised = self.quota.earmark(earmark, self.bytes(chunks.len()), spare_bytes);
        promised.map(|()| 0).map_err(|error| {
            let undone = self.pool.create_lazy(chunks);
            assert!(undone.is_ok(), "the bytes of a chunk that was just released are still ours: {undone:?}");
            quota_failure(&error)
        })
    }

    /// Injected fault: earmarks the bytes, which the borrower may then use, while the chunks are still mapped
    /// here.
    fn lend_early(
        &self,
        early: Duration,
        chunks: &[ChunkId],
        spare_bytes: u64,
        earmark: Earmark,
    ) -> Result<u64, Failure> {
        let promised = self.quota.earmark(earmark, self.bytes(chunks.len()), spare_bytes);
        promised.map_err(|error| quota_failure(&error))?;
        let (pool, chunks) = (self.pool.clone(), chunks.to_vec());
        std::thread::spawn(move || {
            std::thread::sleep(early);
            // Fails for chunks that were created again and are in use, which this fault accepts.
            let _ = for_each_chunk(&chunks, |chunk| pool.release(chunk));
        });
        Ok(0)
    }
}

fn for_each_chunk(
    chunks: &[ChunkId],
    mut work: impl FnMut(ChunkId) -> Result<(), PoolError>,
) -> Result<u64, Failure> {
    chunks.iter().try_for_each(|chunk| work(*chunk)).map_err(|error| failure(&error))?;
    Ok(0)
}

fn copy(lane: &mut PoolLane<'_>, copies: &[LayerBlockCopy]) -> Result<u64, Failure> {
    let copied = copies.iter().try_for_each(|copy| lane.copy(copy.from, copy.to, copy.bytes));
    let finished = lane.finish();
    copied.and(finished).map_err(|_| Failure::CopyFailed)?;
    Ok(copies.iter().map(|copy| copy.bytes).sum())
}

fn failure(error: &PoolError) -> Failure {
    match error {
        PoolError::OutOfMemory { .. } => Failure::OutOfMemory,
        _ => Failure::Refused,
    }
}

fn quota_failure(error: &QuotaError) -> Failure {
    match error {
        QuotaError::OutOfMemory { .. } => Failure::OutOfMemory,
        QuotaError::Refused { .. } => Failure::Refused,
        QuotaError::Busy { .. } => Failure::Busy,
    }
}
