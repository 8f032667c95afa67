//! The simulated GPU: chunks that hold fingerprints, a link that fills them, layers that read them, one virtual time.

mod arbiter;
mod copies;
mod kv;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use sluice_policy::action::Address;
use sluice_policy::event::{Completion, Outcome};
use sluice_policy::geometry::Geometry;
use sluice_policy::ids::{ActionId, BlockId, ChunkId, FrameId, Generation, LayerId, Nanos};

use crate::compute::RunningStep;
use crate::gpu_ledger::Quota;
use crate::machine::{Direction, LinkTransfer, Machine, SharedMachine};
use crate::profiles::cost::Launch;
use crate::profiles::hardware::Hardware;
use crate::profiles::model::Model;
use crate::rng::Rng;
pub(crate) use arbiter::SwapTransfer;
use copies::{QueuedCopy, RunningCopy};
pub(crate) use kv::BlockAccess;
use kv::{QueuedWriteBack, RunningWriteBack};

/// Memory and compute of one GPU share one device.
pub type SharedDevice = Rc<RefCell<Device>>;

/// Speeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Host-to-device bandwidth, bytes per second.
    pub link_bytes_per_second: u64,
    /// Device-to-host bandwidth, bytes per second.
    pub out_bytes_per_second: u64,
    /// What is left of the rate into the device while bytes also go out, permille.
    pub coupled_permille: u64,
    /// Start-up time of a copy.
    pub copy_start_ns: u64,
    /// Time of one change of mappings.
    pub reback_ns: u64,
    /// Time of one layer for each chunk of a step, any shape.
    pub layer_ns: u64,
    /// Time of one layer more for each token.
    pub layer_token_ns: u64,
    /// Time between an engine's death and its successor's attachment.
    pub restart_ns: u64,
    /// A published machine and model: their times instead of `layer_ns` and `layer_token_ns`.
    pub kernels: Option<Kernels>,
}

/// What the time of a step is taken from, when it is a model's on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernels {
    /// The machine, or the part of it that is the tenant's.
    pub hardware: Hardware,
    /// The model.
    pub model: Model,
    /// How kernels are launched.
    pub launch: Launch,
}

/// How much of a device is simulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// Fingerprints in every chunk and block: a mistake about memory changes a token. For small models.
    #[default]
    Fingerprints,
    /// Sizes, mappings and times only; tokens are numbers without a meaning, and what orders say of blocks of KV is taken
    /// as it is. For models of published size.
    Times,
}

impl Profile {
    /// The machine's link under a model's kernels. One change of mappings costs 100 us, an engine restarts in 5 s.
    pub fn of(kernels: Kernels) -> Profile {
        let link = &kernels.hardware.link;
        Profile {
            link_bytes_per_second: link.in_bytes_per_s,
            out_bytes_per_second: link.out_bytes_per_s,
            coupled_permille: link.coupled_permille.into(),
            copy_start_ns: link.setup_ns,
            reback_ns: 100_000,
            restart_ns: 5_000_000_000,
            kernels: Some(kernels),
            ..Profile::default()
        }
    }

    /// Time of a copy of `bytes` that has the link for itself, nanoseconds.
    pub fn copy_ns(&self, way: Direction, bytes: u64) -> u64 {
        let rate = match way {
            Direction::In => self.link_bytes_per_second,
            Direction::Out => self.out_bytes_per_second,
        };
        self.copy_start_ns + (u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1))) as u64
    }
}

impl Default for Profile {
    fn default() -> Self {
        Profile {
            link_bytes_per_second: 16_000_000_000,
            out_bytes_per_second: 16_000_000_000,
            coupled_permille: 1000,
            copy_start_ns: 1_000,
            reback_ns: 20_000,
            layer_ns: 100_000,
            layer_token_ns: 500,
            restart_ns: 5_000_000,
            kernels: None,
        }
    }
}

/// Fault model: what may go wrong, each with its own chance; and six planted bugs for negative controls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Copies and swaps that fail, permille.
    pub copy_fails_permille: u64,
    /// Copies and swaps that take ten times as long, permille.
    pub copy_slow_permille: u64,
    /// Changes of mappings, block moves and swaps that are refused, permille.
    pub refused_permille: u64,
    /// Creations that fail although there is room, permille.
    pub create_fails_permille: u64,
    /// Creations beyond this many chunks fail although the capacity would hold them.
    pub create_limit: Option<u32>,
    /// The next step that samples finds no candidate in its first row: logits that are no numbers.
    pub no_candidate: bool,
    /// Planted bug: `ready` is published when a copy starts.
    pub publish_early: bool,
    /// Planted bug: fills and fetches do not wait for the previous reader of the slot or buffer.
    pub ignore_after: bool,
    /// Planted bug: spills do not wait for the step that writes what they copy.
    pub spill_early: bool,
    /// Planted bug: the next fill that completes holds a wrong byte.
    pub flip_next_fill: bool,
    /// Planted bug: addresses that nothing backs after a transaction keep what was behind them, and nobody looks who owns it.
    pub keep_unmapped: bool,
    /// Planted bug: the first block that comes back from the host is the contents of the host block beside its own.
    pub swap_in_wrong_block: bool,
}

/// What a chunk holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing that anybody may read: fresh, handed over, or half written.
    Garbage,
    /// Part `index` of a slab.
    Slab {
        /// `None` = embeddings, head and norm.
        layer: Option<LayerId>,
        /// Its name.
        generation: Generation,
        /// Chunk of the slab, front first.
        index: u32,
    },
    /// Layer-blocks.
    Kv(Vec<Tokens>),
}

/// What a layer-block holds: a fingerprint for each token; `None` where nothing was written.
pub type Tokens = [Option<u64>; 16];

/// A block of the host tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostBlock {
    /// What it carries; `None` = nothing that anybody may read.
    pub generation: Option<Generation>,
    /// Its bytes.
    pub tokens: Tokens,
}

/// The device.
#[derive(Debug)]
pub struct Device {
    /// Sizes.
    pub geometry: Geometry,
    /// Speeds.
    pub profile: Profile,
    /// Faults.
    pub faults: Faults,
    /// Decides about faults.
    pub rng: Rng,
    /// Chunks that exist, and what they hold.
    pub chunks: BTreeMap<ChunkId, Content>,
    /// What backs each address.
    pub table: BTreeMap<Address, ChunkId>,
    /// The addresses that each chunk backs; those that back none are not in it.
    pub(crate) mapped: BTreeMap<ChunkId, Vec<Address>>,
    /// The link and the processors, which neighbours use as well.
    pub machine: SharedMachine,
    /// The GPU's bytes, which neighbours hold as well; none where all of the capacity is this device's.
    pub quota: Option<Quota>,
    /// What is simulated.
    pub detail: Detail,
    /// The host tier, by block; empty = there is none.
    pub host: Vec<HostBlock>,
    /// `ready` of the global slab.
    pub ready_global: Generation,
    /// `ready` of each layer.
    pub ready: BTreeMap<LayerId, Generation>,
    /// `done` of each layer.
    pub done: BTreeMap<LayerId, Generation>,
    /// What the KV word `ready` of each layer shows.
    pub kv_ready: BTreeMap<LayerId, Generation>,
    /// What its KV word `done` shows.
    pub kv_done: BTreeMap<LayerId, Generation>,
    /// Copies to the device and out of buffers that wait, in order.
    copies: VecDeque<QueuedCopy>,
    running_copy: Option<RunningCopy>,
    running_spill: Option<RunningCopy>,
    /// Write-backs that wait, in order.
    write_backs: VecDeque<QueuedWriteBack>,
    running_write_back: Option<RunningWriteBack>,
    /// The swap between two steps, or of KV that comes home, that wants the link or has it.
    swap_transfer: Option<SwapTransfer>,
    /// Completions of copies.
    pub completions: VecDeque<Completion>,
    /// `DropFills` that wait for the copy under way.
    pending_drops: Vec<ActionId>,
    /// Reads of memory that held something else than it should have, by steps that have ended.
    pub wrong_reads: u64,
    /// The step that runs.
    pub run: Option<RunningStep>,
    clock: Nanos,
}

impl Device {
    /// An empty device without a host tier.
    pub fn new(geometry: Geometry, profile: Profile, seed: u64) -> SharedDevice {
        Device::with_host_tier(geometry, profile, seed, 0)
    }

    /// An empty device with a tier of `host_blocks` layer-blocks in host memory.
    pub fn with_host_tier(geometry: Geometry, profile: Profile, seed: u64, host_blocks: u32) -> SharedDevice {
        Rc::new(RefCell::new(Device {
            mapped: BTreeMap::new(),
            wrong_reads: 0,
            machine: Machine::single_tenant(),
            quota: None,
            detail: Detail::default(),
            geometry,
            profile,
            faults: Faults::default(),
            rng: Rng::new(seed),
            chunks: BTreeMap::new(),
            table: BTreeMap::new(),
            host: vec![HostBlock::default(); host_blocks as usize],
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

    /// Virtual time of the device.
    pub fn clock(&self) -> Nanos {
        self.clock
    }

    /// Lets everything happen that happens by `now`, in order of time; copies before layers at the same moment.
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

    /// The next moment at which something ends.
    pub fn next_due(&self) -> Option<Nanos> {
        let copy = self.running_copy.as_ref().map(|c| c.transfer.ends);
        let spilling = self.running_spill.as_ref().map(|s| s.transfer.ends);
        let writing = self.running_write_back.as_ref().map(|w| w.transfer.ends);
        let layer = self.run.as_ref().and_then(RunningStep::layer_ends);
        [copy, spilling, writing, self.swap_transfer_end(), layer].into_iter().flatten().min()
    }

    /// Starts what can start: in each direction of the link the most urgent copy, and the layer that waits if its slab and KV are
    /// there.
    fn kick(&mut self) {
        self.serve_link();
        if let Some(mut run) = self.run.take() {
            run.start_layer(self);
            self.run = Some(run);
        }
    }

    /// A copy begins at `now`, or when the link is free. Now and then it takes ten times as long where the faults say so.
    pub(crate) fn start_transfer(&mut self, now: Nanos, way: Direction, bytes: u64) -> LinkTransfer {
        let slowdown = if self.rng.chance(self.faults.copy_slow_permille) { 10 } else { 1 };
        self.machine.borrow_mut().transfer(now, way, bytes, &self.profile, slowdown)
    }

    /// What stands behind an address. `None` = nothing is mapped there.
    pub fn content(&self, address: Address) -> Option<&Content> {
        self.chunks.get(self.table.get(&address)?)
    }

    /// The layer-block's tokens, for writing. `None` = its frame is not backed.
    pub fn block_mut(&mut self, block: BlockId) -> Option<&mut Tokens> {
        let per_chunk = self.geometry.blocks_per_chunk();
        let chunk = *self.table.get(&Address::Kv(FrameId(block.0 / per_chunk)))?;
        self.chunk_block_mut(chunk, block.0 % per_chunk)
    }

    /// Block `position` of a chunk that holds KV, or begins to.
    pub fn chunk_block_mut(&mut self, chunk: ChunkId, position: u32) -> Option<&mut Tokens> {
        let per_chunk = self.geometry.blocks_per_chunk() as usize;
        let content = self.chunks.get_mut(&chunk)?;
        if !matches!(content, Content::Kv(_)) {
            *content = Content::Kv(vec![[None; 16]; per_chunk]);
        }
        match content {
            Content::Kv(blocks) => blocks.get_mut(position as usize),
            _ => None,
        }
    }
}

/// A completion that went well.
pub const fn completion(id: ActionId, bytes: u64, duration_ns: u64) -> Completion {
    Completion { id, outcome: Outcome::Done { bytes, duration_ns } }
}
