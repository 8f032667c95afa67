//! Copies of slabs from the master copy into chunks, by threads (DESIGN 4: host to device copy).
//!
//! Each slot has a lane, a thread that takes its fills in the order submitted and waits for the reader each one names; own
//! chunks of layers share lanes. How many lanes copy at once is an option. A fill that touches a chunk of an earlier one
//! in another lane waits for that one.

mod copy;
mod lane;
mod link;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use sluice_policy::action::{Fill, FillTarget};
use sluice_policy::event::Outcome;
use sluice_policy::ids::{ActionId, ChunkId, Generation, LayerId, SlotId};

use crate::faults::SharedFaults;
use crate::master::Master;
use crate::pool::Pool;
pub(crate) use link::{Link, Links, sleep_precisely};

/// The generations on the control page, seen from the copying side. The owner implements it over the link.
pub trait Gate: Send + Sync {
    /// Whether the engine's `done` of `layer` is `generation` or later.
    fn done_reached(&self, layer: LayerId, generation: Generation) -> bool;

    /// Waits for it, at most about `timeout`; true when it is reached.
    fn wait_done(&self, layer: LayerId, generation: Generation, timeout: Duration) -> bool;

    /// The copy is complete: `ready` of the layer (`None` = the global slab) shows `generation` from now on.
    fn publish_ready(&self, layer: Option<LayerId>, generation: Generation);
}

/// Wakes the owner when [`crate::HostMemory::poll`] has something.
pub type Notify = Arc<dyn Fn() + Send + Sync>;

/// What worker threads tell the owner.
#[derive(Debug)]
pub(crate) enum Event {
    /// A fill has ended.
    Filled { id: ActionId, chunks: Vec<ChunkId>, outcome: Outcome },
    /// The chore at hand has ended.
    Chore(Outcome),
}

/// Where events go.
#[derive(Clone)]
pub(crate) struct Outbox {
    pub(crate) events: Sender<Event>,
    pub(crate) notify: Notify,
}

impl Outbox {
    pub(crate) fn send(&self, event: Event) {
        // The owner that is going away no longer listens, and that is all right.
        if self.events.send(event).is_ok() {
            (self.notify)();
        }
    }
}

/// What all lanes share.
struct Shared {
    pool: Arc<Pool>,
    master: Arc<Master>,
    gate: Arc<dyn Gate>,
    faults: SharedFaults,
    link: Arc<Link>,
    threads: usize,
    outbox: Outbox,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    lanes: BTreeMap<LaneKey, VecDeque<Job>>,
    /// Jobs queued or running.
    live: BTreeSet<u64>,
    /// The jobs that write a chunk, as far as they are live.
    writers: BTreeMap<ChunkId, Vec<u64>>,
    jobs: u64,
    copying: usize,
    stopping: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LaneKey {
    Slot(SlotId),
    Own(usize),
}

struct Job {
    number: u64,
    id: ActionId,
    fill: Fill,
    /// Earlier jobs that write the same chunks.
    needs: Vec<u64>,
}

/// The copying threads. Dropping it ends them, running copies at their next chunk.
pub(crate) struct Transfers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What the threads work on.
pub(crate) struct Parts {
    pub(crate) pool: Arc<Pool>,
    pub(crate) master: Arc<Master>,
    pub(crate) gate: Arc<dyn Gate>,
    pub(crate) faults: SharedFaults,
    /// From the host to the device.
    pub(crate) link: Arc<Link>,
    pub(crate) outbox: Outbox,
}

impl Transfers {
    /// `threads` copies at once.
    pub(crate) fn new(parts: Parts, threads: usize) -> Transfers {
        let shared = Shared {
            pool: parts.pool,
            master: parts.master,
            gate: parts.gate,
            faults: parts.faults,
            outbox: parts.outbox,
            link: parts.link,
            threads: threads.max(1),
            state: Mutex::default(),
            changed: Condvar::new(),
        };
        Transfers { shared: Arc::new(shared), threads: Vec::new() }
    }

    /// Queues a fill. Its chunks exist until it has ended.
    pub(crate) fn submit(&mut self, id: ActionId, fill: Fill) {
        let key = self.key(fill.target);
        let mut state = self.shared.lock();
        let known = state.lanes.contains_key(&key);
        let job = state.job(id, fill);
        state.lanes.entry(key).or_default().push_back(job);
        drop(state);
        self.shared.changed.notify_all();
        if !known {
            self.spawn(key);
        }
    }

    /// Takes back every fill that has not started: their ids and chunks, in the order submitted.
    pub(crate) fn drop_queued(&self) -> Vec<(ActionId, Vec<ChunkId>)> {
        let mut state = self.shared.lock();
        let mut dropped: Vec<Job> = state.lanes.values_mut().flat_map(|lane| lane.drain(..)).collect();
        for job in &dropped {
            state.live.remove(&job.number);
        }
        drop(state);
        self.shared.changed.notify_all();
        dropped.sort_by_key(|job| job.number);
        dropped.into_iter().map(|job| (job.id, job.fill.chunks)).collect()
    }

    fn key(&self, target: FillTarget) -> LaneKey {
        match target {
            FillTarget::Slot(slot, _) => LaneKey::Slot(slot),
            FillTarget::Global => LaneKey::Own(0),
            FillTarget::Resident(layer) => LaneKey::Own(layer.index() % self.shared.threads),
        }
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
        for thread in self.threads.drain(..) {
            // A lane that panicked has reported itself; there is nothing to hand on while dropping.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no lane panics with the state locked")
    }
}

impl State {
    fn job(&mut self, id: ActionId, fill: Fill) -> Job {
        self.jobs += 1;
        let number = self.jobs;
        let mut needs = Vec::new();
        for chunk in &fill.chunks {
            let writers = self.writers.entry(*chunk).or_default();
            writers.retain(|job| self.live.contains(job));
            needs.extend_from_slice(writers);
            writers.push(number);
        }
        needs.sort_unstable();
        needs.dedup();
        self.live.insert(number);
        Job { number, id, fill, needs }
    }
}
