//! The simulated GPU: chunks with fingerprints, a link that fills them, layers that read them, one virtual clock.

mod arbiter;
mod copies;
mod copy_op;
mod detail;
mod kv;
pub mod profile;
mod sim_faults;
mod swap_transfer;
mod write_back;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use sluice_common::random::Rng;
use sluice_policy::event::{Completion, Outcome};
use sluice_policy::geometry::Geometry;
use sluice_policy::ids::{ActionId, Generation, LayerId, Nanos};
use sluice_ports::fake_memory::FakeMemory;

use crate::compute::RunningStep;
use crate::direction::Direction;
use crate::gpu_ledger::Quota;
use crate::machine::{LinkTransfer, Machine, SharedMachine};
use copy_op::{QueuedCopy, RunningCopy};
pub use detail::Detail;
pub(crate) use kv::LayerBlockAccess;
pub use profile::{Kernels, Profile};
pub use sim_faults::SimFaults;
pub(crate) use swap_transfer::SwapTransfer;
use write_back::{QueuedWriteBack, RunningWriteBack};

/// One device, shared by the memory and compute ports.
pub type SharedDevice = Rc<RefCell<SimDevice>>;

/// A simulated device.
#[derive(Debug)]
pub struct SimDevice {
    /// Sizes of the model and the memory.
    pub geometry: Geometry,
    /// Speeds.
    pub profile: Profile,
    /// Active faults.
    pub faults: SimFaults,
    /// Generator that decides about faults.
    pub rng: Rng,
    /// Chunks, addresses and the host tier.
    pub memory: FakeMemory,
    /// The link and the processors, shared with peers.
    pub machine: SharedMachine,
    /// The ledger of the GPU, shared with peers; `None` if this device has all of the capacity.
    pub quota: Option<Quota>,
    /// Level of detail.
    pub detail: Detail,
    /// `ready` of the global slab.
    pub ready_global: Generation,
    /// `ready` of each layer.
    pub ready: BTreeMap<LayerId, Generation>,
    /// `done` of each layer.
    pub done: BTreeMap<LayerId, Generation>,
    /// KV `ready` of each layer.
    pub kv_ready: BTreeMap<LayerId, Generation>,
    /// KV `done` of each layer.
    pub kv_done: BTreeMap<LayerId, Generation>,
    /// Waiting copies to the device and out of buffers, in order.
    copies: VecDeque<QueuedCopy>,
    running_copy: Option<RunningCopy>,
    running_spill: Option<RunningCopy>,
    /// Waiting write-backs, in order.
    write_backs: VecDeque<QueuedWriteBack>,
    running_write_back: Option<RunningWriteBack>,
    /// The current swap, which waits for the link or uses it.
    swap_transfer: Option<SwapTransfer>,
    /// Completions that the memory port has not returned yet.
    pub completions: VecDeque<Completion>,
    /// `DropFills` that wait for running copies.
    pending_drops: Vec<ActionId>,
    /// Reads of wrong contents by steps that have ended.
    pub wrong_reads: u64,
    /// The running step.
    pub run: Option<RunningStep>,
    clock: Nanos,
}

impl SimDevice {
    /// Creates an empty device without a host tier.
    pub fn new(geometry: Geometry, profile: Profile, seed: u64) -> SharedDevice {
        SimDevice::with_host_tier(geometry, profile, seed, 0)
    }

    /// Creates an empty device with a host tier of `host_blocks` layer blocks.
    pub fn with_host_tier(geometry: Geometry, profile: Profile, seed: u64, host_blocks: u32) -> SharedDevice {
        Rc::new(RefCell::new(SimDevice {
            wrong_reads: 0,
            machine: Machine::single_tenant(),
            quota: None,
            detail: Detail::default(),
            memory: FakeMemory::new(geometry.layer_blocks_per_chunk(), host_blocks),
            geometry,
            profile,
            faults: SimFaults::default(),
            rng: Rng::new(seed),
            ready_global: Generation(0),
            ready: BTreeMap::new(),
            done: BTreeMap::new(),
            kv_ready: BTreeMap::new(),
            kv_done: BTreeMap::new(),
            copies: VecDeque::new(),
            running_copy: None,
            running_spill: None,
            write_backs: VecDeque::new(),
            running_write_back: None,
            swap_transfer: None,
            completions: VecDeque::new(),
            pending_drops: Vec::new(),
            run: None,
            clock: Nanos(0),
        }))
    }

    /// Returns the virtual time of the device.
    pub fn clock(&self) -> Nanos {
        self.clock
    }

    /// Processes all events until `now` in time order; copies before layers at the same time.
    pub fn advance(&mut self, now: Nanos) {
        self.kick();
        while let Some(due) = self.next_due().filter(|due| *due <= now) {
            self.clock = self.clock.max(due);
            if self.running_copy.as_ref().is_some_and(|c| c.transfer.ends <= due) {
                self.end_copy();
            } else if self.running_spill.as_ref().is_some_and(|s| s.transfer.ends <= due) {
                self.end_spill();
            } else if self.running_write_back.as_ref().is_some_and(|w| w.transfer.ends <= due) {
                self.end_write_back();
            } else if let Some(mut run) = self.run.take_if(|run| run.layer_ends() == Some(due)) {
                run.end_layer(self, due);
                self.run = Some(run);
            }
            self.kick();
        }
        self.clock = self.clock.max(now);
        self.kick();
    }

    /// Returns the time of the next event.
    pub fn next_due(&self) -> Option<Nanos> {
        let copy = self.running_copy.as_ref().map(|c| c.transfer.ends);
        let spilling = self.running_spill.as_ref().map(|s| s.transfer.ends);
        let writing = self.running_write_back.as_ref().map(|w| w.transfer.ends);
        let layer = self.run.as_ref().and_then(RunningStep::layer_ends);
        [copy, spilling, writing, self.swap_transfer_end(), layer].into_iter().flatten().min()
    }

    /// Starts the most urgent copy in each direction of the link, and the waiting layer if its slab and KV are ready.
    fn kick(&mut self) {
        self.serve_link();
        if let Some(mut run) = self.run.take() {
            run.start_layer(self);
            self.run = Some(run);
        }
    }

    /// Starts a transfer at `now`, or when the link is free. A slow-copy fault makes it ten times slower.
    pub(crate) fn start_transfer(&mut self, now: Nanos, way: Direction, bytes: u64) -> LinkTransfer {
        let slowdown = if self.rng.chance(self.faults.copy_slow_permille) { 10 } else { 1 };
        self.machine.borrow_mut().transfer(now, way, bytes, &self.profile, slowdown)
    }
}

/// Builds the completion of a successful operation.
pub const fn completion(id: ActionId, bytes: u64, duration_ns: u64) -> Completion {
    Completion { id, outcome: Outcome::Done { bytes, duration_ns } }
}
