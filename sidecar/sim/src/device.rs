//! The simulated GPU: chunks that hold fingerprints, a link that fills them, layers that read them, one virtual time.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use sluice_policy::action::{Address, Fill, FillTarget};
use sluice_policy::event::{Completion, Failure, Outcome};
use sluice_policy::geometry::Geometry;
use sluice_policy::ids::{ActionId, BlockId, ChunkId, FrameId, Generation, LayerId, Nanos};

use crate::compute::Run;
use crate::rng::Rng;

/// Memory and compute of one GPU share one device.
pub type Shared = Rc<RefCell<Device>>;

/// Speeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Host-to-device bandwidth, bytes per second.
    pub link_bytes_per_second: u64,
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
}

impl Default for Profile {
    fn default() -> Self {
        Profile {
            link_bytes_per_second: 16_000_000_000,
            copy_start_ns: 1_000,
            reback_ns: 20_000,
            layer_ns: 100_000,
            layer_token_ns: 500,
            restart_ns: 5_000_000,
        }
    }
}

/// Fault model: what may go wrong, each with its own chance; and four planted bugs for negative controls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Copies and swaps that fail, permille.
    pub copy_fails_permille: u64,
    /// Copies and swaps that take ten times as long, permille.
    pub copy_slow_permille: u64,
    /// Changes of mappings, block moves and swaps that are refused, permille.
    pub refused_permille: u64,
    /// Creations beyond this many chunks fail although the capacity would hold them.
    pub create_limit: Option<u32>,
    /// The next step that samples finds no candidate in its first row: logits that are no numbers.
    pub no_candidate: bool,
    /// Planted bug: `ready` is published when a copy starts.
    pub publish_early: bool,
    /// Planted bug: fills do not wait for the slot's previous reader.
    pub ignore_after: bool,
    /// Planted bug: the next fill that completes holds a wrong byte.
    pub flip_next_fill: bool,
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

/// A copy on the link.
#[derive(Clone, Debug)]
struct Copying {
    id: ActionId,
    fill: Fill,
    ends: Nanos,
    fails: bool,
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
    /// The host tier, by block; empty = there is none.
    pub host: Vec<HostBlock>,
    /// `ready` of the global slab.
    pub ready_global: Generation,
    /// `ready` of each layer.
    pub ready: BTreeMap<LayerId, Generation>,
    /// `done` of each layer.
    pub done: BTreeMap<LayerId, Generation>,
    /// Copies that wait, in order.
    fills: VecDeque<(ActionId, Fill)>,
    copying: Option<Copying>,
    /// Completions of copies.
    pub completed: VecDeque<Completion>,
    /// `DropFills` that wait for the copy under way.
    drops: Vec<ActionId>,
    /// The step that runs.
    pub run: Option<Run>,
    clock: Nanos,
}

impl Device {
    /// An empty device without a host tier.
    pub fn new(geometry: Geometry, profile: Profile, seed: u64) -> Shared {
        Device::with_host_tier(geometry, profile, seed, 0)
    }

    /// An empty device with a tier of `host_blocks` layer-blocks in host memory.
    pub fn with_host_tier(geometry: Geometry, profile: Profile, seed: u64, host_blocks: u32) -> Shared {
        Rc::new(RefCell::new(Device {
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
            fills: VecDeque::new(),
            copying: None,
            completed: VecDeque::new(),
            drops: Vec::new(),
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
            if self.copying.as_ref().is_some_and(|c| c.ends <= due) {
                self.end_copy();
            } else if let Some(mut run) = self.run.take() {
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
        let copy = self.copying.as_ref().map(|c| c.ends);
        let layer = self.run.as_ref().and_then(Run::layer_ends);
        [copy, layer].into_iter().flatten().min()
    }

    /// Queues a copy.
    pub fn queue_fill(&mut self, id: ActionId, fill: Fill) {
        if !self.fits(&fill) {
            self.completed.push_back(Completion { id, outcome: Outcome::Failed(Failure::Refused) });
            return;
        }
        self.fills.push_back((id, fill));
        self.kick();
    }

    /// The slab exists, and its chunks do, as many as it has.
    fn fits(&self, fill: &Fill) -> bool {
        let bytes = match layer_of(fill.target) {
            None => Some(self.geometry.global_bytes),
            Some(layer) => self.geometry.slab_bytes.get(layer.index()).copied(),
        };
        let count = bytes.map(|bytes| self.geometry.chunks_for(bytes) as usize);
        count == Some(fill.chunks.len()) && fill.chunks.iter().all(|chunk| self.chunks.contains_key(chunk))
    }

    /// Drops every copy that has not started; `id` completes after the one that has.
    pub fn drop_fills(&mut self, id: ActionId) {
        for (dropped, _) in self.fills.drain(..) {
            self.completed.push_back(Completion { id: dropped, outcome: Outcome::Failed(Failure::Dropped) });
        }
        match self.copying {
            Some(_) => self.drops.push(id),
            None => self.completed.push_back(done(id, 0, 0)),
        }
    }

    /// Whether a copy into the chunk waits or runs.
    pub fn is_filling(&self, chunk: ChunkId) -> bool {
        let running = self.copying.iter().map(|copying| &copying.fill);
        running.chain(self.fills.iter().map(|(_, fill)| fill)).any(|fill| fill.chunks.contains(&chunk))
    }

    /// Starts what can start: the first copy whose slot is free, the layer that waits if its slab is there.
    fn kick(&mut self) {
        if let Some((id, fill)) = self.startable().and_then(|at| self.fills.remove(at)) {
            self.start_copy(id, fill);
        }
        if let Some(mut run) = self.run.take() {
            run.start_layer(self);
            self.run = Some(run);
        }
    }

    /// The first copy whose reader is done and whose chunks no earlier copy waits for.
    fn startable(&self) -> Option<usize> {
        let mut claimed = BTreeSet::new();
        let mut may = |fill: &Fill| {
            let first = fill.chunks.iter().filter(|chunk| !claimed.insert(**chunk)).count() == 0;
            first && self.may_start(fill)
        };
        self.fills.iter().position(|(_, fill)| may(fill)).filter(|_| self.copying.is_none())
    }

    fn may_start(&self, fill: &Fill) -> bool {
        let reached = |(layer, generation)| self.done.get(&layer).is_some_and(|d| *d >= generation);
        self.faults.ignore_after || fill.after.is_none_or(reached)
    }

    fn start_copy(&mut self, id: ActionId, fill: Fill) {
        let bytes = self.slab_bytes(fill.target);
        let ns = self.slowed(self.copy_ns(bytes));
        let fails = self.rng.chance(self.faults.copy_fails_permille);
        for chunk in &fill.chunks {
            self.chunks.insert(*chunk, Content::Garbage);
        }
        if self.faults.publish_early {
            self.publish(&fill);
        }
        self.copying = Some(Copying { id, fill, ends: self.clock.plus(ns), fails });
    }

    /// Time that a copy of `bytes` takes on the link.
    pub(crate) fn copy_ns(&self, bytes: u64) -> u64 {
        let ns = u128::from(bytes) * 1_000_000_000 / u128::from(self.profile.link_bytes_per_second);
        self.profile.copy_start_ns + ns as u64
    }

    /// The time of a copy, or ten times as long where the faults say so.
    pub(crate) fn slowed(&mut self, ns: u64) -> u64 {
        if self.rng.chance(self.faults.copy_slow_permille) { ns * 10 } else { ns }
    }

    fn end_copy(&mut self) {
        let Some(Copying { id, fill, fails, .. }) = self.copying.take() else { return };
        let bytes = self.slab_bytes(fill.target);
        if fails {
            self.completed.push_back(Completion { id, outcome: Outcome::Failed(Failure::CopyFailed) });
        } else {
            self.write_slab(&fill);
            self.publish(&fill);
            self.completed.push_back(done(id, bytes, self.copy_ns(bytes)));
        }
        self.completed.extend(self.drops.drain(..).map(|id| done(id, 0, 0)));
    }

    fn write_slab(&mut self, fill: &Fill) {
        let layer = layer_of(fill.target);
        let flip = std::mem::take(&mut self.faults.flip_next_fill);
        for (index, chunk) in fill.chunks.iter().enumerate() {
            let generation = Generation(fill.generation.0 ^ u64::from(flip) << 63);
            let content = Content::Slab { layer, generation, index: index as u32 };
            self.chunks.insert(*chunk, content);
        }
    }

    fn publish(&mut self, fill: &Fill) {
        match layer_of(fill.target) {
            None => self.ready_global = fill.generation,
            Some(layer) => drop(self.ready.insert(layer, fill.generation)),
        }
    }

    fn slab_bytes(&self, target: FillTarget) -> u64 {
        layer_of(target).map_or(self.geometry.global_bytes, |l| self.geometry.slab_bytes[l.index()])
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
pub const fn done(id: ActionId, bytes: u64, duration_ns: u64) -> Completion {
    Completion { id, outcome: Outcome::Done { bytes, duration_ns } }
}

/// The layer of a target; `None` = the global slab.
pub const fn layer_of(target: FillTarget) -> Option<LayerId> {
    match target {
        FillTarget::Global => None,
        FillTarget::Resident(layer) | FillTarget::Slot(_, layer) => Some(layer),
    }
}
