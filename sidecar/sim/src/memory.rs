//! Simulated memory: applies memory operations to the device's table in virtual time.

mod deferred_ops;
mod host_tier;

use std::collections::VecDeque;

use sluice_policy::action::{Action, Address, LayerBlockMove, MapOp, Transaction, Work};
use sluice_policy::event::{Completion, Failure, Outcome};
use sluice_policy::ids::{ActionId, ChunkId, Nanos};
use sluice_ports::Memory;

use crate::device::{Detail, LayerBlockAccess, SharedDevice, SimDevice, SwapTransfer, completion};
use crate::direction::Direction;
use crate::machine::LinkTransfer;
use deferred_ops::DeferredCopies;

/// The memory port of a simulated device.
#[derive(Debug)]
pub struct SimMemory {
    device: SharedDevice,
    /// All operations except concurrent copies: in order, one at a time.
    serial: VecDeque<Operation>,
    head: HeadState,
    /// Fetches, spills and write-backs that wait for an earlier operation on the same chunk or host block.
    deferred: DeferredCopies,
    /// Whether the engine acknowledges no transaction.
    held: bool,
}

#[derive(Debug)]
struct Operation {
    ordered: Nanos,
    id: ActionId,
    work: Work,
    due: Option<Nanos>,
}

/// Progress of the first operation.
#[derive(Clone, Copy, Debug)]
enum HeadState {
    /// The queue is empty.
    None,
    /// The operation ends at a fixed time, without the link.
    Timed(LinkTransfer),
    /// The operation ends when its bytes have crossed the link.
    OnLink,
}

impl SimMemory {
    /// Creates the memory port of `device`.
    pub fn new(device: SharedDevice) -> Self {
        let (serial, first) = (VecDeque::new(), HeadState::None);
        SimMemory { device, serial, head: first, deferred: DeferredCopies::default(), held: false }
    }

    /// Sets whether the engine withholds acknowledgements of transactions; operations after a withheld one wait.
    pub fn hold_engine(&mut self, now: Nanos, held: bool) {
        self.held = held;
        if let HeadState::Timed(first) = &mut self.head {
            first.ends = now.max(first.ends);
        }
    }

    /// Starts the first operation at `from`, or at its submission if that is later. Its deadline is the earliest in the
    /// queue, because later operations wait for it.
    fn start_head(&mut self, from: Nanos) {
        let mut device = self.device.borrow_mut();
        device.set_swap_transfer(None);
        let Some(Operation { ordered, id, work, .. }) = self.serial.front() else {
            self.head = HeadState::None;
            return;
        };
        let since = from.max(*ordered);
        let way = match work {
            Work::SwapOut(_) => Direction::Out,
            Work::SwapIn(_) => Direction::In,
            _ => {
                let ns = device.profile.remap_ns;
                self.head = HeadState::Timed(LinkTransfer { ends: since.plus(ns), ns });
                return;
            }
        };
        let (bytes, due) = (device.link_bytes(work), self.serial.iter().filter_map(|one| one.due).min());
        device.set_swap_transfer(Some(SwapTransfer {
            id: *id,
            direction: way,
            bytes,
            due,
            since,
            transfer: None,
        }));
        self.head = HeadState::OnLink;
    }

    fn current_transfer(&self) -> Option<LinkTransfer> {
        match self.head {
            HeadState::None => None,
            HeadState::Timed(passage) => Some(passage),
            HeadState::OnLink => self.device.borrow().current_swap_transfer(),
        }
    }

    fn is_held(&self) -> bool {
        self.held && self.serial.front().is_some_and(|first| matches!(first.work, Work::Transaction(_)))
    }

    /// Returns the device.
    pub fn device(&self) -> SharedDevice {
        self.device.clone()
    }
}

impl Memory for SimMemory {
    fn submit(&mut self, now: Nanos, action: Action) {
        let mut device = self.device.borrow_mut();
        device.advance(now);
        match action.work {
            Work::Fill(fill) => device.queue_fill((action.id, action.due), fill),
            Work::DropFills => {
                self.deferred.drop_fetches(&mut device);
                device.drop_fills(action.id);
            }
            work @ (Work::Fetch(_) | Work::WriteBack(_) | Work::Spill(_)) => {
                let behind =
                    self.serial.iter().rev().find(|earlier| deferred_ops::overlaps(&earlier.work, &work));
                let copy = (action.id, action.due);
                self.deferred.submit(copy, work, behind.map(|earlier| earlier.id), &mut device);
            }
            work => {
                drop(device);
                self.serial.push_back(Operation { ordered: now, id: action.id, work, due: action.due });
                if matches!(self.head, HeadState::None) {
                    self.start_head(now);
                }
            }
        }
    }

    fn poll(&mut self, now: Nanos) -> Option<Completion> {
        self.device.borrow_mut().advance(now);
        let completed = self.device.borrow_mut().completions.pop_front();
        if completed.is_some() {
            return completed;
        }
        let LinkTransfer { ends, ns } =
            self.current_transfer().filter(|first| first.ends <= now && !self.is_held())?;
        let Operation { id, work, .. } = self.serial.pop_front()?;
        let mut device = self.device.borrow_mut();
        let bytes = device.link_bytes(&work);
        let outcome = device.execute(work);
        self.deferred.release(id, &mut device);
        drop(device);
        self.start_head(ends);
        Some(match outcome {
            Ok(()) => completion(id, bytes, ns),
            Err(failure) => Completion { id, outcome: Outcome::Failed(failure) },
        })
    }

    fn next_due(&self) -> Option<Nanos> {
        let serial = self.current_transfer().filter(|_| !self.is_held()).map(|first| first.ends);
        let device = self.device.borrow();
        let completed = (!device.completions.is_empty()).then(|| device.clock());
        [serial, completed, device.next_due()].into_iter().flatten().min()
    }

    fn used_bytes(&self) -> u64 {
        let device = self.device.borrow();
        device.memory.chunks.len() as u64 * device.geometry.chunk_bytes
    }
}

impl SimDevice {
    /// Returns the bytes that an operation copies over the link.
    fn link_bytes(&self, work: &Work) -> u64 {
        match work {
            Work::SwapOut(swaps) | Work::SwapIn(swaps) => {
                swaps.len() as u64 * self.geometry.layer_block_bytes
            }
            _ => 0,
        }
    }

    fn execute(&mut self, work: Work) -> Result<(), Failure> {
        self.count(&work)?;
        match work {
            Work::Create(chunks) | Work::Accept { chunks, .. } => self.memory.create(&chunks)?,
            Work::Lend { chunks, .. } | Work::Release(chunks) => self.memory.release(&chunks)?,
            Work::Transaction(transaction) => self.remap(&transaction)?,
            Work::MoveLayerBlocks(moves) => self.move_layer_blocks(&moves)?,
            Work::SwapOut(swaps) => self.swap_out(&swaps)?,
            Work::SwapIn(swaps) => self.swap_in(&swaps)?,
            Work::Fill(_) | Work::Fetch(_) | Work::WriteBack(_) | Work::Spill(_) | Work::DropFills => {
                unreachable!("copies have their own queue")
            }
        }
        Ok(())
    }

    /// Counts created and released chunks in the GPU's ledger. Operations that contradict the device's table are not
    /// counted.
    fn count(&mut self, work: &Work) -> Result<(), Failure> {
        let fails = matches!(work, Work::Create(_) | Work::Accept { .. })
            && self.rng.chance(self.faults.create_fails_permille);
        let quota = self.quota.clone();
        let count = |work| quota.as_ref().map_or(Ok(()), |quota| quota.apply(work));
        match work {
            Work::Create(chunks) => {
                self.creatable(chunks)?;
                if fails { Err(Failure::OutOfMemory) } else { count(work) }
            }
            Work::Accept { chunks, .. } => {
                count(work)?;
                let possible = self.creatable(chunks);
                if fails || possible.is_err() {
                    // The acceptance stands although no chunk is created, so the bytes are released.
                    quota.inspect(|quota| quota.release_uncreated(chunks.len() as u32));
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
        if self.memory.chunks.len() + chunks.len() > limit as usize {
            return Err(Failure::OutOfMemory);
        }
        self.memory.check_new(chunks)
    }

    fn releasable(&self, chunks: &[ChunkId]) -> Result<(), Failure> {
        let copied = self.copying_chunks();
        if chunks.iter().any(|chunk| copied.contains(chunk)) {
            return Err(Failure::Refused);
        }
        self.memory.check_unmapped(chunks)
    }

    /// Applies a transaction atomically: if one operation does not fit, the earlier ones are reverted.
    fn remap(&mut self, transaction: &Transaction) -> Result<(), Failure> {
        if self.rng.chance(self.faults.refused_permille) {
            return Err(Failure::Refused);
        }
        let copied = self.copying_chunks();
        if transaction.handed_over.iter().any(|c| !self.memory.chunks.contains_key(c) || copied.contains(c)) {
            return Err(Failure::Refused);
        }
        let kv = self.kv_chunks();
        // KV copies need the KV addresses of their chunks. Other addresses of these chunks may be unmapped.
        let taken = |op: &MapOp| matches!(op, MapOp::Unmap(Address::Kv(_), chunk) if kv.contains(chunk));
        if transaction.ops.iter().any(taken) {
            return Err(Failure::Refused);
        }
        let ops = self.kept(&transaction.ops);
        match self.faults.keep_unmapped {
            true => self.memory.remap_with_two_owners(&ops)?,
            false => self.memory.remap(&ops)?,
        }
        if self.detail == Detail::Fingerprints {
            self.memory.poison(&transaction.handed_over);
        }
        Ok(())
    }

    /// Returns the operations that are applied: all of them, unless a bug is planted.
    fn kept(&self, ops: &[MapOp]) -> Vec<MapOp> {
        let mapped = |at: &Address| ops.iter().any(|op| matches!(op, MapOp::Map(other, _) if other == at));
        let lost = |op: &MapOp| matches!(op, MapOp::Unmap(address, _) if !mapped(address));
        ops.iter().filter(|op| !(self.faults.keep_unmapped && lost(op))).copied().collect()
    }

    fn move_layer_blocks(&mut self, moves: &[LayerBlockMove]) -> Result<(), Failure> {
        if self.rng.chance(self.faults.refused_permille) {
            return Err(Failure::Refused);
        }
        let memory = &self.memory;
        let (fetched, taken) =
            (self.busy_layer_blocks(LayerBlockAccess::Read), self.busy_layer_blocks(LayerBlockAccess::Write));
        let fits = |one: &LayerBlockMove| {
            let free = !fetched.contains(&(one.from_chunk, memory.position(one.from)))
                && !taken.contains(&(one.to_chunk, memory.position(one.to)));
            free && memory.is_backed(one.from, one.from_chunk) && memory.is_backed(one.to, one.to_chunk)
        };
        if !moves.iter().all(fits) {
            return Err(Failure::Refused);
        }
        if self.detail == Detail::Times {
            return Ok(());
        }
        moves.iter().try_for_each(|one| self.memory.move_layer_block(one))
    }
}
