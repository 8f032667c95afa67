//! Steps of whole prompts while weights load.
//!
//! While layers load, a loaded layer serves all tokens of a prompt, not only those of its first chunk. So a step may
//! then be as long as the activation space holds, under any policy: free chunks and empty KV chunks become activations
//! for it, and are returned at the first boundary at which nothing loads. No request loses by it: no cached block is
//! evicted, no block moves, and KV keeps its guarantee.

use crate::chunks::Chunks;
use crate::kv::chunk_pool::KvChunkPool;
use crate::reason::Reason;
use crate::sizes::Sizes;
use crate::transition::{Transition, TransitionTarget};

/// The parts that decide how much activation space whole prompts get.
#[derive(Clone, Copy, Debug)]
pub struct WholePrompts<'a> {
    pub chunks: &'a Chunks,
    pub chunk_pool: &'a KvChunkPool,
    pub sizes: &'a Sizes,
    /// A change of chunks failed within the back-off.
    pub in_backoff: bool,
}

impl WholePrompts<'_> {
    /// Activation chunks that a step with these layer blocks could have.
    pub fn max_chunks(&self, layer_blocks: u32) -> u32 {
        let held = self.chunks.activation_chunks();
        let Some(left) = self.chunk_pool.free_layer_blocks().checked_sub(layer_blocks) else {
            return held;
        };
        let unused = self.chunk_pool.empty().min(left / self.sizes.layer_blocks_per_chunk);
        held + self.chunks.free_count() + unused.min(self.chunk_pool.above(self.sizes.kv_guaranteed))
    }

    /// The growth to `activation` chunks for a step with these layer blocks. A step with more than the usual
    /// activations has them at once or is not run: its gain is not worth memory of a request. `None` = it is not run.
    pub fn grow(&self, activation: u32, layer_blocks: u32) -> Option<Transition> {
        let gains =
            activation > self.chunks.activation_chunks() && activation <= self.max_chunks(layer_blocks);
        (gains && !self.in_backoff).then_some(Transition {
            target: TransitionTarget::Activation(activation),
            reason: Reason::WholePrompt,
        })
    }

    /// Activation chunks beyond those of the largest usual step.
    pub fn excess(&self) -> u32 {
        self.chunks.activation_chunks().saturating_sub(self.sizes.activation_max)
    }

    /// Returns what [`WholePrompts::grow`] took.
    pub fn shrink(&self) -> Option<Transition> {
        let due = self.excess() > 0 && !self.in_backoff;
        let target = TransitionTarget::Activation(self.sizes.activation_max);
        due.then_some(Transition { target, reason: Reason::WholePrompt })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunks::tests::{geometry, loaded};
    use crate::ids::KvChunkId;
    use crate::params::Params;

    /// Three activation chunks, two KV chunks of four layer blocks, of which one is guaranteed, and one free chunk.
    fn with<T>(activation_max: u32, ask: impl FnOnce(WholePrompts<'_>) -> T) -> T {
        let params = Params { max_model_tokens: 1, guaranteed_kv_bytes: 64, ..Params::default() };
        let sizes = Sizes { activation_max, ..Sizes::new(&params, &geometry()).unwrap() };
        let mut chunks = loaded();
        chunks.create(&crate::chunks::tests::ids([15]));
        let mut chunk_pool = KvChunkPool::new(8, sizes.layer_blocks_per_chunk);
        (0..2).for_each(|kv_chunk| chunk_pool.back(KvChunkId(kv_chunk)));
        ask(WholePrompts { chunks: &chunks, chunk_pool: &chunk_pool, sizes: &sizes, in_backoff: false })
    }

    #[test]
    fn step_may_take_free_chunks_and_empty_kv_above_the_guarantee() {
        assert_eq!(
            with(3, |space| [space.max_chunks(0), space.max_chunks(8), space.max_chunks(9)]),
            [5, 4, 3]
        );
        let grown = with(3, |space| [space.grow(5, 0), space.grow(6, 0), space.grow(3, 0), space.grow(5, 8)]);
        assert_eq!(
            grown.map(|growth| growth.map(|growth| growth.target)),
            [Some(TransitionTarget::Activation(5)), None, None, None]
        );
    }

    #[test]
    fn only_the_excess_is_returned_and_not_after_a_failure() {
        assert_eq!(
            with(2, |space| (space.excess(), space.shrink().map(|shrink| shrink.target))),
            (1, Some(TransitionTarget::Activation(2)))
        );
        assert_eq!(with(3, |space| (space.excess(), space.shrink())), (0, None));
        let failed = |space: WholePrompts<'_>| WholePrompts { in_backoff: true, ..space }.shrink();
        assert_eq!(with(2, failed), None);
    }
}
