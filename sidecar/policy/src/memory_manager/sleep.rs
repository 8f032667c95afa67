//! Hibernation: an unused tenant gives up every chunk. Its KV goes to the host tier; its weights stay in host memory.
//! It wakes with all layers if they fit, else with moving ones, and its layers load during the first prefill.
//!
//! | suspending | waking |
//! |---|---|
//! | KV goes to the host tier; cache without space is dropped | chunks for the least memory are created |
//! | copies under way are dropped | loans are revoked by the negotiator |
//! | everything is unmapped in one transaction | everything is mapped in one transaction |
//! | the chunks are released | weights are loaded, embeddings first |

use alloc::vec::Vec;

use super::{MemoryManager, Prepared, TransferKind};
use crate::action::{Action, LayerBlockSwap, Work};
use crate::event::Outcome;
use crate::ids::{LayerBlockId, Nanos};
use crate::kv::Swap;
use crate::kv::admissions::AdmissionEffects;
use crate::orders::pending::{Change, Pending};
use crate::reason::Reason;
use crate::sleep::SleepState;
use crate::step_model::Layout;

/// Bytes of KV that one order copies to or from the host tier.
pub(super) const SWAP_PIECE_BYTES: u64 = 32 << 20;

impl MemoryManager {
    pub(super) fn give_up_cache(&mut self) {
        let given_up = self.kv.evict_cache();
        self.orders.count_many(Reason::PrefixEvicted, given_up);
    }

    /// Takes suspending one action further.
    pub(super) fn suspend_step(&mut self, out: &mut Vec<Action>) {
        self.loans.set_lacks_room(false);
        if self.in_backoff() {
            return;
        }
        if self.change.transition().is_some() {
            self.abort_transition();
        }
        if self.kv.has_pending_spills() || self.kv.has_loading_swaps() {
            return;
        }
        if self.orders.pending.fetches() {
            return self.orders.drop_copies(Reason::Hibernate, out);
        }
        self.restore_all();
        if self.kv.has_device_only_layer_blocks() {
            self.order_swap_out(out);
        } else if self.orders.pending.fills() > 0 {
            self.orders.drop_copies(Reason::Hibernate, out);
        } else if !self.chunks.is_unmapped() {
            let change = Change {
                next: self.chunks.ownership().unmapped(),
                layout: Some(Layout::resident()),
                reason: Reason::Hibernate,
            };
            self.order_change(change, &[], out);
        } else if self.chunks.table().created() > 0 {
            self.order_release(Reason::Hibernate, out);
        } else {
            self.sleep.on_asleep();
        }
    }

    /// Lends what peers ask for, and releases what they return.
    pub(super) fn asleep_tick(&mut self, out: &mut Vec<Action>) {
        // Chunks that an exited borrower held are created when they are needed.
        self.loans.recreation.clear();
        self.release_uncreated_share();
        if !self.loans.outgoing.is_empty() {
            self.settle_trade(out);
        } else if self.chunks.table().created() > 0 && !self.in_backoff() {
            self.order_release(Reason::Hibernate, out);
        }
    }

    fn order_swap_out(&mut self, out: &mut Vec<Action>) {
        if self.sleep.drops_kv() {
            self.give_up_cache();
            self.loans.set_lacks_room(self.kv.has_device_only_layer_blocks());
            return;
        }
        let (evicted, too_many) = self.kv.make_host_room();
        self.orders.count_many(Reason::PrefixEvicted, evicted);
        self.loans.set_lacks_room(too_many > 0);
        if too_many > 0 || !self.kv.has_device_only_layer_blocks() {
            return;
        }
        let swaps = self.kv.plan_swap_out(self.swap_piece(), &mut self.generations);
        if !swaps.is_empty() {
            self.order_swaps_out(swaps, out);
        }
    }

    pub(super) fn order_swaps_out(&mut self, swaps: Vec<Swap>, out: &mut Vec<Action>) {
        let layer_blocks = self.swapped_layer_blocks(&swaps);
        self.orders.order(Work::SwapOut(layer_blocks), Reason::SwapOut, Pending::SwapOut(swaps), out);
    }

    pub(super) fn swapped_layer_blocks(&self, swaps: &[Swap]) -> Vec<LayerBlockSwap> {
        let mut layer_blocks = Vec::with_capacity(swaps.iter().map(|swap| swap.layers.len()).sum());
        for Swap { kv_block, host_location, layers } in swaps {
            layer_blocks.extend(self.kv.layer_block_swaps(
                (*kv_block, *host_location),
                layers,
                |layer_block| self.chunk_of(layer_block),
            ));
        }
        layer_blocks
    }

    /// KV blocks that one order copies: a request that arrives waits no longer than for these.
    pub(super) fn swap_piece(&self) -> u32 {
        (SWAP_PIECE_BYTES / self.geometry.kv_block_bytes()).clamp(1, u64::from(u32::MAX)) as u32
    }

    pub(super) fn on_swapped_out(&mut self, swaps: &[Swap], outcome: Outcome) {
        let done = matches!(outcome, Outcome::Done { .. });
        self.kv.finish_swap_out(swaps, done);
        self.sleep.on_swapped_out(done);
        if !done {
            self.on_transfer_failed();
        }
    }

    /// Loads missing KV: during steps if no running request needs it, else between two steps.
    pub(super) fn swap_in_missing(
        &mut self,
        effects: &mut AdmissionEffects,
        out: &mut Vec<Action>,
    ) -> Prepared {
        if self.kv.missing_layer_block_count() > 0 || effects.loads_for_new() {
            let swaps = self.kv.plan_swap_in(self.swap_piece(), effects);
            self.order_swaps_in(Some(self.orders.now()), swaps, Pending::SwapIn, out);
            return Prepared::Wait;
        }
        while effects.layer_blocks_to_load() > 0 {
            let swaps = self.kv.plan_async_swap_in(self.swap_piece(), effects);
            self.order_swaps_in(None, swaps, Pending::AsyncSwapIn, out);
        }
        Prepared::Loading
    }

    fn order_swaps_in(
        &mut self,
        due: Option<Nanos>,
        swaps: Vec<Swap>,
        effect: fn(Vec<Swap>) -> Pending,
        out: &mut Vec<Action>,
    ) {
        let layer_blocks = self.swapped_layer_blocks(&swaps);
        self.orders.order_by(due, Work::SwapIn(layer_blocks), Reason::SwapIn, effect(swaps), out);
    }

    pub(super) fn on_swapped_in(&mut self, swaps: &[Swap], outcome: Outcome) {
        if let Outcome::Done { .. } = outcome {
            return self.kv.finish_swap_in(swaps);
        }
        self.orders.count(Reason::BackendFailed);
        self.orders.count_many(Reason::SwapLost, swaps.len() as u32);
        self.lost_requests.extend(self.kv.on_swap_in_failed(swaps));
    }

    pub(super) fn chunk_of(&self, layer_block: LayerBlockId) -> crate::ids::ChunkId {
        self.chunks.ownership().chunk_of(layer_block, self.sizes.layer_blocks_per_chunk)
    }

    /// Takes waking one action further.
    pub(super) fn wake_step(&mut self, out: &mut Vec<Action>) {
        self.loans.set_lacks_room(false);
        if !self.chunks.is_unmapped() {
            // It was not asleep yet.
            self.sleep.on_awake();
            return;
        }
        if self.in_backoff() {
            return;
        }
        if let Some(transfer) = self.loans.outgoing.first() {
            return match transfer.claim {
                TransferKind::Lend => self.refuse_loan(),
                TransferKind::Return => self.settle_trade(out),
            };
        }
        self.release_uncreated_share();
        self.loans.balance.take_growth();
        let existing = self.chunks.table().created() + self.loans.recreation.chunks();
        let spare = self.loans.balance.budget().min(self.sizes.useful()).saturating_sub(existing);
        self.loans.recreation.add(spare);
        let first = self.sizes.initial_chunks(&self.base).saturating_sub(self.chunks.table().created());
        if first > 0 && self.is_recreating() {
            return self.order_recreation(first, out);
        }
        let layout = self.start_layout(self.chunks.table().created());
        let whole = layout.as_ref().is_some_and(|layout| *layout == self.base);
        if let Some(layout) = layout.filter(|_| whole || !self.loans.awaits_loans()) {
            let next = self.initial_ownership(&layout);
            self.order_change(Change { next, layout: Some(layout), reason: Reason::Wake }, &[], out);
        }
    }

    /// Everything is mapped again, if it is.
    pub(super) fn on_awake(&mut self) {
        if self.sleep.state() == SleepState::Waking && !self.chunks.is_unmapped() {
            self.sleep.on_awake();
        }
    }
}
