//! The queue of operations that take effect one after the other: create, release, reback, moves and swaps of blocks.

use std::collections::VecDeque;
use std::time::Instant;

use sluice_policy::action::{Action, Address, BlockMove, Reback, Transaction, Work};
use sluice_policy::copy_priority::CopyPriority;
use sluice_policy::event::{Failure, Outcome};
use sluice_policy::ids::{ActionId, BlockId, ChunkId, FrameId, HostBlockId, Nanos};
use sluice_policy::reason::Reason;

use super::HostMemory;
use super::chores::{BlockCopy, Chore};
use super::claims::Use;
use super::fills::distinct;

/// Operations in order; the first may have started.
#[derive(Debug, Default)]
pub(super) struct Serial {
    queue: VecDeque<Operation>,
    pushed: u64,
    at_hand: AtHand,
}

#[derive(Debug)]
struct Operation {
    number: u64,
    id: ActionId,
    work: Work,
    reason: Reason,
    due: Option<Nanos>,
    named: Named,
}

/// What a work names, each sorted.
#[derive(Debug)]
pub(super) struct Named {
    chunks: Vec<ChunkId>,
    hosts: Vec<HostBlockId>,
}

impl Named {
    pub(super) fn by(work: &Work) -> Named {
        let mut chunks = work.chunks();
        let mut hosts: Vec<_> = work.swaps().iter().map(|swap| swap.host).collect();
        chunks.sort_unstable();
        hosts.sort_unstable();
        Named { chunks, hosts }
    }

    /// Whether both name the same somewhere.
    pub(super) fn meets(&self, other: &Named) -> bool {
        meet(&self.chunks, &other.chunks) || meet(&self.hosts, &other.hosts)
    }
}

/// Whether something is in `sorted` and in `others`.
fn meet<T: Ord>(sorted: &[T], others: &[T]) -> bool {
    others.iter().any(|other| sorted.binary_search(other).is_ok())
}

/// How far the first operation is.
#[derive(Debug, Default)]
enum AtHand {
    /// Not started.
    #[default]
    Nothing,
    /// The pool's thread works on it.
    Chore,
    /// The pool's thread makes its transaction's chunks ready: their pages, and poison in those that are handed over.
    Ready,
    /// The engine has it.
    Engine(Instant),
}

impl Serial {
    pub(super) fn push(&mut self, Action { id, work, reason, due }: Action) {
        let named = Named::by(&work);
        self.queue.push_back(Operation { number: self.pushed, id, work, reason, due, named });
        self.pushed += 1;
    }

    /// The number that the next operation gets.
    pub(super) fn next_number(&self) -> u64 {
        self.pushed
    }

    /// Whether an operation with a lower number that has not ended names one of the same.
    pub(super) fn names_before(&self, number: u64, named: &Named) -> bool {
        let mut earlier = self.queue.iter().filter(|operation| operation.number < number);
        earlier.any(|operation| operation.named.meets(named))
    }

    /// The place of the first operation on the link, if it begins now: whoever waits for a later one waits for it too.
    fn rank(&self, now: Nanos) -> CopyPriority {
        let first = self.queue.front().expect("an operation is at hand");
        CopyPriority::new(first.id, self.queue.iter().filter_map(|operation| operation.due).min(), now)
    }

    /// The transaction that the engine has and did not acknowledge.
    pub(super) fn awaited(&self) -> Option<ActionId> {
        let waiting = matches!(self.at_hand, AtHand::Engine(_));
        self.queue.front().filter(|_| waiting).map(|operation| operation.id)
    }
}

/// What the start of an operation led to.
enum Started {
    Ended(Outcome),
    Waits(AtHand),
}

impl HostMemory {
    /// Starts operations until one has to be waited for. Fills that an operation held back go before the next one.
    pub(super) fn start_serial(&mut self) {
        while matches!(self.serial.at_hand, AtHand::Nothing) {
            let Some(operation) = self.serial.queue.front_mut() else { break };
            let work = std::mem::replace(&mut operation.work, Work::DropFills);
            let reason = operation.reason;
            let started = self.start(&work, reason);
            self.serial.queue.front_mut().expect("the first operation is at hand").work = work;
            match started.unwrap_or_else(|failure| Started::Ended(Outcome::Failed(failure))) {
                Started::Ended(outcome) => self.end_operation(outcome),
                Started::Waits(at_hand) => self.serial.at_hand = at_hand,
            }
        }
    }

    fn end_operation(&mut self, outcome: Outcome) {
        let operation = self.serial.queue.pop_front().expect("the operation that ends was the first");
        self.serial.at_hand = AtHand::Nothing;
        self.end(operation.id, outcome);
        self.dispatch_copies();
    }

    fn start(&mut self, work: &Work, reason: Reason) -> Result<Started, Failure> {
        match work {
            Work::Create(chunks) => {
                // A tenant that loads has time, and its first copies are to tell how fast the link is. One that wakes has
                // its layers' memory made beside the copies and the prompt.
                let at_once = reason == Reason::Load;
                self.start_create(chunks, Chore::Create { chunks: chunks.clone(), at_once })
            }
            Work::Accept { chunks, earmark } => {
                self.start_create(chunks, Chore::Accept(chunks.clone(), *earmark))
            }
            Work::Release(chunks) => self.start_release(chunks, Chore::Release(chunks.clone())),
            Work::Lend { chunks, spare_chunks, earmark } => {
                let (spare_chunks, earmark) = (*spare_chunks, *earmark);
                self.start_release(chunks, Chore::Lend { chunks: chunks.clone(), spare_chunks, earmark })
            }
            Work::Reback(transaction) => self.start_reback(transaction),
            Work::MoveBlocks(moves) => self.start_moves(moves),
            Work::SwapOut(swaps) => {
                let copies = self.swap_out(swaps)?;
                Ok(self.chore(Chore::SwapOut(copies, self.serial.rank(self.now))))
            }
            Work::SwapIn(swaps) => {
                let copies = self.swap_in(swaps)?;
                Ok(self.chore(Chore::SwapIn(copies, self.serial.rank(self.now))))
            }
            Work::Fill(_) | Work::Fetch(_) | Work::WriteBack(_) | Work::Spill(_) | Work::DropFills => {
                unreachable!("copies have their own queues")
            }
        }
    }

    fn start_create(&mut self, chunks: &[ChunkId], chore: Chore) -> Result<Started, Failure> {
        if !distinct(chunks) || chunks.iter().any(|chunk| self.pool.exists(*chunk)) {
            return Err(Failure::Refused);
        }
        Ok(self.chore(chore))
    }

    fn start_release(&mut self, chunks: &[ChunkId], chore: Chore) -> Result<Started, Failure> {
        let unused = |c: ChunkId| self.pool.exists(c) && !self.table.is_mapped(c) && !self.is_copied(c);
        if !distinct(chunks) || !chunks.iter().all(|chunk| unused(*chunk)) {
            return Err(Failure::Refused);
        }
        Ok(self.chore(chore))
    }

    /// A fill into the chunk is queued or runs, or a fetch or write-back of one of its blocks.
    fn is_copied(&self, chunk: ChunkId) -> bool {
        self.table.is_filling(chunk) || self.claims.hold(chunk)
    }

    /// Checked as a whole first, then made ready, then sent: a refused transaction changes not one byte. The engine is at a
    /// step boundary or idle (DESIGN 4, rule b), so nobody reads what is poisoned. Copies of KV need their frames, and not an
    /// address that a chunk had before it was KV.
    fn start_reback(&mut self, transaction: &Transaction) -> Result<Started, Failure> {
        let handed_over = &transaction.handed_over;
        let taken =
            |op: &Reback| matches!(op, Reback::Unmap(Address::Kv(_), chunk) if self.claims.hold(*chunk));
        if handed_over.iter().any(|c| !self.pool.exists(*c) || self.is_copied(*c))
            || transaction.ops.iter().any(taken)
        {
            return Err(Failure::Refused);
        }
        self.table.apply(&transaction.ops, |chunk| self.pool.exists(chunk))?;
        let backed = self.to_back(transaction);
        let poisoned = if self.poison { handed_over.clone() } else { Vec::new() };
        if backed.is_empty() && poisoned.is_empty() {
            return Ok(self.send(transaction));
        }
        self.table.revert(&transaction.ops);
        self.chores.order(Chore::Ready { backed, poisoned });
        Ok(Started::Waits(AtHand::Ready))
    }

    /// Chunks that the engine may touch as soon as they are mapped, and that may lack pages. Weights it reads when they have
    /// been copied in, which brings the pages.
    fn to_back(&self, transaction: &Transaction) -> Vec<ChunkId> {
        let maps = transaction.ops.iter().filter_map(|op| match *op {
            Reback::Map(Address::Kv(_) | Address::Activation(_) | Address::Staging(_), chunk) => Some(chunk),
            Reback::Map(..) | Reback::Unmap(..) => None,
        });
        maps.filter(|chunk| !self.pool.is_backed(*chunk)).collect()
    }

    /// The table shows the transaction already.
    fn send(&mut self, transaction: &Transaction) -> Started {
        let begun = Instant::now();
        let id = self.serial.queue.front().expect("the transaction is the first operation").id;
        if !transaction.ops.is_empty() && self.engine.reback(id, &transaction.ops) {
            Started::Waits(AtHand::Engine(begun))
        } else {
            Started::Ended(done(begun))
        }
    }

    fn start_moves(&mut self, moves: &[BlockMove]) -> Result<Started, Failure> {
        let copies: Option<Vec<BlockCopy>> = moves.iter().map(|one| self.block_copy(*one)).collect();
        Ok(self.chore(Chore::Move(copies.ok_or(Failure::Refused)?)))
    }

    fn block_copy(&self, one: BlockMove) -> Option<BlockCopy> {
        let bytes = self.geometry.block_bytes;
        let from = self.block_place(one.from, one.from_chunk, Use::Read)?;
        let to = self.block_place(one.to, one.to_chunk, Use::Write)?;
        Some(BlockCopy { from, to, bytes })
    }

    /// Chunk and offset of a block; none when its frame is backed by another chunk, by none, or is being filled, or when a
    /// fetch or write-back of the block does not go together with this use.
    pub(super) fn block_place(&self, block: BlockId, chunk: ChunkId, to: Use) -> Option<(ChunkId, u64)> {
        let per_chunk = self.geometry.blocks_per_chunk();
        let frame = Address::Kv(FrameId(block.0 / per_chunk));
        let place = (chunk, u64::from(block.0 % per_chunk) * self.geometry.block_bytes);
        let right = self.table.backing(frame) == Some(chunk) && !self.table.is_filling(chunk);
        (right && self.claims.allow(place, to)).then_some(place)
    }

    fn chore(&mut self, chore: Chore) -> Started {
        self.chores.order(chore);
        Started::Waits(AtHand::Chore)
    }

    pub(super) fn chore_ended(&mut self, outcome: Outcome) {
        let operation = self.serial.queue.front().expect("the chore's operation is at hand");
        let ready = matches!(self.serial.at_hand, AtHand::Ready);
        if !ready || matches!(outcome, Outcome::Failed(_)) {
            self.end_operation(outcome);
            return;
        }
        let Work::Reback(transaction) = &operation.work else { unreachable!("only transactions get ready") };
        let transaction = transaction.clone();
        let applied = self.table.apply(&transaction.ops, |chunk| self.pool.exists(chunk));
        assert!(applied.is_ok(), "what fitted before it got ready fits then: {transaction:?}");
        match self.send(&transaction) {
            Started::Ended(outcome) => self.end_operation(outcome),
            Started::Waits(at_hand) => self.serial.at_hand = at_hand,
        }
    }

    /// Ends the transaction that the engine has, if it is this one.
    pub(super) fn acknowledged(&mut self, id: ActionId, ok: bool) -> bool {
        let AtHand::Engine(begun) = self.serial.at_hand else { return false };
        let operation = self.serial.queue.front().expect("the engine has the first operation");
        if operation.id != id {
            return false;
        }
        let outcome = if ok { done(begun) } else { Outcome::Failed(Failure::Refused) };
        if let (false, Work::Reback(transaction)) = (ok, &operation.work) {
            self.table.revert(&transaction.ops);
        }
        self.end_operation(outcome);
        true
    }
}

fn done(begun: Instant) -> Outcome {
    Outcome::Done { bytes: 0, duration_ns: begun.elapsed().as_nanos() as u64 }
}
