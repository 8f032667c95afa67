//! The next step of a transition: a decision over counts. It changes nothing; the memory manager carries it
//! out (`memory_manager/transition.rs`).

use super::Transition;
use crate::kv::compact::DrainPlan;

/// What decides the next step of a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransitionFacts {
    /// What it takes to empty the KV chunks that the transition needs; `None`: KV would have less than its guarantee.
    pub drain: Option<DrainPlan>,
    /// Copies into buffers of offloaded layers are under way.
    pub fetches: bool,
    /// KV of paused requests may leave the device for this transition, and its copies are fast enough.
    pub evicts_paused: bool,
    /// Copies of weights are under way, and the transition moves weights.
    pub copies_weights: bool,
}

/// The next step of a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransitionStep {
    /// The transition fits: this is its next action.
    Act(TransitionAction),
    /// KV of paused requests leaves first: this many layer blocks fit nowhere else. Then the transition is
    /// planned again.
    EvictPaused {
        /// Layer blocks.
        missing: u32,
    },
    /// It does not fit.
    GiveUp(Misfit),
}

/// The next action of a transition that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransitionAction {
    /// What is evicted and moved within KV before it.
    pub drain: DrainPlan,
    /// What is ordered.
    pub work: TransitionWork,
}

/// What is ordered for a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransitionWork {
    /// Blocks move out of draining KV chunks.
    MoveLayerBlocks,
    /// Copies of weights are dropped.
    DropCopies,
    /// The transaction of the transition itself.
    Transaction,
}

/// Why a transition does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// KV would have less than its guarantee.
    Guarantee,
    /// What must move is being copied to or from the host tier. That ends by itself.
    CopiesUnderWay,
    /// The blocks in use do not fit elsewhere.
    NoRoom,
}

/// A transition that fits, with its first action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransitionStart {
    /// The transition.
    pub transition: Transition,
    /// Its first action.
    pub action: TransitionAction,
}

impl TransitionFacts {
    /// Decides the next step.
    pub fn next_step(&self) -> TransitionStep {
        let Some(drain) = self.drain else { return TransitionStep::GiveUp(Misfit::Guarantee) };
        if drain.buffer_layer_blocks > 0 && self.fetches {
            return TransitionStep::GiveUp(Misfit::CopiesUnderWay);
        }
        if drain.overfull_layer_blocks > 0 {
            return match self.evicts_paused {
                true => TransitionStep::EvictPaused { missing: drain.overfull_layer_blocks },
                false => TransitionStep::GiveUp(Misfit::NoRoom),
            };
        }
        let work = match drain.live_layer_blocks {
            0 if self.copies_weights => TransitionWork::DropCopies,
            0 => TransitionWork::Transaction,
            live if live == drain.copied_layer_blocks => {
                return TransitionStep::GiveUp(Misfit::CopiesUnderWay);
            }
            _ => TransitionWork::MoveLayerBlocks,
        };
        TransitionStep::Act(TransitionAction { drain, work })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three KV chunks drain, one cached KV block goes, and nothing is under way.
    const DRAIN: DrainPlan = DrainPlan {
        kv_chunks: 3,
        evictions: 1,
        overfull_layer_blocks: 0,
        buffer_layer_blocks: 0,
        live_layer_blocks: 0,
        copied_layer_blocks: 0,
    };
    const QUIET: TransitionFacts =
        TransitionFacts { drain: Some(DRAIN), fetches: false, evicts_paused: false, copies_weights: false };

    fn after(drain: DrainPlan) -> TransitionStep {
        TransitionFacts { drain: Some(drain), ..QUIET }.next_step()
    }

    fn act(drain: DrainPlan, work: TransitionWork) -> TransitionStep {
        TransitionStep::Act(TransitionAction { drain, work })
    }

    #[test]
    fn blocks_move_then_copies_end_then_the_transaction_follows() {
        let live = DrainPlan { live_layer_blocks: 4, ..DRAIN };
        let copies = TransitionFacts { copies_weights: true, ..QUIET };
        assert_eq!(
            TransitionFacts { drain: Some(live), ..copies }.next_step(),
            act(live, TransitionWork::MoveLayerBlocks)
        );
        assert_eq!(copies.next_step(), act(DRAIN, TransitionWork::DropCopies));
        assert_eq!(QUIET.next_step(), act(DRAIN, TransitionWork::Transaction));
    }

    #[test]
    fn kv_keeps_its_guarantee() {
        let below = TransitionFacts { drain: None, evicts_paused: true, ..QUIET };
        assert_eq!(below.next_step(), TransitionStep::GiveUp(Misfit::Guarantee));
    }

    #[test]
    fn buffers_move_only_while_nothing_is_fetched() {
        let buffers = DrainPlan { buffer_layer_blocks: 2, ..DRAIN };
        let fetching = |drain| TransitionFacts { drain: Some(drain), fetches: true, ..QUIET }.next_step();
        assert_eq!(after(buffers), act(buffers, TransitionWork::Transaction));
        assert_eq!(fetching(buffers), TransitionStep::GiveUp(Misfit::CopiesUnderWay));
        assert_eq!(fetching(DRAIN), act(DRAIN, TransitionWork::Transaction), "no buffer is in the way");
    }

    #[test]
    fn blocks_in_use_without_a_place_give_it_up_unless_paused_kv_may_leave() {
        let drain = Some(DrainPlan { overfull_layer_blocks: 5, live_layer_blocks: 9, ..DRAIN });
        let facts = TransitionFacts { drain, ..QUIET };
        assert_eq!(facts.next_step(), TransitionStep::GiveUp(Misfit::NoRoom));
        let evicts = TransitionFacts { evicts_paused: true, ..facts };
        assert_eq!(evicts.next_step(), TransitionStep::EvictPaused { missing: 5 });
    }

    #[test]
    fn blocks_that_are_all_being_copied_give_it_up() {
        let copied = |copied_layer_blocks| DrainPlan { live_layer_blocks: 4, copied_layer_blocks, ..DRAIN };
        assert_eq!(after(copied(4)), TransitionStep::GiveUp(Misfit::CopiesUnderWay));
        assert_eq!(after(copied(3)), act(copied(3), TransitionWork::MoveLayerBlocks), "one moves");
    }
}
