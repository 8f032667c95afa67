//! Actions that were ordered and have not ended.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::action::{Action, BlockMove, Earmark, FillTarget, Work};
use crate::brain::Claim;
use crate::ids::{ActionId, ChunkId, Generation, LayerId, SlotId};
use crate::kv::Swap;
use crate::kv::stream::Written;
use crate::ledger::Holdings;
use crate::reason::Reason;
use crate::step_model::Layout;

/// What an action's end will change.
#[derive(Clone, Debug)]
pub enum Pending {
    /// These chunks come to exist.
    Create(Vec<ChunkId>),
    /// These chunks go.
    Release(Vec<ChunkId>),
    /// These chunks come to exist again after a borrower's death.
    Regrow(Vec<ChunkId>),
    /// These chunks come to exist on a neighbour's bytes.
    Accept(Vec<ChunkId>, Earmark, Claim),
    /// These chunks, and so many that do not exist, go to a neighbour.
    Lend(Vec<ChunkId>, u32, Earmark, Claim),
    /// The address table becomes this one.
    Reback(Box<Change>),
    /// A slab arrives.
    Fill {
        /// Where.
        target: FillTarget,
        /// Under which name.
        generation: Generation,
    },
    /// Blocks move.
    Move(Vec<BlockMove>),
    /// KV arrives in the host tier.
    SwapOut(Vec<Swap>),
    /// KV arrives from the host tier.
    SwapIn(Vec<Swap>),
    /// KV of a layer arrives in a buffer for one step.
    Fetch {
        /// The layer.
        layer: LayerId,
        /// The buffer.
        buffer: SlotId,
        /// Under which name.
        generation: Generation,
    },
    /// KV arrives in the host tier beside steps.
    WriteBack(Vec<Written>),
    /// Queued fills are dropped.
    Drop,
}

impl Pending {
    /// Chunks that come to exist with it.
    pub fn arriving(&self) -> &[ChunkId] {
        match self {
            Pending::Create(chunks) | Pending::Regrow(chunks) | Pending::Accept(chunks, ..) => chunks,
            _ => &[],
        }
    }

    /// Runs beside steps and moves KV.
    fn streams(&self) -> bool {
        matches!(self, Pending::Fetch { .. } | Pending::WriteBack(_))
    }
}

/// A change of holdings.
#[derive(Clone, Debug)]
pub struct Change {
    /// Who holds what afterwards.
    pub next: Holdings,
    /// The layout afterwards, where it changes.
    pub layout: Option<Layout>,
    /// Why.
    pub reason: Reason,
}

/// Every pending action.
#[derive(Clone, Debug, Default)]
pub struct PendingActions {
    next: u64,
    actions: BTreeMap<ActionId, Pending>,
    fills: u32,
    /// Fetches and write-backs, which run beside steps as fills do.
    streams: u32,
}

impl PendingActions {
    /// Orders `work`.
    pub fn order(&mut self, work: Work, reason: Reason, effect: Pending, out: &mut Vec<Action>) {
        let id = ActionId(self.next);
        self.next += 1;
        self.fills += u32::from(matches!(effect, Pending::Fill { .. }));
        self.streams += u32::from(effect.streams());
        self.actions.insert(id, effect);
        out.push(Action { id, work, reason });
    }

    /// Takes the action that has ended.
    ///
    /// # Panics
    /// If no such action is pending: a backend completes every action exactly once.
    pub fn take(&mut self, id: ActionId) -> Pending {
        let effect = self.actions.remove(&id).expect("a completion belongs to a pending action");
        self.fills -= u32::from(matches!(effect, Pending::Fill { .. }));
        self.streams -= u32::from(effect.streams());
        effect
    }

    /// The action was ordered and has not ended.
    pub fn contains(&self, id: ActionId) -> bool {
        self.actions.contains_key(&id)
    }

    /// Fetches under way, which [`Work::DropFills`] drops as well.
    pub fn fetches(&self) -> bool {
        self.streams > 0 && self.actions.values().any(|effect| matches!(effect, Pending::Fetch { .. }))
    }

    /// Fills under way.
    pub fn fills(&self) -> u32 {
        self.fills
    }

    /// Anything under way that a step must not run beside: everything but fills, fetches and write-backs.
    pub fn blocking(&self) -> bool {
        self.actions.len() > (self.fills + self.streams) as usize
    }

    /// A drop of fills is under way.
    pub fn dropping(&self) -> bool {
        self.blocking() && self.actions.values().any(|effect| matches!(effect, Pending::Drop))
    }

    /// No fill may be ordered now: queued ones are being dropped, or the layout changes.
    pub fn holds_fills(&self) -> bool {
        let holds = |effect: &Pending| match effect {
            Pending::Drop => true,
            Pending::Reback(change) => change.layout.is_some(),
            _ => false,
        };
        self.blocking() && self.actions.values().any(holds)
    }

    /// Actions ordered so far: names the next one.
    pub fn ordered(&self) -> u64 {
        self.next
    }

    /// Everything pending, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (ActionId, &Pending)> {
        self.actions.iter().map(|(id, effect)| (*id, effect))
    }
}
