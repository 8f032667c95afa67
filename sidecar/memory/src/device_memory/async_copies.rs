//! Runs asynchronous copies: sends those that no operation blocks to their lanes, and ends or drops them.

use sluice_policy::action::{Fill, Work};
use sluice_policy::copy_priority::CopyPriority;
use sluice_policy::event::{Failure, Outcome};
use sluice_policy::ids::ActionId;

use super::DeviceMemory;
use super::copy_queue::{PendingDrop, WaitingCopy};
use super::layer_block_reservations::LayerBlockUse;
use super::operation_refs::{OperationRefs, all_distinct};
use crate::host_weights::Slab;
use crate::transfers::TransferOrder;

impl DeviceMemory {
    /// Submits a fill, fetch, spill or write-back.
    pub(super) fn submit_copy(&mut self, id: ActionId, rank: CopyPriority, work: Work) {
        let named = OperationRefs::of(&work);
        self.copy_queue.waiting.push(WaitingCopy {
            id,
            priority: rank,
            work,
            refs: named,
            serial_before: self.serial_queue.next_number(),
        });
        self.dispatch_copies();
    }

    /// Sends every copy that no operation blocks to its lane, in submission order.
    pub(super) fn dispatch_copies(&mut self) {
        let mut kept: Vec<WaitingCopy> = Vec::new();
        for parked in std::mem::take(&mut self.copy_queue.waiting) {
            let behind = kept.iter().any(|earlier| earlier.must_precede(&parked));
            if behind || self.serial_queue.depends_on(parked.serial_before, &parked.refs) {
                kept.push(parked);
            } else {
                self.dispatch(parked.id, parked.priority, parked.work);
            }
        }
        self.copy_queue.waiting = kept;
    }

    fn dispatch(&mut self, id: ActionId, rank: CopyPriority, work: Work) {
        let order = match work {
            Work::Fill(fill) => self.fill_order(fill),
            Work::Fetch(fetch) => self.fetch_order(fetch),
            Work::WriteBack(swaps) => self.write_back_order(&swaps),
            Work::Spill(spill) => self.spill_order(spill),
            other => unreachable!("{other:?} is not a copy that runs outside the serial queue"),
        };
        match order {
            Ok(order) => {
                if !matches!(order, TransferOrder::WriteBack(_)) {
                    self.copy_queue.in_flight.push(id);
                }
                self.transfers.submit(id, rank, order);
            }
            Err(failure) => self.fail(id, failure),
        }
    }

    /// Checks that the slab belongs to the model, and that its chunks exist, are as many as needed, are
    /// distinct, and have no pending KV copies.
    fn fill_order(&mut self, fill: Fill) -> Result<TransferOrder, Failure> {
        let bytes = match Slab::of(fill.target) {
            Slab::Global => Some(&self.geometry.global_bytes),
            Slab::Layer(layer) => self.geometry.slab_bytes.get(layer.index()),
        };
        let right_size = bytes.is_some_and(|&b| self.geometry.chunks_for(b) as usize == fill.chunks.len());
        let layers = usize::from(self.geometry.layers());
        let reader = fill.after.is_none_or(|(layer, _)| layer.index() < layers);
        let free = fill.chunks.iter().all(|c| self.pool.exists(*c) && !self.reservations.is_chunk_in_use(*c));
        if !right_size || !reader || !free || !all_distinct(&fill.chunks) {
            return Err(Failure::Refused);
        }
        self.table.begin_fill(&fill.chunks);
        Ok(TransferOrder::Fill(fill))
    }

    pub(super) fn on_copy_done(&mut self, id: ActionId, order: &TransferOrder, outcome: Outcome) {
        self.release_resources(order);
        self.count_bytes(order, outcome);
        self.complete(id, outcome);
        self.remove_in_flight(id);
        self.finish_drops();
    }

    fn release_resources(&mut self, order: &TransferOrder) {
        match order {
            TransferOrder::Fill(fill) => self.table.end_fill(&fill.chunks),
            TransferOrder::Fetch(_, copies) | TransferOrder::Spill(_, copies) => {
                self.reservations.end(copies, LayerBlockUse::Fetch)
            }
            TransferOrder::WriteBack(copies) => self.reservations.end(copies, LayerBlockUse::Read),
        }
    }

    fn count_bytes(&mut self, order: &TransferOrder, outcome: Outcome) {
        let Outcome::Done { bytes, .. } = outcome else { return };
        match order {
            TransferOrder::Fill(_) => {}
            TransferOrder::Fetch(..) => self.kv_copy_stats.fetched_bytes += bytes,
            TransferOrder::WriteBack(_) | TransferOrder::Spill(..) => {
                self.kv_copy_stats.written_back_bytes += bytes
            }
        }
    }

    fn remove_in_flight(&mut self, id: ActionId) {
        self.copy_queue.in_flight.retain(|fill| *fill != id);
        self.copy_queue.drops.iter_mut().for_each(|drop| drop.running.retain(|fill| *fill != id));
    }

    /// Drops all copies except write-backs that have not started. The drop itself completes with the last
    /// copy that had started.
    pub(super) fn drop_fills(&mut self, id: ActionId) {
        for (dropped, order) in self.transfers.drop_queued() {
            self.release_resources(&order);
            if let TransferOrder::Spill(_, copies) = &order {
                self.tier.cancel_write(copies);
            }
            self.remove_in_flight(dropped);
            self.fail(dropped, Failure::Dropped);
        }
        let parked = std::mem::take(&mut self.copy_queue.waiting);
        let (kept, dropped): (Vec<_>, Vec<_>) =
            parked.into_iter().partition(|parked| matches!(parked.work, Work::WriteBack(_)));
        self.copy_queue.waiting = kept;
        dropped.into_iter().for_each(|parked| self.fail(parked.id, Failure::Dropped));
        let running = self.copy_queue.in_flight.clone();
        self.copy_queue.drops.push(PendingDrop { id, running });
        self.finish_drops();
    }

    fn finish_drops(&mut self) {
        let drops = &mut self.copy_queue.drops;
        let ended: Vec<_> =
            drops.extract_if(.., |drop| drop.running.is_empty()).map(|drop| drop.id).collect();
        ended.into_iter().for_each(|id| self.complete(id, Outcome::Done { bytes: 0, duration_ns: 0 }));
    }
}
