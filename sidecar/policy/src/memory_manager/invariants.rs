//! The audit, run after every event in tests.

use super::MemoryManager;
use crate::action::FillTarget;
use crate::chunk_table::{LayerLocation, Owner, State};
use crate::digest::Digest;
use crate::ids::{KvChunkId, LayerId, SlotId};
use crate::slots::CopyProgress;

/// Completions that may be outstanding besides a copy of weights, a fetch and a spill for each layer, and one copy for
/// each slot.
const OTHER_PENDING: usize = 4;

impl MemoryManager {
    /// Checks every invariant; panics with a message when one is broken.
    pub fn check(&self) {
        self.chunks.check();
        self.kv.check();
        self.weights.check();
        self.check_sizes();
        self.check_kv_chunks();
        if self.weights.has_global() {
            self.check_contents();
        }
        let max_pending = 3 * usize::from(self.sizes.layers) + 2 + OTHER_PENDING;
        assert!(self.orders.pending().iter().count() <= max_pending, "pending actions are bounded");
    }

    /// Every part is within its bounds, once anything is mapped.
    fn check_sizes(&self) {
        assert!(
            self.chunks.table().created() <= self.loans().budget_chunks(),
            "created chunks fit the budget"
        );
        if self.chunks.ownership().owners().next().is_none() {
            return;
        }
        let activation = self.chunks.activation_chunks();
        let (min, max) = (self.sizes.activation_least, self.sizes.activation_wake);
        assert!((min..=max).contains(&activation), "activation space lies between its bounds");
        assert!(
            self.loaded || self.whole_prompts().excess() == 0,
            "only a tenant that wakes has more than the usual"
        );
        let kv = self.chunks.table().count(Owner::Kv);
        assert!(
            kv >= self.sizes.kv_guaranteed && kv <= self.sizes.kv_limit,
            "KV lies between guarantee and limit"
        );
    }

    fn check_kv_chunks(&self) {
        for (f, chunk) in self.chunks.ownership().kv_chunks.iter().enumerate() {
            let kv_chunk = KvChunkId(f as u32);
            assert_eq!(
                self.kv.chunk_pool().is_backed(kv_chunk),
                chunk.is_some(),
                "{kv_chunk:?} is backed in both tables"
            );
            let Some(chunk) = chunk else { continue };
            let draining = self.kv.chunk_pool().draining().contains(&kv_chunk);
            let expected = if draining { State::Draining } else { State::Idle };
            assert_eq!(self.chunks.table().state(*chunk), expected, "{kv_chunk:?} drains in both tables");
        }
        assert!(
            self.transitions.current().is_some() || self.kv.chunk_pool().draining().is_empty(),
            "KV chunks drain for a transition"
        );
    }

    /// States in the chunk table follow from the copies.
    fn check_contents(&self) {
        for layer in (0..self.sizes.layers).map(LayerId) {
            if !self.weights.is_resident(layer) {
                let not_resident = self.chunks.ownership().location(layer) != LayerLocation::Resident;
                assert!(not_resident, "{layer:?} has a slab, a slot, or was lent");
                continue;
            }
            let state = self.chunks.table().contents(Owner::WeightsLayer(layer));
            assert_eq!(state, self.weights.state(FillTarget::Resident(layer)), "state of {layer:?}");
        }
        for slot in (0..self.weights.layout().beta).map(SlotId) {
            let state = self.chunks.table().contents(Owner::Slot(slot));
            assert_eq!(state, self.weights.state(FillTarget::Slot(slot, LayerId(0))), "state of {slot:?}");
        }
    }

    /// A digest of everything that decides: equal runs have equal digests.
    pub fn digest(&self) -> u64 {
        let mut digest = Digest::new(self.chunks.table().digest());
        digest.word(self.kv.digest());
        for instance in self.weights.slots().window() {
            let progress = u64::from(instance.progress == CopyProgress::Filled);
            digest.word(u64::from(instance.layer.0) << 48 ^ instance.generation.0 << 1 ^ progress);
        }
        let flags = [
            self.loaded,
            self.orders.step().is_running(),
            self.orders.step().is_interrupted(),
            self.weights.is_settled(),
            self.transitions.current().is_some(),
            self.failure.is_some(),
            self.orders.step().waited_for_weights(),
        ];
        digest.word(flags.iter().fold(0, |word, flag| word << 1 | u64::from(*flag)));
        let [retry_at, failures, moved_at_step, remapped_at_step] = self.transitions.digest_words();
        for word in [
            self.orders.pending().ordered(),
            self.orders.pending().iter().count() as u64,
            self.generations.used(),
            self.orders.steps(),
            self.orders.boundaries(),
            retry_at,
            self.weights.retries(),
            self.step_stats.link_bytes_per_second(),
            self.step_stats.prefill_token_ns(),
            self.step_stats.kv_block_ns(),
            failures,
            self.sleep.digest_word(),
            self.loans.digest_word(),
            self.offload.plans_digest(),
            moved_at_step,
            remapped_at_step,
        ] {
            digest.word(word);
        }
        self.orders.counters().decisions().iter().for_each(|count| digest.word(*count));
        self.weights.leased().iter().for_each(|generation| digest.word(generation.0));
        self.chunks.ownership().stale.iter().for_each(|(_, chunk)| digest.word(u64::from(chunk.0)));
        self.step_stats.compute_ns().into_iter().for_each(|ns| digest.word(ns));
        digest.value()
    }
}
