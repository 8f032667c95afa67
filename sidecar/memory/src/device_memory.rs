//! [`DeviceMemory`]: the implementation of [`sluice_ports::Memory`] over a [`Backing`].
//!
//! All operations except copies form one serial queue. A `Transaction` stays at its head until the engine has
//! acknowledged it. Fills, fetches, spills and write-backs go directly to their lanes, unless an operation in
//! the queue refers to one of their chunks or host blocks.

mod async_copies;
mod copy_queue;
mod layer_block_reservations;
mod operation_refs;
mod serial_operations;
mod serial_queue;
mod serial_worker;
mod table;
mod tier;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use rustix::fd::BorrowedFd;
use sluice_policy::action::{Action, Address, MapOp, Work};
use sluice_policy::copy_priority::CopyPriority;
use sluice_policy::event::{Completion, Failure, Outcome};
use sluice_policy::geometry::Geometry;
use sluice_policy::ids::{ActionId, ChunkId, Nanos};
use sluice_ports::Memory;

use crate::backing::{Backing, BackingError};
use crate::faults::{Faults, SharedFaults};
use crate::host_backing::HostBacking;
use crate::host_weights::{HostWeights, Slab};
use crate::mapping::RangeSizes;
use crate::pool::ChunkPool;
use crate::quota::Quota;
use crate::tier::HostTier;
use crate::transfers::{CompletionSink, Event, LayerGate, Notify, PacedLinks, TransferResources, Transfers};
use copy_queue::CopyQueue;
use layer_block_reservations::LayerBlockReservations;
use serial_queue::SerialQueue;
use serial_worker::{ChunkAllocator, SerialWorker};
use table::MappingTable;

/// Sends transactions and releases to the engine.
pub trait EngineConnection: Send {
    /// Sends the changes to the engine, which answers through [`DeviceMemory::on_acknowledge`]. Returns false
    /// if no engine is attached, so there is no answer to wait for.
    fn remap(&mut self, id: ActionId, ops: &[MapOp]) -> bool;

    /// Asks the engine to release its imports of chunks, which are not mapped: their memory is free only then. It
    /// answers as to `remap`. Returns false if no engine is attached, or if engines import no chunks, as from host memory.
    fn release(&mut self, _id: ActionId, _chunks: &[ChunkId]) -> bool {
        false
    }
}

/// Configuration of a device memory.
#[derive(Clone, Debug)]
pub struct MemoryOptions {
    /// Sizes of the tenant.
    pub geometry: Geometry,
    /// The engine's ranges; an address outside them is refused.
    pub ranges: RangeSizes,
    /// Overwrite every handed-over chunk with NaN before it is mapped again.
    pub poison: bool,
    /// Maximum number of concurrent slab copies; at least 1.
    pub copy_threads: usize,
    /// Bandwidth of the host link in each direction; `None` = not limited.
    pub link_bytes_per_s: Option<u64>,
    /// Bandwidth from the device to the host if it differs; `None` = the same.
    pub to_host_bytes_per_s: Option<u64>,
    /// Host memory for KV, allocated at start and rounded down to whole blocks; 0 = no tier, and every swap
    /// is refused.
    pub host_kv_bytes: u64,
    /// Accounting of the GPU's bytes.
    pub quota: Arc<dyn Quota>,
}

/// Why a device memory could not be created.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The host weights belong to another model.
    #[error("the host copy of {slab:?} has {got_bytes} bytes, but the geometry needs {needed_bytes}")]
    Weights {
        /// The slab that differs.
        slab: Slab,
        /// Bytes in the host weights, 0 for a missing slab.
        got_bytes: u64,
        /// Bytes of the slab by the geometry.
        needed_bytes: u64,
    },
    /// The machine has no memory for the host tier.
    #[error("cannot allocate {bytes} bytes of host memory for KV")]
    Tier {
        /// Requested bytes, in whole blocks.
        bytes: u64,
        /// What the backing answered.
        #[source]
        source: BackingError,
    },
    /// The chunks' memory could not be set up.
    #[error(transparent)]
    Backing(#[from] BackingError),
}

/// KV bytes copied asynchronously to steps since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvCopyStats {
    /// Fetched into buffers ([`Work::Fetch`]).
    pub fetched_bytes: u64,
    /// Copied to the host ([`Work::WriteBack`], [`Work::Spill`]).
    pub written_back_bytes: u64,
}

/// A difference between the backend's table and the expected mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{address:?} is backed by {backing:?}, but the chunk table has {expected:?}")]
pub struct AuditError {
    /// The address that differs.
    pub address: Address,
    /// Chunk in the backend's table.
    pub backing: Option<ChunkId>,
    /// Expected chunk.
    pub expected: Option<ChunkId>,
}

/// Chunks, their mappings and the copies into them. Dropping it ends its threads, then frees the chunks.
pub struct DeviceMemory {
    // The threads are dropped first, so that they end before the objects they use.
    worker: SerialWorker,
    transfers: Transfers,
    links: PacedLinks,
    tier: Arc<HostTier>,
    reservations: LayerBlockReservations,
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
    /// Time of the last call.
    now: Nanos,
}

impl DeviceMemory {
    /// Creates host memory that stands in for device memory, without chunks. See [`DeviceMemory::over`].
    pub fn new(
        options: MemoryOptions,
        master: Arc<HostWeights>,
        gate: Arc<dyn LayerGate>,
        engine: Box<dyn EngineConnection>,
        notify: Notify,
    ) -> Result<DeviceMemory, MemoryError> {
        let Geometry { chunk_bytes, capacity_chunks, .. } = options.geometry;
        let backing = HostBacking::new(chunk_bytes, capacity_chunks)?;
        DeviceMemory::over(Box::new(backing), options, master, gate, engine, notify)
    }

    /// Creates a memory without chunks over `backing`, which has the geometry's chunk size. Worker threads call
    /// `notify` when [`Memory::poll`] may have a completion.
    pub fn over(
        backing: Box<dyn Backing>,
        options: MemoryOptions,
        master: Arc<HostWeights>,
        gate: Arc<dyn LayerGate>,
        engine: Box<dyn EngineConnection>,
        notify: Notify,
    ) -> Result<DeviceMemory, MemoryError> {
        let MemoryOptions { geometry, ranges, poison, copy_threads, host_kv_bytes, quota, .. } = options;
        check_weights(&master, &geometry)?;
        let both = options.link_bytes_per_s;
        let pool = Arc::new(ChunkPool::over(backing, geometry.chunk_bytes, geometry.capacity_chunks));
        let links = PacedLinks::new(both, options.to_host_bytes_per_s.or(both), pool.piece_bytes());
        let faults = SharedFaults::default();
        let tier =
            new_host_tier(&pool, host_kv_bytes, geometry.layer_block_bytes, links.clone(), faults.clone())?;
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
        Ok(DeviceMemory {
            worker: chores,
            transfers: Transfers::new(parts, copy_threads),
            links,
            tier,
            reservations: LayerBlockReservations::default(),
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

    /// Returns the file from which engines map chunks, if one holds all of them; chunk `c` starts at byte
    /// `c * chunk_bytes`. Without it, engines get each chunk from [`DeviceMemory::pool`].
    pub fn pool_file(&self) -> Option<BorrowedFd<'_>> {
        self.pool.file()
    }

    /// Returns the chunks. Any thread may export them while they exist.
    pub fn pool(&self) -> &Arc<ChunkPool> {
        &self.pool
    }

    /// Returns the bytes that copies have moved; rises while a copy makes progress.
    pub fn transferred_bytes(&self) -> u64 {
        self.links.transferred_bytes()
    }

    /// Handles the engine's answer to a transaction or a release. If not `ok`, the engine has changed nothing, and the
    /// operation fails. Returns false if no such operation is pending, for example after
    /// [`DeviceMemory::on_engine_lost`].
    pub fn on_acknowledge(&mut self, id: ActionId, ok: bool) -> bool {
        let known = self.complete_remap(id, ok) || self.complete_engine_release(id, ok);
        self.process_events();
        known
    }

    /// Completes the pending transaction or release after the engine has exited: its mappings and imports no longer
    /// exist. The [`EngineConnection`] must already know that no engine is attached.
    pub fn on_engine_lost(&mut self) {
        if let Some(id) = self.serial_queue.awaiting_ack() {
            self.on_acknowledge(id, true);
        }
    }

    /// Returns the operations that map everything in the table. They are sent first to an engine that
    /// replaces another.
    pub fn snapshot(&self) -> Vec<MapOp> {
        self.table.mappings().map(|(address, chunk)| MapOp::Map(address, chunk)).collect()
    }

    /// Returns the first difference between this table and `expected` as the error.
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

    /// Injects faults (tests).
    pub fn set_faults(&self, faults: Faults) {
        self.faults.set(faults);
    }

    /// Changes the link's bandwidth in each direction, also for copies in progress; `None` = not limited.
    pub fn set_link_bandwidth(&self, bytes_per_s: Option<u64>) {
        self.links.to_device.set(bytes_per_s);
        self.links.to_host.set(bytes_per_s);
    }

    /// Changes only the bandwidth from the device to the host.
    pub fn set_to_host_bandwidth(&self, bytes_per_s: Option<u64>) {
        self.links.to_host.set(bytes_per_s);
    }

    /// Returns the KV bytes copied asynchronously so far.
    pub fn kv_copy_stats(&self) -> KvCopyStats {
        self.kv_copy_stats
    }

    /// Handles the events of worker threads and starts operations that became ready.
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

impl Memory for DeviceMemory {
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
    pool: &ChunkPool,
    bytes: u64,
    layer_block_bytes: u64,
    links: PacedLinks,
    faults: SharedFaults,
) -> Result<Arc<HostTier>, MemoryError> {
    let bytes = bytes - bytes % layer_block_bytes;
    let region = pool.host_region(bytes).map_err(|source| MemoryError::Tier { bytes, source })?;
    Ok(Arc::new(HostTier::new(region, layer_block_bytes, links, faults)))
}

/// Checks that the host weights contain every slab of the geometry with its size.
fn check_weights(master: &HostWeights, geometry: &Geometry) -> Result<(), MemoryError> {
    let layers = geometry.slab_bytes.iter().enumerate();
    let layers = layers.map(|(l, bytes)| (Slab::Layer(sluice_policy::ids::LayerId(l as u16)), *bytes));
    for (slab, needed_bytes) in std::iter::once((Slab::Global, geometry.global_bytes)).chain(layers) {
        let got_bytes = master.slab_bytes(slab).unwrap_or(0);
        if got_bytes != needed_bytes {
            return Err(MemoryError::Weights { slab, got_bytes, needed_bytes });
        }
    }
    Ok(())
}
