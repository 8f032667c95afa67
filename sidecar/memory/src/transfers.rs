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
mod order;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use sluice_policy::copy_priority::CopyPriority;
use sluice_policy::event::Outcome;
use sluice_policy::ids::{ActionId, Generation, LayerId};

use crate::faults::SharedFaults;
use crate::master::Master;
use crate::pool::Pool;
use crate::tier::Tier;
pub(crate) use link::{Link, Links, sleep_precisely};
pub(crate) use order::Order;
use order::{LaneKey, Place};

/// The generations on the control page, seen from the copying side. The owner implements it over the link.
pub trait Gate: Send + Sync {
    /// Whether the engine's `done` of `layer` is `generation` or later.
    fn done_reached(&self, layer: LayerId, generation: Generation) -> bool;

    /// Waits for it, at most about `timeout`; true when it is reached.
    fn wait_done(&self, layer: LayerId, generation: Generation, timeout: Duration) -> bool;

    /// The copy is complete: `ready` of the layer (`None` = the global slab) shows `generation` from now on.
    fn publish_ready(&self, layer: Option<LayerId>, generation: Generation);

    /// Whether the engine's `done` of the KV of `layer` is `generation` or later.
    fn kv_done_reached(&self, layer: LayerId, generation: Generation) -> bool;

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
    Copied { id: ActionId, order: Order, outcome: Outcome },
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
    tier: Arc<Tier>,
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
    /// The jobs that change something, as far as they are live.
    writers: BTreeMap<Place, Vec<u64>>,
    jobs: u64,
    /// Slabs that are being copied.
    copying: usize,
    stopping: bool,
}

struct Job {
    number: u64,
    id: ActionId,
    rank: CopyPriority,
    order: Order,
    /// Earlier jobs that change the same.
    needs: Vec<u64>,
}

/// The copying threads. Dropping it ends them, running copies at their next chunk or block and without a wait for the link.
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
    pub(crate) tier: Arc<Tier>,
    pub(crate) outbox: Outbox,
}

impl Transfers {
    /// `threads` copies of slabs at once.
    pub(crate) fn new(parts: Parts, threads: usize) -> Transfers {
        let shared = Shared {
            pool: parts.pool,
            master: parts.master,
            gate: parts.gate,
            faults: parts.faults,
            outbox: parts.outbox,
            link: parts.link,
            tier: parts.tier,
            threads: threads.max(1),
            state: Mutex::default(),
            changed: Condvar::new(),
        };
        Transfers { shared: Arc::new(shared), threads: Vec::new() }
    }

    /// Queues an order. What it names stays where it is until it has ended.
    pub(crate) fn submit(&mut self, id: ActionId, rank: CopyPriority, order: Order) {
        let key = order.key(self.shared.threads);
        let mut state = self.shared.lock();
        let known = state.lanes.contains_key(&key);
        let job = state.job(id, rank, order);
        state.lanes.entry(key).or_default().push_back(job);
        drop(state);
        self.shared.changed.notify_all();
        if !known {
            self.spawn(key);
        }
    }

    /// Takes back every fill and fetch that has not started, in the order submitted.
    pub(crate) fn drop_queued(&self) -> Vec<(ActionId, Order)> {
        let mut state = self.shared.lock();
        let lanes = state.lanes.iter_mut().filter(|(key, _)| **key != LaneKey::Out);
        let mut dropped: Vec<Job> = lanes.flat_map(|(_, lane)| lane.drain(..)).collect();
        for job in &dropped {
            state.live.remove(&job.number);
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

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no lane panics with the state locked")
    }
}

impl State {
    fn job(&mut self, id: ActionId, rank: CopyPriority, order: Order) -> Job {
        self.jobs += 1;
        let number = self.jobs;
        let mut needs = Vec::new();
        for place in order.places() {
            let writers = self.writers.entry(place).or_default();
            writers.retain(|job| self.live.contains(job));
            needs.extend_from_slice(writers);
            writers.push(number);
        }
        needs.sort_unstable();
        needs.dedup();
        self.live.insert(number);
        Job { number, id, rank, order, needs }
    }
}
