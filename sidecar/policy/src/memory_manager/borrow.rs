//! Loans from peers: when the tenant asks for one, and when it returns one unasked.

use alloc::vec::Vec;

use super::{MemoryManager, SleepState, StepNeed, TransferKind};
use crate::action::Earmark;
use crate::peers::Peer;
use crate::peers::loans::Nonce;
use crate::reason::Reason;
use crate::revert::Pressure;

impl MemoryManager {
    /// Sets whether peers can be asked.
    pub fn set_can_borrow(&mut self, traded: bool) {
        self.loans.demand.set_enabled(traded);
    }

    /// Chunks that the next step lacks and peers may have. The step waits until they arrive or
    /// [`MemoryManager::on_borrow_denied`].
    pub fn borrow_request(&self) -> Option<u32> {
        self.loans.demand.wanted()
    }

    /// The useful size of a loan where at most `most` chunks can be had: enough for as many requests of the step as the
    /// loan and the tenant's own layers cover, less what whole own layers give in any case. 0 if it would not help.
    pub fn useful_loan_size(&self, most: u32) -> u32 {
        let own = self.own_chunks();
        let Some(rung) = self.loans.demand.largest_within(most.saturating_add(own)) else { return 0 };
        let slab = self.sizes.largest_slab();
        let layers = rung.saturating_sub(most).div_ceil(slab);
        rung.saturating_sub(own.min(layers.saturating_mul(slab)))
    }

    /// Sets whether requests wait or run that an engine could serve. Waiting requests hold no KV, so the memory manager
    /// does not see them. Without requests there is no demand.
    pub fn set_busy(&mut self, busy: bool) {
        self.loans.set_busy(busy);
        if !busy {
            self.clear_borrow_request();
        }
    }

    pub(super) fn clear_borrow_request(&mut self) {
        self.loans.demand.clear();
    }

    /// Peers have nothing: the policy's next step is tried, until the next boundary.
    pub fn on_borrow_denied(&mut self) {
        self.loans.demand.on_denied();
    }

    /// Counts a decision about a peer.
    pub(crate) fn record_shortfall(&mut self, reason: Reason) {
        self.count(reason);
    }

    /// The tenant has work and lent layers are absent.
    pub fn wants_layers(&self) -> bool {
        self.is_loaded() && self.wake_layout()
    }

    /// Chunks of this return that are queued or under way.
    pub fn debt_shortfall(&self, earmark: Earmark) -> u32 {
        let waiting = self.loans.outgoing.return_chunks(earmark);
        waiting + self.outgoing_chunks(|going, claim| going == earmark && claim == TransferKind::Return)
    }

    /// The loan of this name is under way.
    pub fn lending(&self, nonce: Nonce) -> bool {
        self.outgoing_chunks(|earmark, claim| earmark.nonce == nonce && claim == TransferKind::Lend) > 0
    }

    /// Stops loans to a peer that has exited. Returns the chunks of all that were not made, with those under way.
    pub fn forget_loans(&mut self, peer: Peer) -> u32 {
        let waiting = self.loans.outgoing.forget_loans_to(peer);
        let made = self.outgoing_chunks(|earmark, claim| earmark.peer == peer && claim == TransferKind::Lend);
        waiting + made
    }

    /// Borrowed chunks that were not needed for a while, after own layers were restored. Without requests that is all
    /// of them: a loan does not serve an unused cache.
    pub fn return_unused_loan(&mut self) -> u32 {
        let left = self.loans.balance.borrowed().saturating_sub(self.earmarked_chunks(TransferKind::Return));
        if self.sleep.state() == SleepState::Asleep {
            return left;
        }
        let away = self.weights.layout().alpha() > self.base.alpha();
        if left == 0 || away || self.change.transition().is_some() || self.borrow_request().is_some() {
            self.loans.demand.on_used();
            return 0;
        }
        // A loan for a request is in use before its first step is planned.
        let idle = !self.loans.is_busy() && self.kv.open_requests() == 0;
        if self.loans.demand.count_idle(idle) {
            return left;
        }
        let bytes = |chunks: u32| u64::from(chunks) * self.geometry.chunk_bytes;
        let used = self.kv.chunk_pool().used_layer_blocks().saturating_sub(self.kv.evictable_layer_blocks());
        let pressure = Pressure {
            spare_bytes: bytes(self.chunks.free_count() + self.idle_kv_chunks()),
            used_bytes: bytes(used.div_ceil(self.sizes.layer_blocks_per_chunk)),
            layer_bytes: self.geometry.chunk_bytes,
            alpha: left.min(u32::from(u16::MAX)) as u16,
        };
        self.loans.demand.surplus(&pressure)
    }

    /// The tenant trades: there are peers, and the policy may reclaim weights (`Recompute` keeps to its share).
    pub(super) fn trades(&self) -> bool {
        self.loans.demand.is_enabled() && self.sizes.movable_m.is_some()
    }

    /// Loan sizes that help a step which lacks more than `had_layer_blocks`, free chunks included. Empty if peers cannot
    /// be asked, or refused since the last boundary.
    pub(super) fn loan_sizes(&self, need: &StepNeed, to_load: u32, had_layer_blocks: u32) -> Vec<u32> {
        if !self.trades() || self.loans.demand.is_denied() || self.in_backoff() {
            return Vec::new();
        }
        self.shortfall_steps(need, to_load, had_layer_blocks)
    }

    /// Chunks that each request of the step lacks together with those before it, as far as KV may grow. The `to_load`
    /// layer blocks from the host tier come first.
    fn shortfall_steps(&self, need: &StepNeed, to_load: u32, had_layer_blocks: u32) -> Vec<u32> {
        let per = self.sizes.layer_blocks_per_chunk;
        let room = self.sizes.kv_limit - self.kv.chunk_pool().backed() - self.free_kv_chunks();
        let layer_blocks = need.kv_blocks.iter().scan(to_load, |layer_blocks, (request, kv_blocks)| {
            *layer_blocks += kv_blocks * self.kv_block_layer_blocks(need, *request);
            Some(*layer_blocks)
        });
        let chunks = core::iter::once(to_load)
            .chain(layer_blocks)
            .map(|b| b.saturating_sub(had_layer_blocks).div_ceil(per));
        let mut rungs: Vec<u32> = chunks.filter(|chunks| (1..=room).contains(chunks)).collect();
        rungs.dedup();
        rungs
    }
}
