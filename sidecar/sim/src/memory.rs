//! Simulated memory: orders of the ledger, carried out on the device's table in virtual time.

mod parked;
mod tier;

use std::collections::VecDeque;

use sluice_policy::action::{Action, Address, BlockMove, Reback, Transaction, Work};
use sluice_policy::event::{Completion, Failure, Outcome};
use sluice_policy::ids::{ActionId, BlockId, ChunkId, FrameId, Nanos};
use sluice_ports::Memory;

use crate::device::{Content, Detail, Device, Shared, Use, done};
use crate::machine::{Passage, Way};
use parked::Parked;

/// The memory port of a simulated device.
#[derive(Debug)]
pub struct SimMemory {
    device: Shared,
    /// Everything but copies beside it: in order, one at a time.
    serial: VecDeque<(Nanos, ActionId, Work)>,
    /// How long the first of them takes.
    first: Option<Passage>,
    /// Fetches and write-backs behind an operation that names something of theirs.
    parked: Parked,
    /// The engine acknowledges no transaction.
    held: bool,
}

impl SimMemory {
    /// Memory of `device`.
    pub fn new(device: Shared) -> Self {
        SimMemory { device, serial: VecDeque::new(), first: None, parked: Parked::default(), held: false }
    }

    /// While held, the engine acknowledges no transaction, and nothing after it takes effect.
    pub fn hold_engine(&mut self, now: Nanos, held: bool) {
        self.held = held;
        if let Some(first) = &mut self.first {
            first.ends = now.max(first.ends);
        }
    }

    /// The first operation begins at `from`, or when it was ordered.
    fn begin_first(&mut self, from: Nanos) {
        self.first = self.serial.front().map(|(ordered, _, work)| {
            let mut device = self.device.borrow_mut();
            let start = from.max(*ordered);
            device.duration(start, work)
        });
    }

    fn is_held(&self) -> bool {
        self.held && self.serial.front().is_some_and(|(_, _, work)| matches!(work, Work::Reback(_)))
    }

    /// The device.
    pub fn device(&self) -> Shared {
        self.device.clone()
    }
}

impl Memory for SimMemory {
    fn submit(&mut self, now: Nanos, action: Action) {
        let mut device = self.device.borrow_mut();
        device.advance(now);
        match action.work {
            Work::Fill(fill) => device.queue_fill(action.id, fill),
            Work::DropFills => {
                self.parked.drop_fetches(&mut device);
                device.drop_fills(action.id);
            }
            work @ (Work::Fetch(_) | Work::WriteBack(_) | Work::Spill(_)) => {
                let behind = self.serial.iter().rev().find(|(_, _, earlier)| parked::meet(earlier, &work));
                self.parked.submit(action.id, work, behind.map(|(_, id, _)| *id), &mut device);
            }
            work => {
                drop(device);
                self.serial.push_back((now, action.id, work));
                if self.first.is_none() {
                    self.begin_first(now);
                }
            }
        }
    }

    fn poll(&mut self, now: Nanos) -> Option<Completion> {
        let mut device = self.device.borrow_mut();
        device.advance(now);
        if let Some(completion) = device.completed.pop_front() {
            return Some(completion);
        }
        let Passage { ends, ns } = self.first.filter(|first| first.ends <= now && !self.is_held())?;
        let (_, id, work) = self.serial.pop_front()?;
        let bytes = device.passing_bytes(&work);
        let outcome = device.carry_out(work);
        self.parked.release(id, &mut device);
        drop(device);
        self.begin_first(ends);
        Some(match outcome {
            Ok(()) => done(id, bytes, ns),
            Err(failure) => Completion { id, outcome: Outcome::Failed(failure) },
        })
    }

    fn next_due(&self) -> Option<Nanos> {
        let serial = self.first.filter(|_| !self.is_held()).map(|first| first.ends);
        let device = self.device.borrow();
        let completed = (!device.completed.is_empty()).then(|| device.clock());
        [serial, completed, device.next_due()].into_iter().flatten().min()
    }

    fn used_bytes(&self) -> u64 {
        let device = self.device.borrow();
        device.chunks.len() as u64 * device.geometry.chunk_bytes
    }
}

impl Device {
    /// Bytes that an operation copies over the link.
    fn passing_bytes(&self, work: &Work) -> u64 {
        match work {
            Work::SwapOut(swaps) | Work::SwapIn(swaps) => swaps.len() as u64 * self.geometry.block_bytes,
            _ => 0,
        }
    }

    /// How long an operation takes that begins at `start`.
    fn duration(&mut self, start: Nanos, work: &Work) -> Passage {
        let bytes = self.passing_bytes(work);
        match work {
            Work::SwapOut(_) => self.pass(start, Way::Out, bytes),
            Work::SwapIn(_) => self.pass(start, Way::In, bytes),
            _ => {
                let ns = self.profile.reback_ns;
                Passage { ends: start.plus(ns), ns }
            }
        }
    }

    fn carry_out(&mut self, work: Work) -> Result<(), Failure> {
        self.count(&work)?;
        match work {
            Work::Create(chunks) | Work::Accept { chunks, .. } => self.create(&chunks),
            Work::Lend { chunks, .. } | Work::Release(chunks) => self.release(&chunks),
            Work::Reback(transaction) => self.reback(&transaction)?,
            Work::MoveBlocks(moves) => self.move_blocks(&moves)?,
            Work::SwapOut(swaps) => self.swap_out(&swaps)?,
            Work::SwapIn(swaps) => self.swap_in(&swaps)?,
            Work::Fill(_) | Work::Fetch(_) | Work::WriteBack(_) | Work::Spill(_) | Work::DropFills => {
                unreachable!("copies have their own queue")
            }
        }
        Ok(())
    }

    /// Chunks that come to exist, or go, are counted in the GPU's ledger. What contradicts the device's own table is not.
    fn count(&mut self, work: &Work) -> Result<(), Failure> {
        let fails = matches!(work, Work::Create(_) | Work::Accept { .. })
            && self.rng.chance(self.faults.create_fails_permille);
        let quota = self.quota.clone();
        let count = |work| quota.as_ref().map_or(Ok(()), |quota| quota.count(work));
        match work {
            Work::Create(chunks) => {
                self.creatable(chunks)?;
                if fails { Err(Failure::OutOfMemory) } else { count(work) }
            }
            Work::Accept { chunks, .. } => {
                count(work)?;
                let possible = self.creatable(chunks);
                if fails || possible.is_err() {
                    // The bytes are this tenant's from now on, and no chunk is made of them.
                    quota.inspect(|quota| quota.give_up(chunks.len() as u32));
                    return Err(Failure::OutOfMemory);
                }
                Ok(())
            }
            Work::Lend { chunks, .. } | Work::Release(chunks) => {
                self.releasable(chunks)?;
                count(work)
            }
            _ => Ok(()),
        }
    }

    fn creatable(&self, chunks: &[ChunkId]) -> Result<(), Failure> {
        let limit = self.faults.create_limit.unwrap_or(u32::MAX).min(self.geometry.capacity_chunks);
        if self.chunks.len() + chunks.len() > limit as usize {
            return Err(Failure::OutOfMemory);
        }
        let known = chunks.iter().any(|c| self.chunks.contains_key(c));
        if known { Err(Failure::Refused) } else { Ok(()) }
    }

    fn releasable(&self, chunks: &[ChunkId]) -> Result<(), Failure> {
        let copied = self.copied();
        let bound =
            |c: &ChunkId| !self.chunks.contains_key(c) || self.mapped.contains_key(c) || copied.contains(c);
        if chunks.iter().any(bound) { Err(Failure::Refused) } else { Ok(()) }
    }

    fn create(&mut self, chunks: &[ChunkId]) {
        self.chunks.extend(chunks.iter().map(|c| (*c, Content::Garbage)));
    }

    fn release(&mut self, chunks: &[ChunkId]) {
        chunks.iter().for_each(|c| drop(self.chunks.remove(c)));
    }

    /// All or nothing: what was done before an operation that does not fit is undone.
    fn reback(&mut self, transaction: &Transaction) -> Result<(), Failure> {
        if self.rng.chance(self.faults.refused_permille) {
            return Err(Failure::Refused);
        }
        let copied = self.copied();
        if transaction.handed_over.iter().any(|c| !self.chunks.contains_key(c) || copied.contains(c)) {
            return Err(Failure::Refused);
        }
        let kv = self.kv_chunks();
        // Copies of KV need their frames, and not an address that a chunk had before it was KV.
        let taken = |op: &Reback| matches!(op, Reback::Unmap(Address::Kv(_), chunk) if kv.contains(chunk));
        if transaction.ops.iter().any(taken) {
            return Err(Failure::Refused);
        }
        let ops = self.kept(&transaction.ops);
        let made = ops.iter().take_while(|op| self.change(**op)).count();
        let owned = self.faults.keep_unmapped || ops.iter().all(|op| self.has_one_owner(op));
        if made < ops.len() || !owned {
            ops[..made].iter().rev().for_each(|op| self.change_back(*op));
            return Err(Failure::Refused);
        }
        if self.detail == Detail::Fingerprints {
            self.chunks.extend(transaction.handed_over.iter().map(|chunk| (*chunk, Content::Garbage)));
        }
        Ok(())
    }

    /// What is really done of a transaction: all of it, unless a bug is planted.
    fn kept(&self, ops: &[Reback]) -> Vec<Reback> {
        let mapped = |at: &Address| ops.iter().any(|op| matches!(op, Reback::Map(other, _) if other == at));
        let lost = |op: &Reback| matches!(op, Reback::Unmap(address, _) if !mapped(address));
        ops.iter().filter(|op| !(self.faults.keep_unmapped && lost(op))).copied().collect()
    }

    /// On the way a chunk may be behind its old and its new address, at the end of a transaction it has one owner.
    fn has_one_owner(&self, op: &Reback) -> bool {
        let Reback::Map(address, chunk) = *op else { return true };
        let mut others = self.mapped.get(&chunk).into_iter().flatten().filter(|other| **other != address);
        self.table.get(&address) != Some(&chunk) || others.all(|other| address.may_share(*other))
    }

    /// False, and nothing changed, when the operation contradicts the table.
    fn change(&mut self, op: Reback) -> bool {
        match op {
            Reback::Unmap(address, chunk) => {
                let fits = self.table.get(&address) == Some(&chunk);
                if fits {
                    self.unmap(address, chunk);
                }
                fits
            }
            Reback::Map(address, chunk) => {
                let fits = self.chunks.contains_key(&chunk) && !self.table.contains_key(&address);
                if fits {
                    self.map(address, chunk);
                }
                fits
            }
        }
    }

    fn change_back(&mut self, op: Reback) {
        match op {
            Reback::Unmap(address, chunk) => self.map(address, chunk),
            Reback::Map(address, chunk) => self.unmap(address, chunk),
        }
    }

    fn map(&mut self, address: Address, chunk: ChunkId) {
        self.table.insert(address, chunk);
        self.mapped.entry(chunk).or_default().push(address);
    }

    fn unmap(&mut self, address: Address, chunk: ChunkId) {
        self.table.remove(&address);
        let addresses = self.mapped.get_mut(&chunk).expect("a chunk behind an address is mapped");
        addresses.retain(|other| *other != address);
        if addresses.is_empty() {
            self.mapped.remove(&chunk);
        }
    }

    fn move_blocks(&mut self, moves: &[BlockMove]) -> Result<(), Failure> {
        if self.rng.chance(self.faults.refused_permille) {
            return Err(Failure::Refused);
        }
        let per_chunk = self.geometry.blocks_per_chunk();
        let backed = |block: BlockId, chunk| {
            self.table.get(&Address::Kv(FrameId(block.0 / per_chunk))) == Some(&chunk)
        };
        let (fetched, taken) = (self.taken(Use::Read), self.taken(Use::Write));
        let fits = |one: &BlockMove| {
            let free = !fetched.contains(&(one.from_chunk, one.from.0 % per_chunk))
                && !taken.contains(&(one.to_chunk, one.to.0 % per_chunk));
            free && backed(one.from, one.from_chunk) && backed(one.to, one.to_chunk)
        };
        if !moves.iter().all(fits) {
            return Err(Failure::Refused);
        }
        if self.detail == Detail::Times {
            return Ok(());
        }
        for one in moves {
            let tokens =
                *self.chunk_block_mut(one.from_chunk, one.from.0 % per_chunk).ok_or(Failure::Refused)?;
            *self.chunk_block_mut(one.to_chunk, one.to.0 % per_chunk).ok_or(Failure::Refused)? = tokens;
        }
        Ok(())
    }
}
