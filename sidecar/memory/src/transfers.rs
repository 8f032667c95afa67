//! Copy threads: slabs from the host weights to chunks, and KV between the host tier and the device.
//!
//! Each slot has a lane, a thread that runs its fills in submission order and waits for the reader that each
//! fill names. Fills of other chunks share lanes. An option limits how many slabs are copied at once. Each KV
//! buffer has a lane for its fetches and spills, and one lane runs all write-backs. These lanes share only
//! the link with the slabs; the most urgent transfer has it ([`sluice_policy::copy_priority`]). An order
//! waits for earlier orders of other lanes that write the same target.

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

/// The generations on the control page, as the copying side uses them. The owner implements it over the link.
pub trait LayerGate: Send + Sync {
    /// Whether the engine's `done` of `layer` is at least `generation`.
    fn is_done(&self, layer: LayerId, generation: Generation) -> bool;

    /// Waits at most about `timeout` until `is_done` holds; returns whether it does.
    fn wait_done(&self, layer: LayerId, generation: Generation, timeout: Duration) -> bool;

    /// Publishes that the copy is complete: `ready` of the layer (`None` = the global slab) becomes
    /// `generation`.
    fn publish_ready(&self, layer: Option<LayerId>, generation: Generation);

    /// Whether the engine's `done` of the KV of `layer` is at least `generation`.
    fn is_kv_done(&self, layer: LayerId, generation: Generation) -> bool;

    /// Waits at most about `timeout` until `is_kv_done` holds; returns whether it does.
    fn wait_kv_done(&self, layer: LayerId, generation: Generation, timeout: Duration) -> bool;

    /// Publishes that the buffer contains the KV of `layer`: its `ready` becomes `generation`.
    fn publish_kv_ready(&self, layer: LayerId, generation: Generation);
}

/// Wakes the owner when [`sluice_ports::Memory::poll`] may have a completion.
pub type Notify = Arc<dyn Fn() + Send + Sync>;

/// Report of a worker thread to the owner.
#[derive(Debug)]
pub(crate) enum Event {
    /// A lane has ended a copy.
    CopyDone { id: ActionId, order: TransferOrder, outcome: Outcome },
    /// The serial worker has ended its job.
    JobDone(Outcome),
}

/// Sends events to the owner.
#[derive(Clone)]
pub(crate) struct CompletionSink {
    pub(crate) events: Sender<Event>,
    pub(crate) notify: Notify,
}

impl CompletionSink {
    pub(crate) fn send(&self, event: Event) {
        // The receiver no longer exists while the owner is being dropped.
        if self.events.send(event).is_ok() {
            (self.notify)();
        }
    }
}

/// State that all lanes share.
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
    /// Numbers of queued and running jobs.
    active: BTreeSet<u64>,
    /// Jobs that write each target; inactive ones are removed lazily.
    writers: BTreeMap<WriteTarget, Vec<u64>>,
    submitted: u64,
    /// Number of slab copies in progress.
    copying: usize,
    stopping: bool,
}

struct Job {
    number: u64,
    id: ActionId,
    priority: CopyPriority,
    order: TransferOrder,
    /// Earlier jobs that write the same targets.
    depends_on: Vec<u64>,
}

/// The copy threads. Dropping it ends them; running copies stop at their next chunk or block without waiting
/// for the link.
pub(crate) struct Transfers {
    shared: Arc<LaneContext>,
    threads: Vec<JoinHandle<()>>,
}

/// Resources of the copy threads.
pub(crate) struct TransferResources {
    pub(crate) pool: Arc<ChunkPool>,
    pub(crate) weights: Arc<HostWeights>,
    pub(crate) gate: Arc<dyn LayerGate>,
    pub(crate) faults: SharedFaults,
    /// Link from the host to the device.
    pub(crate) link: Arc<PacedLink>,
    pub(crate) tier: Arc<HostTier>,
    pub(crate) completions: CompletionSink,
}

impl Transfers {
    /// Creates the copy threads' state; at most `threads` slabs are copied at once.
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

    /// Queues an order. The chunks and blocks that it names must not change until it has ended.
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

    /// Removes every fill, fetch and spill that has not started and returns them in submission order.
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
            // A lane that panicked has reported itself; a drop cannot propagate the panic.
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
