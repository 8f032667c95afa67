//! Copies by threads: slabs from the master copy into chunks, KV from the host tier and to it (DESIGN 4: host to device copy).
//!
//! Each slot has a lane, a thread that takes its fills in the order submitted and waits for the reader each one names; own
//! chunks of layers share lanes. How many lanes copy slabs at once is an option. Each buffer of KV has a lane for its
//! fetches, and one lane takes all write-backs: they share nothing with slabs but the link, which the most urgent one has
//! ([`sluice_policy::arbiter`]). An order that changes what an
//! earlier one in another lane changes waits for that one.

mod copy;
mod lane;
mod link;
mod transfer_order;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use sluice_policy::copy_priority::CopyPriority;
use sluice_policy::event::Outcome;
use sluice_policy::ids::{ActionId, Generation, LayerId};

use crate::faults::SharedFaults;
use crate::host_weights::HostWeights;
use crate::pool::ChunkPool;
use crate::tier::HostTier;
pub(crate) use link::{PacedLink, PacedLinks, set_timer_slack};
pub(crate) use transfer_order::TransferOrder;
use transfer_order::{LaneKey, WriteTarget};

/// The generations on the control page, seen from the copying side. The owner implements it over the link.
pub trait LayerGate: Send + Sync {
    /// Whether the engine's `done` of `layer` is `generation` or later.
    fn is_done(&self, layer: LayerId, generation: Generation) -> bool;

    /// Waits for it, at most about `timeout`; true when it is reached.
    fn wait_done(&self, layer: LayerId, generation: Generation, timeout: Duration) -> bool;

    /// The copy is complete: `ready` of the layer (`None` = the global slab) shows `generation` from now on.
    fn publish_ready(&self, layer: Option<LayerId>, generation: Generation);

    /// Whether the engine's `done` of the KV of `layer` is `generation` or later.
    fn is_kv_done(&self, layer: LayerId, generation: Generation) -> bool;

    /// Waits for it, at most about `timeout`; true when it is reached.
    fn wait_kv_done(&self, layer: LayerId, generation: Generation, timeout: Duration) -> bool;

    /// The buffer holds the KV of `layer`: its `ready` shows `generation` from now on.
    fn publish_kv_ready(&self, layer: LayerId, generation: Generation);
}

/// Wakes the owner when [`crate::HostMemory::poll`] has something.
pub type Notify = Arc<dyn Fn() + Send + Sync>;

/// What worker threads tell the owner.
#[derive(Debug)]
pub(crate) enum Event {
    /// A copy of a lane has ended.
    CopyDone { id: ActionId, order: TransferOrder, outcome: Outcome },
    /// The chore at hand has ended.
    JobDone(Outcome),
}

/// Where events go.
#[derive(Clone)]
pub(crate) struct CompletionSink {
    pub(crate) events: Sender<Event>,
    pub(crate) notify: Notify,
}

impl CompletionSink {
    pub(crate) fn send(&self, event: Event) {
        // The owner that is going away no longer listens, and that is all right.
        if self.events.send(event).is_ok() {
            (self.notify)();
        }
    }
}

/// What all lanes share.
struct LaneContext {
    pool: Arc<ChunkPool>,
    weights: Arc<HostWeights>,
    gate: Arc<dyn LayerGate>,
    faults: SharedFaults,
    link: Arc<PacedLink>,
    tier: Arc<HostTier>,
    threads: usize,
    completions: CompletionSink,
    state: Mutex<LaneState>,
    changed: Condvar,
}

#[derive(Default)]
struct LaneState {
    lanes: BTreeMap<LaneKey, VecDeque<Job>>,
    /// Jobs queued or running.
    active: BTreeSet<u64>,
    /// The jobs that change something, as far as they are live.
    writers: BTreeMap<WriteTarget, Vec<u64>>,
    submitted: u64,
    /// Slabs that are being copied.
    copying: usize,
    stopping: bool,
}

struct Job {
    number: u64,
    id: ActionId,
    priority: CopyPriority,
    order: TransferOrder,
    /// Earlier jobs that change the same.
    depends_on: Vec<u64>,
}

/// The copying threads. Dropping it ends them, running copies at their next chunk or block and without a wait for the link.
pub(crate) struct Transfers {
    shared: Arc<LaneContext>,
    threads: Vec<JoinHandle<()>>,
}

/// What the threads work on.
pub(crate) struct TransferResources {
    pub(crate) pool: Arc<ChunkPool>,
    pub(crate) weights: Arc<HostWeights>,
    pub(crate) gate: Arc<dyn LayerGate>,
    pub(crate) faults: SharedFaults,
    /// From the host to the device.
    pub(crate) link: Arc<PacedLink>,
    pub(crate) tier: Arc<HostTier>,
    pub(crate) completions: CompletionSink,
}

impl Transfers {
    /// `threads` copies of slabs at once.
    pub(crate) fn new(parts: TransferResources, threads: usize) -> Transfers {
        let shared = LaneContext {
            pool: parts.pool,
            weights: parts.weights,
            gate: parts.gate,
            faults: parts.faults,
            completions: parts.completions,
            link: parts.link,
            tier: parts.tier,
            threads: threads.max(1),
            state: Mutex::default(),
            changed: Condvar::new(),
        };
        Transfers { shared: Arc::new(shared), threads: Vec::new() }
    }

    /// Queues an order. What it names stays where it is until it has ended.
    pub(crate) fn submit(&mut self, id: ActionId, rank: CopyPriority, order: TransferOrder) {
        let key = order.key(self.shared.threads);
        let mut state = self.shared.lock();
        let known = state.lanes.contains_key(&key);
        let job = state.new_job(id, rank, order);
        state.lanes.entry(key).or_default().push_back(job);
        drop(state);
        self.shared.changed.notify_all();
        if !known {
            self.spawn(key);
        }
    }

    /// Takes back every fill and fetch that has not started, in the order submitted.
    pub(crate) fn drop_queued(&self) -> Vec<(ActionId, TransferOrder)> {
        let mut state = self.shared.lock();
        let lanes = state.lanes.iter_mut().filter(|(key, _)| **key != LaneKey::WriteBack);
        let mut dropped: Vec<Job> = lanes.flat_map(|(_, lane)| lane.drain(..)).collect();
        for job in &dropped {
            state.active.remove(&job.number);
        }
        drop(state);
        self.shared.changed.notify_all();
        dropped.sort_by_key(|job| job.number);
        dropped.into_iter().map(|job| (job.id, job.order)).collect()
    }

    fn spawn(&mut self, key: LaneKey) {
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name("sluice-copy".into()).spawn(move || shared.run(key));
        self.threads.push(thread.expect("the machine has room for a copying thread"));
    }
}

impl Drop for Transfers {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.changed.notify_all();
        self.shared.tier.stop();
        for thread in self.threads.drain(..) {
            // A lane that panicked has reported itself; there is nothing to hand on while dropping.
            let _ = thread.join();
        }
    }
}

impl LaneContext {
    fn lock(&self) -> MutexGuard<'_, LaneState> {
        self.state.lock().expect("no lane panics with the state locked")
    }
}

impl LaneState {
    fn new_job(&mut self, id: ActionId, rank: CopyPriority, order: TransferOrder) -> Job {
        self.submitted += 1;
        let number = self.submitted;
        let mut needs = Vec::new();
        for place in order.write_targets() {
            let writers = self.writers.entry(place).or_default();
            writers.retain(|job| self.active.contains(job));
            needs.extend_from_slice(writers);
            writers.push(number);
        }
        needs.sort_unstable();
        needs.dedup();
        self.active.insert(number);
        Job { number, id, priority: rank, order, depends_on: needs }
    }
}
