//! The audit, run after every event in tests.

use super::MemoryManager;
use crate::action::{Address, FillTarget};
use crate::chunk_table::{LayerHome, Owner, State};
use crate::digest::Digest;
use crate::ids::{FrameId, LayerId, SlotId};
use crate::slots::Progress;

/// Completions that may be outstanding besides a copy of weights, a fetch and a spill for each layer, and one copy for each slot.
const OTHER_PENDING: usize = 4;

impl MemoryManager {
    /// Checks every invariant; panics with a message when one is broken.
    pub fn check(&self) {
        self.chunk_table.check();
        self.kv.check();
        self.weights.check();
        self.check_ownership();
        self.check_frames();
        if self.weights.has_global() {
            self.check_contents();
        }
        let most = 3 * usize::from(self.sizes.layers) + 2 + OTHER_PENDING;
        assert!(self.pending.iter().count() <= most, "pending actions are bounded");
    }

    /// Addresses and owners agree, both ways.
    fn check_ownership(&self) {
        let mut held = 0;
        for (chunk, owner) in self.ownership.owners() {
            assert_eq!(self.chunk_table.owner(chunk), Some(owner), "owner of {chunk:?} and its place");
            held += 1;
        }
        self.check_stale();
        let free = self.chunk_table.count(Owner::Free);
        let parting = self.chunk_table.counts().filter(|(owner, _)| matches!(owner, Owner::Earmarked(_)));
        let free = free + parting.map(|(_, count)| count).sum::<u32>();
        assert!(self.chunk_table.created() <= self.budget_chunks(), "created chunks fit the budget");
        assert_eq!(held + free, self.chunk_table.created(), "every chunk is in one place or free");
        if held == 0 {
            return;
        }
        for l in 0..self.sizes.layers {
            let chunks = self.ownership.layer_chunks(LayerId(l)).len() as u32;
            if self.ownership.is_absent(LayerId(l)) {
                continue;
            }
            assert_eq!(chunks, self.sizes.slabs[usize::from(l)], "layer {l} is backed as a whole");
        }
        assert_eq!(self.absent_layer_count, self.ownership.absent_layers(), "absent layers are counted");
        let activation = self.activation_chunks();
        let (least, most) = (self.sizes.activation_least, self.sizes.activation_wake);
        assert!((least..=most).contains(&activation), "activation space lies between its bounds");
        assert!(
            self.loaded || self.excess_activations() == 0,
            "only a tenant that wakes has more than the usual"
        );
        let kv = self.chunk_table.count(Owner::Kv);
        assert!(
            kv >= self.sizes.kv_guaranteed && kv <= self.sizes.kv_limit,
            "KV lies between guarantee and limit"
        );
    }

    /// What an inflation left behind is KV, and no step's activations reach it.
    fn check_stale(&self) {
        for (address, chunk) in &self.ownership.stale {
            assert_eq!(
                self.chunk_table.owner(*chunk),
                Some(Owner::Kv),
                "{chunk:?} was left behind {address:?}"
            );
            let beyond = matches!(address, Address::Activation(at) if *at >= self.activation_chunks());
            assert!(beyond, "{address:?} is out of every step's reach");
        }
    }

    fn check_frames(&self) {
        for (f, chunk) in self.ownership.frames.iter().enumerate() {
            let frame = FrameId(f as u32);
            assert_eq!(
                self.kv.frames().is_backed(frame),
                chunk.is_some(),
                "{frame:?} is backed in both tables"
            );
            let Some(chunk) = chunk else { continue };
            let draining = self.kv.frames().draining().contains(&frame);
            let expected = if draining { State::Draining } else { State::Idle };
            assert_eq!(self.chunk_table.state(*chunk), expected, "{frame:?} drains in both tables");
        }
        assert!(
            self.change.transition().is_some() || self.kv.frames().draining().is_empty(),
            "frames drain for a goal"
        );
    }

    /// States in the ledger follow from the copies.
    fn check_contents(&self) {
        for layer in (0..self.sizes.layers).map(LayerId) {
            if !self.weights.is_resident(layer) {
                let elsewhere = self.ownership.home(layer) != LayerHome::Resident;
                assert!(elsewhere, "{layer:?} has a slab, a slot, or was lent");
                continue;
            }
            let state = self.chunk_table.contents(Owner::WeightsLayer(layer));
            assert_eq!(state, self.weights.state(FillTarget::Resident(layer)), "state of {layer:?}");
        }
        for slot in (0..self.weights.layout().beta).map(SlotId) {
            let state = self.chunk_table.contents(Owner::Slot(slot));
            assert_eq!(state, self.weights.state(FillTarget::Slot(slot, LayerId(0))), "state of {slot:?}");
        }
    }

    /// A fingerprint of everything that decides: equal runs have equal digests.
    pub fn digest(&self) -> u64 {
        let mut digest = Digest::new(self.chunk_table.digest());
        digest.word(self.kv.digest());
        for instance in self.weights.slots().window() {
            let progress = u64::from(instance.progress == Progress::Committed);
            digest.word(u64::from(instance.layer.0) << 48 ^ instance.generation.0 << 1 ^ progress);
        }
        let flags = [
            self.loaded,
            self.in_step,
            self.step_interrupted,
            self.weights.is_settled(),
            self.change.transition().is_some(),
            self.failure.is_some(),
            self.waited_for_weights,
        ];
        digest.word(flags.iter().fold(0, |word, flag| word << 1 | u64::from(*flag)));
        let [retry_at, failures, moved_at_step, remapped_at_step] = self.change.digest_words();
        for word in [
            self.pending.ordered(),
            self.pending.iter().count() as u64,
            self.generations.used(),
            self.steps,
            self.boundaries,
            retry_at,
            self.weights.retries(),
            self.step_stats.link_bytes_per_second(),
            self.step_stats.prefill_token_ns(),
            self.step_stats.column_ns(),
            failures,
            u64::from(self.swap_failures) << 8 | u64::from(self.discards_kv) << 2 | self.sleep as u64,
            self.loan_state.digest_word(),
            self.offload.plans.digest_word(),
            moved_at_step,
            remapped_at_step,
        ] {
            digest.word(word);
        }
        self.counters.iter().for_each(|count| digest.word(*count));
        self.weights.leased().iter().for_each(|generation| digest.word(generation.0));
        self.ownership.stale.iter().for_each(|(_, chunk)| digest.word(u64::from(chunk.0)));
        self.step_stats.compute_ns().into_iter().for_each(|ns| digest.word(ns));
        digest.value()
    }
}
