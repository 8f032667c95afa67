//! Simulated memory: orders of the ledger, carried out on the device's table in virtual time.

mod tier;

use std::collections::VecDeque;

use sluice_policy::action::{Action, Address, BlockMove, Reback, Transaction, Work};
use sluice_policy::event::{Completion, Failure, Outcome};
use sluice_policy::ids::{ActionId, BlockId, ChunkId, FrameId, Nanos};
use sluice_ports::Memory;

use crate::device::{Content, Device, Shared, done};

/// The memory port of a simulated device.
#[derive(Debug)]
pub struct SimMemory {
    device: Shared,
    /// Everything but copies: in order, each at its time.
    serial: VecDeque<(Nanos, ActionId, Work)>,
    /// The engine acknowledges no transaction.
    held: bool,
}

impl SimMemory {
    /// Memory of `device`.
    pub fn new(device: Shared) -> Self {
        SimMemory { device, serial: VecDeque::new(), held: false }
    }

    /// While held, the engine acknowledges no transaction, and nothing after it takes effect.
    pub fn hold_engine(&mut self, now: Nanos, held: bool) {
        self.held = held;
        self.serial.iter_mut().for_each(|(due, _, _)| *due = now.max(*due));
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
            Work::DropFills => device.drop_fills(action.id),
            work => {
                let start = self.serial.back().map_or(now, |(due, _, _)| now.max(*due));
                let (bytes, ns) = device.cost(&work);
                let ns = if bytes > 0 { device.slowed(ns) } else { ns };
                self.serial.push_back((start.plus(ns), action.id, work));
            }
        }
    }

    fn poll(&mut self, now: Nanos) -> Option<Completion> {
        let mut device = self.device.borrow_mut();
        device.advance(now);
        if let Some(completion) = device.completed.pop_front() {
            return Some(completion);
        }
        let may = !self.is_held();
        let (_, id, work) = self.serial.pop_front_if(|(due, _, _)| may && *due <= now)?;
        let (bytes, ns) = device.cost(&work);
        let outcome = match device.carry_out(work) {
            Ok(()) => return Some(done(id, bytes, ns)),
            Err(failure) => Outcome::Failed(failure),
        };
        Some(Completion { id, outcome })
    }

    fn next_due(&self) -> Option<Nanos> {
        let serial = self.serial.front().filter(|_| !self.is_held()).map(|(due, _, _)| *due);
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
    /// Bytes that an operation copies over the link, and its time.
    fn cost(&self, work: &Work) -> (u64, u64) {
        match work {
            Work::SwapOut(swaps) | Work::SwapIn(swaps) => {
                let bytes = swaps.len() as u64 * self.geometry.block_bytes;
                (bytes, self.copy_ns(bytes))
            }
            _ => (0, self.profile.reback_ns),
        }
    }

    fn carry_out(&mut self, work: Work) -> Result<(), Failure> {
        match work {
            Work::Create(chunks) => self.create(&chunks),
            // Several tenants on one simulated GPU are to come: here all bytes are the tenant's own.
            Work::Accept { chunks, .. } => self.create(&chunks),
            Work::Lend { chunks, .. } => self.release(&chunks),
            Work::Release(chunks) => self.release(&chunks),
            Work::Reback(transaction) => self.reback(&transaction),
            Work::MoveBlocks(moves) => self.move_blocks(&moves),
            Work::SwapOut(swaps) => self.swap_out(&swaps),
            Work::SwapIn(swaps) => self.swap_in(&swaps),
            Work::Fill(_) | Work::DropFills => unreachable!("copies have their own queue"),
        }
    }

    fn create(&mut self, chunks: &[ChunkId]) -> Result<(), Failure> {
        let limit = self.faults.create_limit.unwrap_or(u32::MAX).min(self.geometry.capacity_chunks);
        if self.chunks.len() + chunks.len() > limit as usize {
            return Err(Failure::OutOfMemory);
        }
        if chunks.iter().any(|c| self.chunks.contains_key(c)) {
            return Err(Failure::Refused);
        }
        self.chunks.extend(chunks.iter().map(|c| (*c, Content::Garbage)));
        Ok(())
    }

    fn release(&mut self, chunks: &[ChunkId]) -> Result<(), Failure> {
        let mapped = |chunk| self.table.values().any(|c| c == chunk);
        if chunks.iter().any(|c| !self.chunks.contains_key(c) || mapped(c) || self.is_filling(*c)) {
            return Err(Failure::Refused);
        }
        chunks.iter().for_each(|c| drop(self.chunks.remove(c)));
        Ok(())
    }

    /// All or nothing: the table is changed on a copy first.
    fn reback(&mut self, transaction: &Transaction) -> Result<(), Failure> {
        if self.rng.chance(self.faults.refused_permille) {
            return Err(Failure::Refused);
        }
        if transaction.handed_over.iter().any(|c| !self.chunks.contains_key(c) || self.is_filling(*c)) {
            return Err(Failure::Refused);
        }
        let mut table = self.table.clone();
        for op in &transaction.ops {
            let fits = match *op {
                Reback::Unmap(address, chunk) => table.remove(&address) == Some(chunk),
                Reback::Map(address, chunk) => {
                    self.chunks.contains_key(&chunk) && table.insert(address, chunk).is_none()
                }
            };
            if !fits {
                return Err(Failure::Refused);
            }
        }
        self.table = table;
        for chunk in &transaction.handed_over {
            self.chunks.insert(*chunk, Content::Garbage);
        }
        Ok(())
    }

    fn move_blocks(&mut self, moves: &[BlockMove]) -> Result<(), Failure> {
        if self.rng.chance(self.faults.refused_permille) {
            return Err(Failure::Refused);
        }
        let per_chunk = self.geometry.blocks_per_chunk();
        let backed = |block: BlockId, chunk| {
            self.table.get(&Address::Kv(FrameId(block.0 / per_chunk))) == Some(&chunk)
        };
        if !moves.iter().all(|one| backed(one.from, one.from_chunk) && backed(one.to, one.to_chunk)) {
            return Err(Failure::Refused);
        }
        for one in moves {
            let tokens =
                *self.chunk_block_mut(one.from_chunk, one.from.0 % per_chunk).ok_or(Failure::Refused)?;
            *self.chunk_block_mut(one.to_chunk, one.to.0 % per_chunk).ok_or(Failure::Refused)? = tokens;
        }
        Ok(())
    }
}
