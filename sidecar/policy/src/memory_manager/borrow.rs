//! Memory of neighbours as a remedy: when to ask for it, and when to give it back unasked.

use alloc::vec::Vec;

use super::{MemoryManager, Prepared, SleepState, StepNeed, TransferKind};
use crate::action::Earmark;
use crate::peers::Peer;
use crate::peers::loans::Nonce;
use crate::reason::Reason;
use crate::revert::Pressure;

impl MemoryManager {
    /// Neighbours can be asked from now on, or no longer.
    pub fn set_can_borrow(&mut self, traded: bool) {
        self.loans.demand.set_enabled(traded);
    }

    /// Chunks that the next step lacks and neighbours may have. The step waits until they come or [`MemoryManager::on_borrow_denied`] is
    /// called.
    pub fn borrow_request(&self) -> Option<u32> {
        self.loans.demand.wanted()
    }

    /// How much of a loan serves where `most` chunks are all that can be had: as many of the step's requests as that and the
    /// tenant's own layers have room for, less what whole own layers have to give all the same. 0 where it would be in vain.
    pub fn useful_loan_size(&self, most: u32) -> u32 {
        let own = self.own_chunks();
        let Some(rung) = self.loans.demand.largest_within(most.saturating_add(own)) else { return 0 };
        let slab = self.sizes.largest_slab();
        let layers = rung.saturating_sub(most).div_ceil(slab);
        rung.saturating_sub(own.min(layers.saturating_mul(slab)))
    }

    /// Requests wait or run that an engine could serve, or there are none: then nobody needs memory any more. Those that wait
    /// hold no KV, so that the memory manager sees nothing of them.
    pub fn set_busy(&mut self, busy: bool) {
        self.loans.set_busy(busy);
        if !busy {
            self.clear_borrow_request();
        }
    }

    pub(super) fn clear_borrow_request(&mut self) {
        self.loans.demand.clear();
    }

    /// Neighbours have nothing: the next remedy is taken, until the next boundary.
    pub fn on_borrow_denied(&mut self) {
        self.loans.demand.on_denied();
    }

    /// So it was decided about a neighbour: it counts.
    pub(crate) fn record_shortfall(&mut self, reason: Reason) {
        self.count(reason);
    }

    /// The tenant has work and lent layers are away.
    pub fn wants_layers(&self) -> bool {
        self.is_loaded() && self.wake_layout()
    }

    /// Chunks of a debt of this name that are to go, or are going.
    pub fn debt_shortfall(&self, earmark: Earmark) -> u32 {
        let waiting = self.loans.outgoing.return_chunks(earmark);
        waiting + self.outgoing_chunks(|going, claim| going == earmark && claim == TransferKind::Return)
    }

    /// A loan of this name is being made, and the backend has not said how that ended.
    pub fn lending(&self, nonce: Nonce) -> bool {
        self.outgoing_chunks(|earmark, claim| earmark.nonce == nonce && claim == TransferKind::Lend) > 0
    }

    /// Loans to a neighbour that is dead are not vacated any further. Returns the chunks of all that were not made yet,
    /// those included whose making has no end yet.
    pub fn forget_loans(&mut self, peer: Peer) -> u32 {
        let waiting = self.loans.outgoing.forget_loans_to(peer);
        let made = self.outgoing_chunks(|earmark, claim| earmark.peer == peer && claim == TransferKind::Lend);
        waiting + made
    }

    /// Borrowed chunks that were not needed for a while, own layers come back first. Without requests that is all of them:
    /// what a neighbour lent is not for a cache that nobody asks for.
    pub fn return_unused_loan(&mut self) -> u32 {
        let left = self.loans.balance.borrowed().saturating_sub(self.earmarked_chunks(TransferKind::Return));
        if self.sleep == SleepState::Asleep {
            return left;
        }
        let away = self.weights.layout().alpha() > self.base.alpha();
        if left == 0 || away || self.change.transition().is_some() || self.borrow_request().is_some() {
            self.loans.demand.on_used();
            return 0;
        }
        // What came for a request is not spare before its first step has been planned.
        let idle = !self.loans.is_busy() && self.kv.open_requests() == 0;
        if self.loans.demand.count_idle(idle) {
            return left;
        }
        let bytes = |chunks: u32| u64::from(chunks) * self.geometry.chunk_bytes;
        let used = self.kv.frames().used_blocks().saturating_sub(self.kv.evictable_blocks());
        let pressure = Pressure {
            spare_bytes: bytes(self.chunks.free_count() + self.idle_frames()),
            used_bytes: bytes(used.div_ceil(self.sizes.blocks_per_chunk)),
            layer_bytes: self.geometry.chunk_bytes,
            alpha: left.min(u32::from(u16::MAX)) as u16,
        };
        self.loans.demand.surplus(&pressure)
    }

    /// Memory changes hands: there are neighbours, and weights may become KV (`Recompute` keeps to its share).
    pub(super) fn trades(&self) -> bool {
        self.loans.demand.is_enabled() && self.params.policy().reclaims_weights()
    }

    /// Asks for what a step lacks beyond `had_blocks`, those of free chunks included, once for each boundary.
    pub(super) fn request_loan(&mut self, need: &StepNeed, had_blocks: u32) -> Option<Prepared> {
        self.clear_borrow_request();
        if !self.trades() || self.loans.demand.is_denied() || self.in_backoff() {
            return None;
        }
        let sizes = self.shortfall_steps(need, had_blocks);
        self.loans.demand.ask(sizes);
        self.borrow_request().map(|_| Prepared::Wait)
    }

    /// Chunks that each request of the step lacks together with those before it, as far as KV may grow. What comes back from
    /// the host tier comes back first.
    fn shortfall_steps(&mut self, need: &StepNeed, had_blocks: u32) -> Vec<u32> {
        let per = self.sizes.blocks_per_chunk;
        let room = self.sizes.kv_limit - self.kv.frames().backed() - self.free_frames();
        let wanted = self.kv.missing_block_count();
        let blocks = need.columns.iter().scan(wanted, |blocks, (request, columns)| {
            *blocks += columns * self.kv.column_blocks(*request);
            Some(*blocks)
        });
        let chunks =
            core::iter::once(wanted).chain(blocks).map(|b| b.saturating_sub(had_blocks).div_ceil(per));
        let mut rungs: Vec<u32> = chunks.filter(|chunks| (1..=room).contains(chunks)).collect();
        rungs.dedup();
        rungs
    }
}
