//! A test device: executes actions with delays, in any order that the contract allows, and sometimes fails them. Its
//! [`FakeMemory`] has the contents of every chunk, so that it detects a wrong read. It trusts no statement of the
//! memory manager: what a backend refuses fails the test here.

use std::collections::{BTreeMap, VecDeque};

use sluice_common::random::Rng;
use sluice_policy::action::{Action, Address, Fill, FillTarget, LayerBlockMove, MapOp, Transaction, Work};
use sluice_policy::event::{Completion, Failure, Outcome};
use sluice_policy::geometry::Geometry;
use sluice_policy::ids::{ActionId, ChunkId, Generation, LayerBlockId, LayerId};
use sluice_ports::fake_memory::{ChunkContent, FakeMemory};

use super::quota::Quota;
use kv::KvCopy;

mod host_pool;
mod kv;

/// Returns true with a probability of `permille` / 1000. Draws a number for a probability of 0 too, so that the
/// numbers after it are the same.
pub fn chance(rng: &mut Rng, permille: u32) -> bool {
    rng.below(1000) < u64::from(permille)
}

/// Rate and number of failures.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub permille: u32,
    pub left: u32,
    /// Chunks that the device lacks compared with the memory manager's configuration.
    pub missing_chunks: u32,
    /// Number of times that no chunk is created for accepted bytes.
    pub unmade: u32,
    /// Number of valid earmarks of peers that cannot be accepted.
    pub untaken: u32,
    /// Number of transfers that find the ledger full.
    pub busy: u32,
    /// Number of copies from the host tier that fail.
    pub lost_swaps: u32,
    /// Number of KV fetches that fail.
    pub lost_fetches: u32,
    /// Number of empty fetches that fail.
    pub lost_empty_fetches: u32,
}

/// Possible next events.
#[derive(Clone, Copy, Debug)]
enum Choice {
    Order,
    Drop,
    Fill(usize),
    Kv(usize),
}

#[derive(Debug)]
struct QueuedFill {
    id: ActionId,
    fill: Fill,
    running: bool,
}

#[derive(Debug)]
pub struct Device {
    pub geometry: Geometry,
    pub rng: Rng,
    pub faults: Faults,
    orders: VecDeque<Action>,
    fills: Vec<QueuedFill>,
    kv: Vec<KvCopy>,
    dropped: VecDeque<ActionId>,
    dropping: Option<ActionId>,
    /// Chunks, addresses, and a host tier without a limit of its own.
    pub memory: FakeMemory,
    /// Whether loaded KV contains another block's contents.
    pub mix_up_swaps: bool,
    pub ready: Vec<Generation>,
    pub done: Vec<Generation>,
    /// The same for fetched KV.
    pub kv_ready: Vec<Generation>,
    pub kv_done: Vec<Generation>,
    /// Fetches refused because a host block no longer had its generation.
    pub refused_fetches: u32,
    /// Probability that a write-back makes no progress although it could, permille.
    pub slow_writes_permille: u32,
    /// Successful fetches.
    pub fetched: u32,
    /// Successful spills.
    pub spilt: u32,
    pub remaps: u32,
    pub moves: u32,
    pub bytes_filled: u64,
    pub fill_ns_per_byte: u64,
    pub refuse_remaps: bool,
    /// The ledger of a shared GPU.
    pub quota: Option<Quota>,
    /// Whether the last completion moved chunks between peers.
    pub traded: bool,
}

impl Device {
    pub fn new(geometry: Geometry, seed: u64, faults: Faults) -> Device {
        let layers = usize::from(geometry.layers());
        Device {
            memory: FakeMemory::new(geometry.layer_blocks_per_chunk(), u32::MAX),
            geometry,
            rng: Rng::new(seed),
            faults,
            orders: VecDeque::new(),
            fills: Vec::new(),
            kv: Vec::new(),
            dropped: VecDeque::new(),
            dropping: None,
            mix_up_swaps: false,
            ready: vec![Generation(0); layers],
            done: vec![Generation(0); layers],
            kv_ready: vec![Generation(0); layers],
            kv_done: vec![Generation(0); layers],
            refused_fetches: 0,
            slow_writes_permille: 0,
            fetched: 0,
            spilt: 0,
            remaps: 0,
            moves: 0,
            bytes_filled: 0,
            fill_ns_per_byte: 1,
            refuse_remaps: false,
            quota: None,
            traded: false,
        }
    }

    pub fn submit(&mut self, action: Action) {
        match action.work {
            Work::Fill(fill) => {
                self.check_fill_target(&fill);
                self.fills.push(QueuedFill { id: action.id, fill, running: false });
            }
            Work::DropFills => {
                assert!(self.dropping.is_none(), "one drop at a time");
                self.dropping = Some(action.id);
                self.dropped.extend(self.fills.iter().filter(|f| !f.running).map(|f| f.id));
                self.fills.retain(|f| f.running);
                self.drop_fetches();
            }
            Work::Fetch(fetch) => self.queue_fetch(action.id, fetch),
            Work::WriteBack(swaps) => self.queue_write_back(action.id, swaps),
            Work::Spill(spill) => self.queue_spill(action.id, spill),
            _ => self.orders.push_back(action),
        }
    }

    /// Completes one random action; `None` if none can complete.
    pub fn poll(&mut self) -> Option<Completion> {
        self.traded = false;
        let mut choices = Vec::new();
        if !self.orders.is_empty() {
            choices.push(Choice::Order);
        }
        let running = self.fills.iter().any(|f| f.running) || self.fetches_run();
        if !self.dropped.is_empty() || (self.dropping.is_some() && !running) {
            choices.push(Choice::Drop);
        }
        let fills = (0..self.fills.len()).filter(|at| self.fills[*at].running || self.can_start(*at));
        choices.extend(fills.map(Choice::Fill));
        let slow = chance(&mut self.rng, self.slow_writes_permille) && !choices.is_empty();
        let copies = (0..self.kv.len()).filter(|at| self.can_continue(*at));
        choices.extend(copies.filter(|at| !slow || self.kv[*at].is_of_buffer()).map(Choice::Kv));
        if choices.is_empty() {
            return None;
        }
        match choices[self.rng.below(choices.len() as u64) as usize] {
            Choice::Order => self.end_order(),
            Choice::Drop => Some(self.end_drop()),
            Choice::Fill(at) => self.step_fill(at),
            Choice::Kv(at) => self.step_kv(at),
        }
    }

    /// Whether no action is in progress.
    pub fn idle(&self) -> bool {
        self.orders.is_empty() && self.fills.is_empty() && self.kv.is_empty() && self.dropping.is_none()
    }

    /// Whether the fill is the first in its slot and the previous reader has finished.
    fn can_start(&self, at: usize) -> bool {
        let fill = &self.fills[at].fill;
        let first = !self.fills[..at].iter().any(|f| same_place(&f.fill, fill));
        first && fill.after.is_none_or(|(layer, generation)| self.done[layer.index()] >= generation)
    }

    /// Starts a copy, which destroys the old contents, or ends it.
    fn step_fill(&mut self, at: usize) -> Option<Completion> {
        if !self.fills[at].running {
            self.fills[at].running = true;
            self.check_fill_target(&self.fills[at].fill.clone());
            self.memory.poison(&self.fills[at].fill.chunks);
            return None;
        }
        let QueuedFill { id, fill, .. } = self.fills.remove(at);
        if self.fails() {
            return Some(failed(id, Failure::CopyFailed));
        }
        self.memory.write_slab(fill.target.layer(), fill.generation, &fill.chunks);
        let bytes = match fill.target {
            FillTarget::Global => self.geometry.global_bytes,
            FillTarget::Resident(layer) | FillTarget::Slot(_, layer) => {
                self.ready[layer.index()] = fill.generation;
                self.geometry.slab_bytes[layer.index()]
            }
        };
        self.bytes_filled += bytes;
        let outcome = Outcome::Done { bytes, duration_ns: bytes * self.fill_ns_per_byte };
        Some(Completion { id, outcome })
    }

    /// Checks that the named chunks back the addresses of the target.
    fn check_fill_target(&self, fill: &Fill) {
        for (part, chunk) in fill.chunks.iter().enumerate() {
            let address = match fill.target {
                FillTarget::Global => Address::Global(part as u32),
                FillTarget::Resident(layer) | FillTarget::Slot(_, layer) => {
                    Address::Layer(layer, part as u32)
                }
            };
            assert_eq!(
                self.memory.table.get(&address),
                Some(chunk),
                "a copy writes where its target is read"
            );
        }
    }

    fn fails(&mut self) -> bool {
        let fails = self.faults.left > 0 && chance(&mut self.rng, self.faults.permille);
        self.faults.left -= u32::from(fails);
        fails
    }

    fn end_drop(&mut self) -> Completion {
        if let Some(id) = self.dropped.pop_front() {
            return failed(id, Failure::Dropped);
        }
        let id = self.dropping.take().expect("a drop is under way");
        Completion { id, outcome: DONE }
    }

    fn end_order(&mut self) -> Option<Completion> {
        let action = self.orders.pop_front().expect("an order");
        let id = action.id;
        if let Work::Create(chunks) = &action.work {
            let capacity = self.geometry.capacity_chunks - self.faults.missing_chunks;
            if self.memory.chunks.len() + chunks.len() > capacity as usize {
                return Some(failed(id, Failure::OutOfMemory));
            }
        }
        let refused = self.refuse_remaps && matches!(action.work, Work::Transaction(_));
        if self.faults.lost_swaps > 0 && matches!(action.work, Work::SwapIn(_)) {
            self.faults.lost_swaps -= 1;
            return Some(failed(id, Failure::CopyFailed));
        }
        if self.faults.busy > 0 && matches!(action.work, Work::Lend { .. } | Work::Accept { .. }) {
            self.faults.busy -= 1;
            return Some(failed(id, Failure::Busy));
        }
        let untaken = self.faults.untaken > 0 && matches!(action.work, Work::Accept { .. });
        self.faults.untaken -= u32::from(untaken);
        if refused || untaken || self.fails() {
            return Some(failed(id, Failure::Refused));
        }
        if let Some(failure) = self.quota.as_ref().and_then(|quota| quota.refuses(&action.work)) {
            return Some(failed(id, failure));
        }
        if let Work::Accept { chunks, .. } = &action.work
            && self.faults.unmade > 0
        {
            self.faults.unmade -= 1;
            self.quota.iter().for_each(|quota| quota.give_up(chunks.len() as u32));
            return Some(failed(id, Failure::OutOfMemory));
        }
        self.traded = matches!(action.work, Work::Lend { .. } | Work::Accept { .. });
        match action.work {
            Work::Create(chunks) | Work::Accept { chunks, .. } => {
                self.memory.create(&chunks).expect("a chunk is created once");
            }
            Work::Release(chunks) | Work::Lend { chunks, .. } => {
                chunks.iter().for_each(|chunk| self.check_untouched(*chunk));
                self.memory.release(&chunks).expect("released chunks exist and are unmapped");
            }
            Work::Transaction(transaction) => self.remap(&transaction),
            Work::MoveLayerBlocks(moves) => self.move_layer_blocks(&moves),
            Work::SwapOut(swaps) => self.swap_out(&swaps),
            Work::SwapIn(swaps) => self.swap_in(&swaps),
            Work::Fill(_) | Work::Fetch(_) | Work::WriteBack(_) | Work::Spill(_) | Work::DropFills => {
                unreachable!("queued elsewhere")
            }
        }
        Some(Completion { id, outcome: DONE })
    }

    /// Applies the changes one by one. During it a chunk may back two addresses; at the end it has one owner.
    pub fn remap(&mut self, transaction: &Transaction) {
        self.remaps += 1;
        for op in &transaction.ops {
            if let MapOp::Unmap(Address::Kv(_), chunk) = *op {
                self.check_untouched(chunk);
            }
        }
        let applied = self.memory.remap(&transaction.ops);
        applied.unwrap_or_else(|_| {
            panic!("every change of {transaction:?} fits the table, and owners are single")
        });
        self.memory.poison(&transaction.handed_over);
        self.check_sharing();
    }

    /// Checks that chunks are shared only by layers, each at the same position, or by KV and its former activation
    /// address.
    fn check_sharing(&self) {
        let mut users: BTreeMap<ChunkId, Vec<Address>> = BTreeMap::new();
        for (address, chunk) in &self.memory.table {
            users.entry(*chunk).or_default().push(*address);
        }
        for (chunk, users) in users.iter().filter(|(_, users)| users.len() > 1) {
            let shared = match (users[0], users[1]) {
                (Address::Layer(_, a), _) => {
                    users.iter().all(|other| matches!(other, Address::Layer(_, b) if *b == a))
                }
                (Address::Kv(_), Address::Activation(_)) => users.len() == 2,
                _ => false,
            };
            assert!(shared, "{chunk:?} is behind {users:?}");
        }
    }

    /// Checks that every activation chunk that a step may use is mapped and not shared.
    pub fn check_activations(&self, limit_bytes: u64) {
        for at in (0..limit_bytes / self.geometry.chunk_bytes).map(|at| Address::Activation(at as u32)) {
            let chunk = self.memory.table.get(&at).unwrap_or_else(|| panic!("{at:?} is backed"));
            let users = self.memory.addresses_of(*chunk).len();
            assert_eq!(users, 1, "{chunk:?} is behind {at:?} alone");
        }
    }

    fn move_layer_blocks(&mut self, moves: &[LayerBlockMove]) {
        for m in moves {
            self.moves += 1;
            self.check_read(m.from);
            self.check_write(m.to);
            assert_eq!(
                (self.place(m.from).0, self.place(m.to).0),
                (m.from_chunk, m.to_chunk),
                "moves name chunks"
            );
            self.memory.move_layer_block(m).expect("both layer_blocks are backed");
        }
    }

    /// Returns the physical location of a block.
    fn place(&self, layer_block: LayerBlockId) -> (ChunkId, u32) {
        self.memory.place(layer_block).unwrap_or_else(|| panic!("{layer_block:?} is backed"))
    }

    pub fn write_token(&mut self, layer_block: LayerBlockId, at: usize, tag: u64) {
        self.memory.layer_block_mut(layer_block).unwrap_or_else(|| panic!("{layer_block:?} is backed"))[at] =
            Some(tag);
    }

    pub fn read_token(&self, layer_block: LayerBlockId, at: usize) -> u64 {
        self.memory.tokens(self.place(layer_block))[at].unwrap_or(0)
    }

    /// Returns what a layer's kernel would read. `Err` names the first wrong chunk.
    pub fn read_layer(&self, layer: LayerId) -> Result<(), String> {
        for part in 0..self.geometry.slab_chunks(layer.index()) {
            let content = self.memory.content(Address::Layer(layer, part));
            let content = content.ok_or_else(|| format!("{layer:?} part {part} is not mapped"))?;
            match content {
                ChunkContent::Slab { layer: Some(of), index, .. } if (*of, *index) == (layer, part) => {}
                other => return Err(format!("{layer:?} part {part} reads {other:?}")),
            }
        }
        Ok(())
    }

    /// Handles the loss of the engine: its readers never finish.
    pub fn forget_readers(&mut self) {
        self.done.fill(Generation(0));
        self.kv_done.fill(Generation(0));
    }
}

const DONE: Outcome = Outcome::Done { bytes: 0, duration_ns: 0 };

fn failed(id: ActionId, failure: Failure) -> Completion {
    Completion { id, outcome: Outcome::Failed(failure) }
}

fn same_place(a: &Fill, b: &Fill) -> bool {
    match (a.target, b.target) {
        (FillTarget::Slot(a, _), FillTarget::Slot(b, _)) => a == b,
        (a, b) => a == b,
    }
}
