//! The share: what of it can be created, lent and released, in chunks.
//!
//! A larger share counts at once. A smaller one is a debt to the GPU: steps wait for it, and the excess goes back to
//! the device in pieces, cheapest first ([`super::reclaim`]). The tenant keeps its floor; if peers hold chunks that it
//! needs for the floor, these loans are revoked first.

use super::{Loans, OutgoingTransfer, TransferKind};
use crate::orders::pending::PendingActions;
use crate::peers::loans::chunks_above_floor;

/// What the share and the floor are now, in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareLimits {
    /// The share that was assigned last.
    pub assigned: u32,
    /// Chunks that are not lent now: the floor, or none while the tenant sleeps.
    pub floor: u32,
}

impl Loans {
    /// Another share was assigned. A larger one holds at once; a smaller one is reached as memory is released.
    pub fn assign_share(&mut self, share: u32) {
        self.balance.assign(share);
    }

    /// Chunks that may be created where `created` exist, and are not to be created again in any case.
    pub fn spare_chunks(&self, created: u32) -> u32 {
        self.balance.budget().saturating_sub(created + self.recreation.chunks())
    }

    /// Chunks that can be lent above the floor, besides those that are lent or promised.
    pub fn unpromised_chunks_above_floor(&self, pending: &PendingActions, floor: u32) -> u32 {
        chunks_above_floor(
            self.balance.share(),
            self.balance.lent() + self.outgoing_chunks(pending, TransferKind::Lend),
            floor,
        )
    }

    /// Queues a transfer to a peer. `floor` chunks are not lent now.
    ///
    /// # Panics
    /// If a loan would take the tenant below its floor, or a return is larger than what was borrowed: the caller has
    /// checked.
    pub fn queue(&mut self, transfer: OutgoingTransfer, pending: &PendingActions, floor: u32) {
        let most = match transfer.kind {
            TransferKind::Lend => self.unpromised_chunks_above_floor(pending, floor),
            TransferKind::Return => self.unreturned(pending),
        };
        assert!(
            transfer.chunks <= most,
            "{transfer:?} is at most {most} chunks: the floor, or what was borrowed"
        );
        self.outgoing.push(transfer);
    }

    /// Chunks of the share that are lent or promised, and the floor.
    fn retained_chunks(&self, pending: &PendingActions, limits: ShareLimits) -> u32 {
        self.balance.lent() + self.outgoing_chunks(pending, TransferKind::Lend) + limits.floor
    }

    /// Chunks that are lent or promised, and that the floor would lack within the assigned share.
    pub fn over_lent(&self, pending: &PendingActions, limits: ShareLimits) -> u32 {
        self.retained_chunks(pending, limits).saturating_sub(limits.assigned)
    }

    /// Chunks of the share that can be released now.
    pub fn share_to_release(&self, pending: &PendingActions, limits: ShareLimits) -> u32 {
        // Every step asks: count what is retained only if something is due.
        match self.balance.excess(limits.assigned) {
            0 => 0,
            due => due.min(self.balance.share().saturating_sub(self.retained_chunks(pending, limits))),
        }
    }

    /// Releases what costs nothing: refuses loans that were not made, and drops chunks that were never created.
    pub fn release_uncreated(&mut self, created: u32, pending: &PendingActions, limits: ShareLimits) {
        if self.balance.excess(limits.assigned) == 0 {
            return;
        }
        while self.over_lent(pending, limits) > 0 && self.outgoing.refuse_last_loan() {}
        let spare = self.spare_chunks(created);
        let released = self.share_to_release(pending, limits).min(spare + self.recreation.chunks());
        self.recreation.remove(released.saturating_sub(spare));
        self.balance.release_uncreated(released);
    }

    /// The chunks of a larger share are to be created, as far as `useful` chunks are worth it.
    pub fn take_growth(&mut self, useful: u32, created: u32) {
        if self.balance.take_growth() {
            self.recreate_up_to(useful, created);
        }
    }

    /// All of the share is to be created as far as it is useful, whether it has grown or not.
    pub fn recreate_share(&mut self, useful: u32, created: u32) {
        self.balance.take_growth();
        self.recreate_up_to(useful, created);
    }

    fn recreate_up_to(&mut self, useful: u32, created: u32) {
        let existing = created + self.recreation.chunks();
        self.recreation.add(self.balance.budget().min(useful).saturating_sub(existing));
    }

    /// A borrower exited, or returned chunks without memory: they are the device's, and may be created again.
    ///
    /// # Panics
    /// If fewer were lent.
    pub fn recover_share(&mut self, chunks: u32) {
        self.balance.on_lent_returned(chunks);
        self.recreation.add(chunks);
    }
}

/// Chunks of the share that are to be created again.
impl Loans {
    /// Chunks to create again.
    pub fn chunks_to_recreate(&self) -> u32 {
        self.recreation.chunks()
    }

    /// Some may be created at this boundary.
    pub fn may_recreate(&self, boundary: u64) -> bool {
        self.recreation.is_due(boundary)
    }

    /// They are created at once, not when a step needs them: layers wait for memory (`layers_away`), the tenant is idle
    /// without `open_requests`, or a transfer waits.
    pub fn recreates_at_once(&self, layers_away: bool, open_requests: bool) -> bool {
        let idle = !self.active && !open_requests;
        self.recreation.chunks() > 0 && (layers_away || idle || self.has_outgoing())
    }

    /// Chunks to create for the layer blocks that a step lacks; none if none can be created at this boundary.
    pub fn recreation_for_step(
        &self,
        boundary: u64,
        missing_layer_blocks: u32,
        layer_blocks_per_chunk: u32,
        chunk_bytes: u64,
    ) -> Option<u32> {
        self.recreation.for_step(boundary, missing_layer_blocks, layer_blocks_per_chunk, chunk_bytes)
    }

    /// The tenant starts, and `chunks` of its share come later: peers hold them.
    pub fn start_without(&mut self, chunks: u32) {
        self.recreation.start(if self.demand.is_enabled() { chunks } else { 0 });
    }

    /// The tenant sleeps: nothing is to be created before it is needed.
    pub fn recreate_nothing(&mut self) {
        self.recreation.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::Earmark;
    use crate::loans::OutgoingTransfer;
    use crate::peers::Peer;
    use crate::peers::loans::Nonce;
    use crate::revert::Hysteresis;

    fn loans(share: u32) -> Loans {
        Loans::new(share, Hysteresis::new(1, 0))
    }

    fn loan(nonce: u64, chunks: u32) -> OutgoingTransfer {
        let peer = Peer { index: 1, instance: 1 };
        OutgoingTransfer { earmark: Earmark { peer, nonce: Nonce(nonce) }, chunks, kind: TransferKind::Lend }
    }

    #[test]
    fn chunks_to_create_again_are_not_spare() {
        let mut loans = loans(40);
        assert_eq!(loans.spare_chunks(30), 10);
        loans.recreate_share(36, 30);
        assert_eq!((loans.recreation.chunks(), loans.spare_chunks(30)), (6, 4));
        loans.take_growth(40, 30);
        assert_eq!(loans.recreation.chunks(), 6, "the share has not grown");
        loans.assign_share(42);
        loans.take_growth(u32::MAX, 30);
        assert_eq!((loans.recreation.chunks(), loans.spare_chunks(30)), (12, 0));
    }

    #[test]
    fn a_smaller_share_first_drops_what_does_not_exist() {
        let (mut loans, pending) = (loans(40), PendingActions::default());
        let limits = ShareLimits { assigned: 20, floor: 10 };
        loans.recreate_share(34, 30);
        loans.release_uncreated(30, &pending, limits);
        assert_eq!(
            (loans.balance.share(), loans.recreation.chunks()),
            (30, 0),
            "6 spare chunks and 4 to create"
        );
        assert_eq!(loans.share_to_release(&pending, limits), 10);
    }

    #[test]
    fn what_peers_have_and_the_floor_are_not_released() {
        let (mut loans, pending) = (loans(40), PendingActions::default());
        let limits = ShareLimits { assigned: 20, floor: 10 };
        loans.balance.on_lent(9);
        loans.queue(loan(1, 3), &pending, limits.floor);
        loans.queue(loan(2, 2), &pending, limits.floor);
        assert_eq!((loans.over_lent(&pending, limits), loans.share_to_release(&pending, limits)), (4, 16));
        // No chunk is spare: 31 exist of the 31 that may.
        loans.release_uncreated(31, &pending, limits);
        assert_eq!(loans.outgoing.len(), 0, "loans that were not made are refused, the last one first");
        assert_eq!((loans.over_lent(&pending, limits), loans.balance.share()), (0, 40));
    }
}
