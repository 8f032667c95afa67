//! Runs the operations of the serial queue: create, release, accept, lend, remap, and moves and swaps of blocks.

use std::time::Instant;

use sluice_policy::action::{Address, LayerBlockMove, MapOp, Transaction, Work};
use sluice_policy::event::{Failure, Outcome};
use sluice_policy::ids::{ActionId, ChunkId, KvChunkId, LayerBlockId};
use sluice_policy::reason::Reason;

use super::DeviceMemory;
use super::layer_block_reservations::LayerBlockUse;
use super::operation_refs::all_distinct;
use super::serial_queue::HeadState;
use super::serial_worker::{LayerBlockCopy, SerialJob};

/// Result of starting an operation.
enum StartResult {
    Completed(Outcome),
    Pending(HeadState),
}

impl DeviceMemory {
    /// Starts operations until one is pending. Copies that an operation blocked are dispatched before the
    /// next one starts.
    pub(super) fn start_serial(&mut self) {
        while matches!(self.serial_queue.head_state, HeadState::NotStarted) {
            let Some(operation) = self.serial_queue.queue.front_mut() else { break };
            let work = std::mem::replace(&mut operation.work, Work::DropFills);
            let reason = operation.reason;
            let started = self.start(&work, reason);
            self.serial_queue.queue.front_mut().expect("the first operation is at hand").work = work;
            match started.unwrap_or_else(|failure| StartResult::Completed(Outcome::Failed(failure))) {
                StartResult::Completed(outcome) => self.end_operation(outcome),
                StartResult::Pending(at_hand) => self.serial_queue.head_state = at_hand,
            }
        }
    }

    fn end_operation(&mut self, outcome: Outcome) {
        let operation = self.serial_queue.queue.pop_front().expect("the operation that ends was the first");
        self.serial_queue.head_state = HeadState::NotStarted;
        self.complete(operation.id, outcome);
        self.dispatch_copies();
    }

    fn start(&mut self, work: &Work, reason: Reason) -> Result<StartResult, Failure> {
        match work {
            Work::Create(chunks) => {
                // While a tenant loads, its first copies measure the speed of the link, so the pages are
                // allocated before. While it wakes, they are allocated during the copies and the prompt.
                let at_once = reason == Reason::Load;
                self.start_create(chunks, SerialJob::Create { chunks: chunks.clone(), at_once })
            }
            Work::Accept { chunks, earmark } => {
                self.start_create(chunks, SerialJob::Accept(chunks.clone(), *earmark))
            }
            Work::Release(chunks) | Work::Lend { chunks, .. } => self.start_release(chunks, work),
            Work::Transaction(transaction) => self.start_remap(transaction),
            Work::MoveLayerBlocks(moves) => self.start_moves(moves),
            Work::SwapOut(swaps) => {
                let copies = self.swap_out(swaps)?;
                Ok(self.start_job(SerialJob::SwapOut(copies, self.serial_queue.head_priority(self.now))))
            }
            Work::SwapIn(swaps) => {
                let copies = self.swap_in(swaps)?;
                Ok(self.start_job(SerialJob::SwapIn(copies, self.serial_queue.head_priority(self.now))))
            }
            Work::Fill(_) | Work::Fetch(_) | Work::WriteBack(_) | Work::Spill(_) | Work::DropFills => {
                unreachable!("copies have their own queues")
            }
        }
    }

    fn start_create(&mut self, chunks: &[ChunkId], chore: SerialJob) -> Result<StartResult, Failure> {
        if !all_distinct(chunks) || chunks.iter().any(|chunk| self.pool.exists(*chunk)) {
            return Err(Failure::Refused);
        }
        Ok(self.start_job(chore))
    }

    /// The engine lets go of the chunks before their memory is released and its bytes are a peer's.
    fn start_release(&mut self, chunks: &[ChunkId], work: &Work) -> Result<StartResult, Failure> {
        let unused =
            |c: ChunkId| self.pool.exists(c) && !self.table.is_mapped(c) && !self.has_pending_copy(c);
        if !all_distinct(chunks) || !chunks.iter().all(|chunk| unused(*chunk)) {
            return Err(Failure::Refused);
        }
        let id = self.serial_queue.queue.front().expect("the release is the first operation").id;
        if !chunks.is_empty() && self.engine.release(id, chunks) {
            return Ok(StartResult::Pending(HeadState::AwaitingRelease));
        }
        Ok(self.start_job(release_job(work)))
    }

    /// Whether a fill into the chunk, or another copy of one of its blocks, is queued or running.
    fn has_pending_copy(&self, chunk: ChunkId) -> bool {
        self.table.is_filling(chunk) || self.reservations.is_chunk_in_use(chunk)
    }

    /// Checks the whole transaction, then prepares the chunks, then sends it: a refused transaction changes
    /// no byte. The engine is at a step boundary or idle, so poisoned chunks are not being
    /// read. Copies of KV need the KV chunks of their chunks, so these cannot be unmapped; other addresses of
    /// such a chunk can.
    fn start_remap(&mut self, transaction: &Transaction) -> Result<StartResult, Failure> {
        let handed_over = &transaction.handed_over;
        let taken = |op: &MapOp| matches!(op, MapOp::Unmap(Address::Kv(_), chunk) if self.reservations.is_chunk_in_use(*chunk));
        if handed_over.iter().any(|c| !self.pool.exists(*c) || self.has_pending_copy(*c))
            || transaction.ops.iter().any(taken)
        {
            return Err(Failure::Refused);
        }
        self.table.apply(&transaction.ops, |chunk| self.pool.exists(chunk))?;
        let backed = self.unbacked_chunks(transaction);
        let poisoned = if self.poison { handed_over.clone() } else { Vec::new() };
        if backed.is_empty() && poisoned.is_empty() {
            return Ok(self.send_remap(transaction));
        }
        self.table.revert(&transaction.ops);
        self.worker.submit(SerialJob::Prepare { backed, poisoned });
        Ok(StartResult::Pending(HeadState::Preparing))
    }

    /// Returns the chunks without all pages that the engine may access as soon as they are mapped. Weights
    /// are not among them: the engine reads them after they are copied in, which allocates the pages.
    fn unbacked_chunks(&self, transaction: &Transaction) -> Vec<ChunkId> {
        let maps = transaction.ops.iter().filter_map(|op| match *op {
            MapOp::Map(Address::Kv(_) | Address::Activation(_) | Address::Staging(_), chunk) => Some(chunk),
            MapOp::Map(..) | MapOp::Unmap(..) => None,
        });
        maps.filter(|chunk| !self.pool.is_backed(*chunk)).collect()
    }

    /// Sends a transaction that is already applied to the table.
    fn send_remap(&mut self, transaction: &Transaction) -> StartResult {
        let begun = Instant::now();
        let id = self.serial_queue.queue.front().expect("the transaction is the first operation").id;
        if !transaction.ops.is_empty() && self.engine.remap(id, &transaction.ops) {
            StartResult::Pending(HeadState::AwaitingEngine(begun))
        } else {
            StartResult::Completed(done_since(begun))
        }
    }

    fn start_moves(&mut self, moves: &[LayerBlockMove]) -> Result<StartResult, Failure> {
        let copies: Option<Vec<LayerBlockCopy>> =
            moves.iter().map(|one| self.layer_block_copy(*one)).collect();
        Ok(self.start_job(SerialJob::Move(copies.ok_or(Failure::Refused)?)))
    }

    fn layer_block_copy(&self, one: LayerBlockMove) -> Option<LayerBlockCopy> {
        let bytes = self.geometry.layer_block_bytes;
        let from = self.layer_block_location(one.from, one.from_chunk, LayerBlockUse::Read)?;
        let to = self.layer_block_location(one.to, one.to_chunk, LayerBlockUse::Write)?;
        Some(LayerBlockCopy { from, to, bytes })
    }

    /// Returns chunk and offset of a block. Returns `None` if another chunk or none backs its KV chunk, if the
    /// chunk is being filled, or if another copy of the block excludes this use.
    pub(super) fn layer_block_location(
        &self,
        layer_block: LayerBlockId,
        chunk: ChunkId,
        to: LayerBlockUse,
    ) -> Option<(ChunkId, u64)> {
        let per_chunk = self.geometry.layer_blocks_per_chunk();
        let kv_chunk = Address::Kv(KvChunkId(layer_block.0 / per_chunk));
        let place = (chunk, u64::from(layer_block.0 % per_chunk) * self.geometry.layer_block_bytes);
        let right = self.table.backing(kv_chunk) == Some(chunk) && !self.table.is_filling(chunk);
        (right && self.reservations.can_use(place, to)).then_some(place)
    }

    fn start_job(&mut self, chore: SerialJob) -> StartResult {
        self.worker.submit(chore);
        StartResult::Pending(HeadState::RunningJob)
    }

    pub(super) fn on_job_done(&mut self, outcome: Outcome) {
        let operation = self.serial_queue.queue.front().expect("the chore's operation is at hand");
        let ready = matches!(self.serial_queue.head_state, HeadState::Preparing);
        if !ready || matches!(outcome, Outcome::Failed(_)) {
            self.end_operation(outcome);
            return;
        }
        let Work::Transaction(transaction) = &operation.work else {
            unreachable!("only transactions get ready")
        };
        let transaction = transaction.clone();
        let applied = self.table.apply(&transaction.ops, |chunk| self.pool.exists(chunk));
        assert!(applied.is_ok(), "what fitted before it got ready fits then: {transaction:?}");
        match self.send_remap(&transaction) {
            StartResult::Completed(outcome) => self.end_operation(outcome),
            StartResult::Pending(at_hand) => self.serial_queue.head_state = at_hand,
        }
    }

    /// Continues the release that the engine has, if it is this one.
    pub(super) fn complete_engine_release(&mut self, id: ActionId, ok: bool) -> bool {
        let Some(operation) = self.serial_queue.queue.front() else { return false };
        if !matches!(self.serial_queue.head_state, HeadState::AwaitingRelease) || operation.id != id {
            return false;
        }
        if ok {
            self.worker.submit(release_job(&operation.work));
            self.serial_queue.head_state = HeadState::RunningJob;
        } else {
            self.end_operation(Outcome::Failed(Failure::Refused));
        }
        true
    }

    /// Completes the transaction that the engine has, if it is this one.
    pub(super) fn complete_remap(&mut self, id: ActionId, ok: bool) -> bool {
        let HeadState::AwaitingEngine(begun) = self.serial_queue.head_state else { return false };
        let operation = self.serial_queue.queue.front().expect("the engine has the first operation");
        if operation.id != id {
            return false;
        }
        let outcome = if ok { done_since(begun) } else { Outcome::Failed(Failure::Refused) };
        if let (false, Work::Transaction(transaction)) = (ok, &operation.work) {
            self.table.revert(&transaction.ops);
        }
        self.end_operation(outcome);
        true
    }
}

fn release_job(work: &Work) -> SerialJob {
    match work {
        Work::Release(chunks) => SerialJob::Release(chunks.clone()),
        Work::Lend { chunks, spare_chunks, earmark } => {
            SerialJob::Lend { chunks: chunks.clone(), spare_chunks: *spare_chunks, earmark: *earmark }
        }
        other => unreachable!("{other:?} releases no chunks"),
    }
}

fn done_since(begun: Instant) -> Outcome {
    Outcome::Done { bytes: 0, duration_ns: begun.elapsed().as_nanos() as u64 }
}
