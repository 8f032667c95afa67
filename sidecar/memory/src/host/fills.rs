//! Copies beside the serial queue between submission and their lane: parked while an earlier operation names something of
//! theirs.

use sluice_policy::action::{Fill, FillTarget, Work};
use sluice_policy::copy_priority::CopyPriority;
use sluice_policy::event::{Failure, Outcome};
use sluice_policy::ids::{ActionId, SlotId};

use super::HostMemory;
use super::claims::Use;
use super::serial::Named;
use crate::master::Slab;
use crate::transfers::Order;

/// Copies that wait for operations, fills and fetches in lanes, and drops that wait for these.
#[derive(Debug, Default)]
pub(super) struct Fills {
    parked: Vec<Parked>,
    in_lanes: Vec<ActionId>,
    drops: Vec<Drop>,
}

#[derive(Debug)]
struct Parked {
    id: ActionId,
    rank: CopyPriority,
    work: Work,
    named: Named,
    /// Operations submitted before it have lower numbers.
    before: u64,
}

#[derive(Debug)]
struct Drop {
    id: ActionId,
    running: Vec<ActionId>,
}

impl HostMemory {
    /// A fill, a fetch, a spill or a write-back.
    pub(super) fn order_copy(&mut self, id: ActionId, rank: CopyPriority, work: Work) {
        let named = Named::by(&work);
        self.fills.parked.push(Parked { id, rank, work, named, before: self.serial.next_number() });
        self.dispatch_copies();
    }

    /// Sends every copy to its lane that no operation holds back, in the order submitted.
    pub(super) fn dispatch_copies(&mut self) {
        let mut kept: Vec<Parked> = Vec::new();
        for parked in std::mem::take(&mut self.fills.parked) {
            let behind = kept.iter().any(|earlier| conflict(earlier, &parked));
            if behind || self.serial.names_before(parked.before, &parked.named) {
                kept.push(parked);
            } else {
                self.dispatch(parked.id, parked.rank, parked.work);
            }
        }
        self.fills.parked = kept;
    }

    fn dispatch(&mut self, id: ActionId, rank: CopyPriority, work: Work) {
        let order = match work {
            Work::Fill(fill) => self.fill_order(fill),
            Work::Fetch(fetch) => self.fetch_order(fetch),
            Work::WriteBack(swaps) => self.write_back_order(&swaps),
            Work::Spill(spill) => self.spill_order(spill),
            other => unreachable!("{other:?} is no copy beside the serial queue"),
        };
        match order {
            Ok(order) => {
                if !matches!(order, Order::WriteBack(_)) {
                    self.fills.in_lanes.push(id);
                }
                self.transfers.submit(id, rank, order);
            }
            Err(failure) => self.fail(id, failure),
        }
    }

    /// The slab is one of the model, its chunks exist, are as many as it takes, and each once; no KV of theirs is copied.
    fn fill_order(&mut self, fill: Fill) -> Result<Order, Failure> {
        let bytes = match Slab::of(fill.target) {
            Slab::Global => Some(&self.geometry.global_bytes),
            Slab::Layer(layer) => self.geometry.slab_bytes.get(layer.index()),
        };
        let right_size = bytes.is_some_and(|&b| self.geometry.chunks_for(b) as usize == fill.chunks.len());
        let layers = usize::from(self.geometry.layers());
        let reader = fill.after.is_none_or(|(layer, _)| layer.index() < layers);
        let free = fill.chunks.iter().all(|c| self.pool.exists(*c) && !self.claims.hold(*c));
        if !right_size || !reader || !free || !distinct(&fill.chunks) {
            return Err(Failure::Refused);
        }
        self.table.fill_begins(&fill.chunks);
        Ok(Order::Fill(fill))
    }

    pub(super) fn copied(&mut self, id: ActionId, order: &Order, outcome: Outcome) {
        self.let_go(order);
        self.count(order, outcome);
        self.end(id, outcome);
        self.left_lane(id);
        self.finish_drops();
    }

    fn let_go(&mut self, order: &Order) {
        match order {
            Order::Fill(fill) => self.table.fill_ends(&fill.chunks),
            Order::Fetch(_, copies) | Order::Spill(_, copies) => self.claims.end(copies, Use::Fetch),
            Order::WriteBack(copies) => self.claims.end(copies, Use::Read),
        }
    }

    fn count(&mut self, order: &Order, outcome: Outcome) {
        let Outcome::Done { bytes, .. } = outcome else { return };
        match order {
            Order::Fill(_) => {}
            Order::Fetch(..) => self.kv_copied.fetched_bytes += bytes,
            Order::WriteBack(_) | Order::Spill(..) => self.kv_copied.written_back_bytes += bytes,
        }
    }

    fn left_lane(&mut self, id: ActionId) {
        self.fills.in_lanes.retain(|fill| *fill != id);
        self.fills.drops.iter_mut().for_each(|drop| drop.running.retain(|fill| *fill != id));
    }

    /// Ends what has not started, write-backs left alone; the drop itself ends with the last one that had.
    pub(super) fn drop_fills(&mut self, id: ActionId) {
        for (dropped, order) in self.transfers.drop_queued() {
            self.let_go(&order);
            if let Order::Spill(_, copies) = &order {
                self.tier.break_promise(copies);
            }
            self.left_lane(dropped);
            self.fail(dropped, Failure::Dropped);
        }
        let parked = std::mem::take(&mut self.fills.parked);
        let (kept, dropped): (Vec<_>, Vec<_>) =
            parked.into_iter().partition(|parked| matches!(parked.work, Work::WriteBack(_)));
        self.fills.parked = kept;
        dropped.into_iter().for_each(|parked| self.fail(parked.id, Failure::Dropped));
        let running = self.fills.in_lanes.clone();
        self.fills.drops.push(Drop { id, running });
        self.finish_drops();
    }

    fn finish_drops(&mut self) {
        let drops = &mut self.fills.drops;
        let ended: Vec<_> =
            drops.extract_if(.., |drop| drop.running.is_empty()).map(|drop| drop.id).collect();
        ended.into_iter().for_each(|id| self.end(id, Outcome::Done { bytes: 0, duration_ns: 0 }));
    }
}

/// Whether two copies have to keep their order.
fn conflict(earlier: &Parked, later: &Parked) -> bool {
    same_lane(&earlier.work, &later.work) || earlier.named.meets(&later.named)
}

fn same_lane(a: &Work, b: &Work) -> bool {
    match (a, b) {
        (Work::Fill(a), Work::Fill(b)) => slot(a.target).is_some() && slot(a.target) == slot(b.target),
        (Work::Fetch(a), Work::Fetch(b)) => a.buffer == b.buffer || a.layer == b.layer,
        (Work::Fetch(a), Work::Spill(b)) | (Work::Spill(b), Work::Fetch(a)) => a.buffer == b.buffer,
        (Work::Spill(a), Work::Spill(b)) => a.buffer == b.buffer,
        (Work::WriteBack(_), Work::WriteBack(_)) => true,
        _ => false,
    }
}

fn slot(target: FillTarget) -> Option<SlotId> {
    match target {
        FillTarget::Slot(slot, _) => Some(slot),
        FillTarget::Global | FillTarget::Resident(_) => None,
    }
}

/// Whether nothing is named twice.
pub(super) fn distinct<T: Ord>(all: impl IntoIterator<Item = T>) -> bool {
    let mut sorted: Vec<T> = all.into_iter().collect();
    sorted.sort_unstable();
    sorted.is_sorted_by(|a, b| a < b)
}
