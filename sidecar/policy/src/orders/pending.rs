//! Actions that were ordered and have not ended.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::action::{Action, Earmark, FillTarget, LayerBlockMove, Work};
use crate::chunk_table::Ownership;
use crate::ids::{ActionId, ChunkId, Generation, LayerId, Nanos, SlotId};
use crate::kv::Swap;
use crate::loans::transfer::TransferKind;
use crate::reason::Reason;
use crate::step_model::Layout;

/// The effect of an action when it ends.
#[derive(Clone, Debug)]
pub enum Pending {
    /// These chunks are created.
    Create(Vec<ChunkId>),
    /// These chunks are released.
    Release(Vec<ChunkId>),
    /// These chunks are released, and with them a part of the share.
    ReleaseShare(Vec<ChunkId>),
    /// These chunks are created again after a borrower exited.
    Recreate(Vec<ChunkId>),
    /// These chunks are created on a peer's bytes.
    Accept(Vec<ChunkId>, Earmark, TransferKind),
    /// These chunks, and this number that do not exist, go to a peer.
    Lend(Vec<ChunkId>, u32, Earmark, TransferKind),
    /// The address table becomes this one.
    Transaction(Box<PendingTransaction>),
    /// Weights are copied.
    Fill {
        /// The holder.
        target: FillTarget,
        /// Their generation.
        generation: Generation,
    },
    /// Blocks move.
    Move(Vec<LayerBlockMove>),
    /// KV is copied to the host tier.
    SwapOut(Vec<Swap>),
    /// KV is copied from the host tier.
    SwapIn(Vec<Swap>),
    /// The same during steps.
    AsyncSwapIn(Vec<Swap>),
    /// KV of a layer is copied into a buffer for one step.
    Fetch {
        /// The layer.
        layer: LayerId,
        /// The buffer.
        buffer: SlotId,
        /// Its generation.
        generation: Generation,
        /// Blocks are copied; false for an empty fetch.
        copies: bool,
    },
    /// KV is copied to the host tier during steps.
    WriteBack(Vec<Swap>),
    /// KV of a layer leaves a buffer, of this generation.
    Spill(Generation),
    /// Queued copies are dropped.
    Drop,
}

impl Pending {
    /// Chunks that are created with it.
    fn arriving(&self) -> &[ChunkId] {
        match self {
            Pending::Create(chunks) | Pending::Recreate(chunks) | Pending::Accept(chunks, ..) => chunks,
            _ => &[],
        }
    }

    /// Runs during steps and moves KV.
    fn streams(&self) -> bool {
        use Pending::{AsyncSwapIn, Fetch, Spill, WriteBack};
        matches!(self, Fetch { .. } | WriteBack(_) | Spill(_) | AsyncSwapIn(_))
    }
}

/// A transaction of the device that changes owners.
#[derive(Clone, Debug)]
pub struct PendingTransaction {
    /// The owners afterwards.
    pub next: Ownership,
    /// The layout afterwards, if it changes.
    pub layout: Option<Layout>,
    /// The reason.
    pub reason: Reason,
}

/// Every pending action.
#[derive(Clone, Debug, Default)]
pub struct PendingActions {
    next: u64,
    /// By id, from the oldest that has not ended; none for those that have.
    actions: VecDeque<Option<Pending>>,
    /// Actions that have not ended.
    count: u32,
    fills: u32,
    /// Copies of KV that run during steps, as fills do.
    streams: u32,
}

impl PendingActions {
    /// Orders `work`, which is needed at `due`; `None` = no step waits for it.
    pub fn order(
        &mut self,
        work: Work,
        (reason, due): (Reason, Option<Nanos>),
        effect: Pending,
        out: &mut Vec<Action>,
    ) {
        let id = ActionId(self.next);
        self.next += 1;
        self.fills += u32::from(matches!(effect, Pending::Fill { .. }));
        self.streams += u32::from(effect.streams());
        self.count += 1;
        self.actions.push_back(Some(effect));
        out.push(Action { id, work, reason, due });
    }

    /// Takes the action that has ended.
    ///
    /// # Panics
    /// If no such action is pending: a backend completes every action exactly once.
    pub fn take(&mut self, id: ActionId) -> Pending {
        let at = self.place(id).expect("a completion belongs to a pending action");
        let effect = self.actions[at].take().expect("a completion belongs to a pending action");
        while let Some(None) = self.actions.front() {
            self.actions.pop_front();
        }
        self.count -= 1;
        self.fills -= u32::from(matches!(effect, Pending::Fill { .. }));
        self.streams -= u32::from(effect.streams());
        effect
    }

    /// The index of the action, if it is pending.
    fn place(&self, id: ActionId) -> Option<usize> {
        let oldest = self.next - self.actions.len() as u64;
        let at = usize::try_from(id.0.checked_sub(oldest)?).ok()?;
        (at < self.actions.len()).then_some(at)
    }

    fn effects(&self) -> impl Iterator<Item = &Pending> {
        self.actions.iter().flatten()
    }

    /// The action was ordered and has not ended.
    pub fn contains(&self, id: ActionId) -> bool {
        self.place(id).is_some_and(|at| self.actions[at].is_some())
    }

    /// Fetches and spills under way, which [`Work::DropFills`] drops as well.
    pub fn fetches(&self) -> bool {
        let dropped = |effect: &Pending| matches!(effect, Pending::Fetch { .. } | Pending::Spill(_));
        self.streams > 0 && self.effects().any(dropped)
    }

    /// Fills under way.
    pub fn fills(&self) -> u32 {
        self.fills
    }

    /// An action is pending, and no step may begin before it ends: it is no copy that runs during steps.
    pub fn blocking(&self) -> bool {
        self.count > self.fills + self.streams
    }

    /// A drop of fills is under way.
    pub fn dropping(&self) -> bool {
        self.blocking() && self.effects().any(|effect| matches!(effect, Pending::Drop))
    }

    /// No fill may be ordered now: queued ones are being dropped, or the layout changes.
    pub fn fills_blocked(&self) -> bool {
        let holds = |effect: &Pending| match effect {
            Pending::Drop => true,
            Pending::Transaction(pending) => pending.layout.is_some(),
            _ => false,
        };
        self.blocking() && self.effects().any(holds)
    }

    /// Actions ordered so far: the id of the next one.
    pub fn ordered(&self) -> u64 {
        self.next
    }

    /// Chunks that are being created.
    pub fn arriving(&self) -> impl Iterator<Item = ChunkId> + '_ {
        self.effects().flat_map(Pending::arriving).copied()
    }

    /// Chunks of the transfers to peers under way that `which` selects.
    pub fn lent_chunks(&self, which: impl Fn(Earmark, TransferKind) -> bool) -> u32 {
        let selected = self.transfers().filter(|(earmark, _, kind)| which(*earmark, *kind));
        selected.map(|(_, chunks, _)| chunks).sum()
    }

    /// Transfers to peers under way, with their chunks.
    pub fn transfers(&self) -> impl Iterator<Item = (Earmark, u32, TransferKind)> + '_ {
        self.effects().filter_map(|effect| match effect {
            Pending::Lend(chunks, spare, earmark, kind) => {
                Some((*earmark, chunks.len() as u32 + spare, *kind))
            }
            _ => None,
        })
    }

    /// Chunks that are being created or released: the backend can be ahead by this number.
    pub fn moving_chunks(&self) -> u32 {
        let released = self.effects().map(|effect| match effect {
            Pending::Release(chunks) | Pending::ReleaseShare(chunks) => chunks.len() as u32,
            _ => 0,
        });
        self.arriving().count() as u32 + released.sum::<u32>() + self.lent_chunks(|_, _| true)
    }

    /// Everything pending, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (ActionId, &Pending)> {
        let oldest = self.next - self.actions.len() as u64;
        let actions = self.actions.iter().enumerate();
        actions.filter_map(move |(at, effect)| Some((ActionId(oldest + at as u64), effect.as_ref()?)))
    }
}
