//! [`HostMemory`]: the body of [`sluice_ports::Memory`] over host memory.
//!
//! Everything but copies forms one queue and runs one after the other, a `Reback` until the engine has acknowledged it.
//! Fills, fetches, spills and write-backs go to their lanes at once, unless an operation that names one of their chunks or host
//! blocks is still in that queue.

mod block_reservations;
mod copy_queue;
mod serial_queue;
mod serial_worker;
mod table;
mod tier;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use sluice_policy::action::{Action, Address, Reback, Work};
use sluice_policy::copy_priority::CopyPriority;
use sluice_policy::event::{Completion, Failure, Outcome};
use sluice_policy::geometry::Geometry;
use sluice_policy::ids::{ActionId, ChunkId, Nanos};
use sluice_ports::Memory;

use crate::faults::{Faults, SharedFaults};
use crate::host_weights::{HostWeights, Slab};
use crate::mapping::RangeSizes;
use crate::pool::{ChunkPool, PoolError};
use crate::quota::Quota;
use crate::tier::HostTier;
use crate::transfers::{CompletionSink, Event, LayerGate, Notify, PacedLinks, TransferResources, Transfers};
use block_reservations::BlockReservations;
use copy_queue::CopyQueue;
use serial_queue::SerialQueue;
use serial_worker::{ChunkAllocator, SerialWorker};
use table::MappingTable;

/// Sends transactions to the engine.
pub trait EngineConnection: Send {
    /// Hands the changes to the engine, which answers through [`HostMemory::acknowledge`]. False: no engine is attached,
    /// so there is nothing to wait for.
    fn reback(&mut self, id: ActionId, ops: &[Reback]) -> bool;
}

/// What a host memory is made of.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// Sizes of the tenant.
    pub geometry: Geometry,
    /// The engine's ranges: an address outside them is refused.
    pub ranges: RangeSizes,
    /// Overwrite every handed-over chunk with NaN before it is mapped anew.
    pub poison: bool,
    /// Copies of slabs that run at once; at least 1.
    pub copy_threads: usize,
    /// Bandwidth of the link to the host, in each direction; `None` = as fast as memory.
    pub link_bytes_per_s: Option<u64>,
    /// Bandwidth from the device to the host where that is another; `None` = the same.
    pub to_host_bytes_per_s: Option<u64>,
    /// Host memory for KV, taken at the start and rounded down to whole blocks; 0 = no tier, every swap is refused.
    pub host_kv_bytes: u64,
    /// Who counts the bytes of the GPU.
    pub quota: Arc<dyn Quota>,
}

/// Why there is no host memory.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The master copy is another model's.
    #[error("the master copy has {got_bytes} bytes of {slab:?}, the geometry {needed_bytes}")]
    Weights {
        /// Which slab differs.
        slab: Slab,
        /// Bytes of the master copy, 0 for a slab that it lacks.
        got_bytes: u64,
        /// Bytes of the geometry.
        needed_bytes: u64,
    },
    /// The machine has no memory for the host tier.
    #[error("no host memory for {bytes} bytes of KV")]
    Tier {
        /// What was asked, in whole blocks.
        bytes: u64,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
    /// The pool.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// KV that passed the links beside steps, in bytes since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvCopyStats {
    /// Into buffers ([`Work::Fetch`]).
    pub fetched_bytes: u64,
    /// To the host ([`Work::WriteBack`], [`Work::Spill`]).
    pub written_back_bytes: u64,
}

/// A difference between the backend's table and the ledger's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{address:?} is backed by {backing:?}, the ledger says {expected:?}")]
pub struct AuditError {
    /// Where.
    pub address: Address,
    /// Here.
    pub backing: Option<ChunkId>,
    /// There.
    pub expected: Option<ChunkId>,
}

/// Host memory that stands for a device's. Dropping it ends its threads.
pub struct HostMemory {
    // The threads first: they end before what they work on goes.
    worker: SerialWorker,
    transfers: Transfers,
    links: PacedLinks,
    tier: Arc<HostTier>,
    reservations: BlockReservations,
    kv_copy_stats: KvCopyStats,
    pool: Arc<ChunkPool>,
    geometry: Geometry,
    poison: bool,
    engine: Box<dyn EngineConnection>,
    table: MappingTable,
    serial_queue: SerialQueue,
    copy_queue: CopyQueue,
    faults: SharedFaults,
    events: Receiver<Event>,
    completions: VecDeque<Completion>,
    /// When it was last spoken to.
    now: Nanos,
}

impl HostMemory {
    /// Memory without a chunk. `notify` is called on a worker's thread when [`Memory::poll`] may have something.
    pub fn new(
        options: HostOptions,
        master: Arc<HostWeights>,
        gate: Arc<dyn LayerGate>,
        engine: Box<dyn EngineConnection>,
        notify: Notify,
    ) -> Result<HostMemory, HostError> {
        let HostOptions { geometry, ranges, poison, copy_threads, host_kv_bytes, quota, .. } = options;
        check_weights(&master, &geometry)?;
        let both = options.link_bytes_per_s;
        let links = PacedLinks::new(both, options.to_host_bytes_per_s.or(both));
        let faults = SharedFaults::default();
        let tier = new_host_tier(host_kv_bytes, geometry.block_bytes, links.clone(), faults.clone())?;
        let pool = Arc::new(ChunkPool::new(geometry.chunk_bytes, geometry.capacity_chunks)?);
        let (sender, events) = channel();
        let outbox = CompletionSink { events: sender, notify };
        let bank = ChunkAllocator { pool: pool.clone(), quota };
        let chores = SerialWorker::new(bank, tier.clone(), faults.clone(), outbox.clone());
        let link = links.to_device.clone();
        let (pooled, tiered) = (pool.clone(), tier.clone());
        let parts = TransferResources {
            pool: pooled,
            weights: master,
            gate,
            faults: faults.clone(),
            link,
            tier: tiered,
            completions: outbox,
        };
        Ok(HostMemory {
            worker: chores,
            transfers: Transfers::new(parts, copy_threads),
            links,
            tier,
            reservations: BlockReservations::default(),
            kv_copy_stats: KvCopyStats::default(),
            table: MappingTable::new(&ranges, geometry.capacity_chunks),
            pool,
            geometry,
            poison,
            engine,
            serial_queue: SerialQueue::default(),
            copy_queue: CopyQueue::default(),
            faults,
            events,
            completions: VecDeque::new(),
            now: Nanos(0),
        })
    }

    /// The memfd that engines map chunks from; chunk `c` starts at byte `c * chunk_bytes`.
    pub fn pool_fd(&self) -> BorrowedFd<'_> {
        self.pool.fd()
    }

    /// Bytes that copies have moved so far; rises while one gets on.
    pub fn transferred_bytes(&self) -> u64 {
        self.links.transferred_bytes()
    }

    /// The engine's answer to a transaction. Not `ok`: it has changed nothing, and the order fails. False when no such
    /// transaction is waited for, as after [`HostMemory::engine_lost`].
    pub fn on_acknowledge(&mut self, id: ActionId, ok: bool) -> bool {
        let known = self.complete_reback(id, ok);
        self.process_events();
        known
    }

    /// The engine is dead: what it had not acknowledged is complete, since its mappings are gone with it. The
    /// [`EnginePeer`] must know by then that no engine is attached.
    pub fn on_engine_lost(&mut self) {
        if let Some(id) = self.serial_queue.awaiting_ack() {
            self.on_acknowledge(id, true);
        }
    }

    /// Maps everything that is mapped: for the successor of an engine, before anything else is sent to it.
    pub fn snapshot(&self) -> Vec<Reback> {
        self.table.mappings().map(|(address, chunk)| Reback::Map(address, chunk)).collect()
    }

    /// The first difference between this table and the ledger's view of it.
    pub fn audit(&self, expected: impl Iterator<Item = (Address, ChunkId)>) -> Result<(), AuditError> {
        let expected: std::collections::BTreeMap<_, _> = expected.collect();
        for (&address, &chunk) in &expected {
            let backing = self.table.backing(address);
            if backing != Some(chunk) {
                return Err(AuditError { address, backing, expected: Some(chunk) });
            }
        }
        let mut extra = self.table.mappings().filter(|(address, _)| !expected.contains_key(address));
        let found = extra.next();
        found.map_or(Ok(()), |(address, chunk)| {
            Err(AuditError { address, backing: Some(chunk), expected: None })
        })
    }

    /// Switches faults on (tests).
    pub fn set_faults(&self, faults: Faults) {
        self.faults.set(faults);
    }

    /// Changes the link's bandwidth in each direction, for copies under way too; `None` = as fast as memory.
    pub fn set_link_bandwidth(&self, bytes_per_s: Option<u64>) {
        self.links.to_device.set(bytes_per_s);
        self.links.to_host.set(bytes_per_s);
    }

    /// Changes the bandwidth from the device to the host alone.
    pub fn set_to_host_bandwidth(&self, bytes_per_s: Option<u64>) {
        self.links.to_host.set(bytes_per_s);
    }

    /// KV that was copied beside steps so far.
    pub fn kv_copy_stats(&self) -> KvCopyStats {
        self.kv_copy_stats
    }

    /// Copies `bytes` out of a chunk, for checks and dumps.
    pub fn read(&self, chunk: ChunkId, offset: u64, bytes: &mut [u8]) -> Result<(), PoolError> {
        self.pool.read(chunk, offset, bytes)
    }

    /// Takes in what workers report and starts what can start.
    fn process_events(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            match event {
                Event::CopyDone { id, order, outcome } => self.on_copy_done(id, &order, outcome),
                Event::JobDone(outcome) => self.on_job_done(outcome),
            }
        }
        self.start_serial();
    }

    fn complete(&mut self, id: ActionId, outcome: Outcome) {
        self.completions.push_back(Completion { id, outcome });
    }

    fn fail(&mut self, id: ActionId, failure: Failure) {
        self.complete(id, Outcome::Failed(failure));
    }
}

impl Memory for HostMemory {
    fn submit(&mut self, now: Nanos, action: Action) {
        self.now = now;
        match action.work {
            work @ (Work::Fill(_) | Work::Fetch(_) | Work::WriteBack(_) | Work::Spill(_)) => {
                self.submit_copy(action.id, CopyPriority::new(action.id, action.due, now), work)
            }
            Work::DropFills => self.drop_fills(action.id),
            _ => self.serial_queue.push(action),
        }
        self.process_events();
    }

    fn poll(&mut self, now: Nanos) -> Option<Completion> {
        self.now = now;
        if self.completions.is_empty() {
            self.process_events();
        }
        self.completions.pop_front()
    }

    fn used_bytes(&self) -> u64 {
        self.pool.used_bytes()
    }
}

fn new_host_tier(
    bytes: u64,
    block_bytes: u64,
    links: PacedLinks,
    faults: SharedFaults,
) -> Result<Arc<HostTier>, HostError> {
    let bytes = bytes - bytes % block_bytes;
    let tier = HostTier::new(bytes, block_bytes, links, faults);
    tier.map(Arc::new).map_err(|source| HostError::Tier { bytes, source })
}

/// Every slab of the geometry has its bytes in the master copy.
fn check_weights(master: &HostWeights, geometry: &Geometry) -> Result<(), HostError> {
    let layers = geometry.slab_bytes.iter().enumerate();
    let layers = layers.map(|(l, bytes)| (Slab::Layer(sluice_policy::ids::LayerId(l as u16)), *bytes));
    for (slab, needed_bytes) in std::iter::once((Slab::Global, geometry.global_bytes)).chain(layers) {
        let got_bytes = master.slab(slab).map_or(0, |bytes| bytes.len() as u64);
        if got_bytes != needed_bytes {
            return Err(HostError::Weights { slab, got_bytes, needed_bytes });
        }
    }
    Ok(())
}
