//! Fills between submission and their lane: parked while an earlier operation names one of their chunks.

use sluice_policy::action::{Fill, FillTarget};
use sluice_policy::event::{Failure, Outcome};
use sluice_policy::ids::{ActionId, ChunkId, SlotId};

use super::HostMemory;
use crate::master::Slab;

/// Fills that wait for operations, those in lanes, and drops that wait for these.
#[derive(Debug, Default)]
pub(super) struct Fills {
    parked: Vec<Parked>,
    in_lanes: Vec<ActionId>,
    drops: Vec<Drop>,
}

#[derive(Debug)]
struct Parked {
    id: ActionId,
    fill: Fill,
    /// Operations submitted before it have lower numbers.
    before: u64,
}

#[derive(Debug)]
struct Drop {
    id: ActionId,
    running: Vec<ActionId>,
}

impl HostMemory {
    pub(super) fn order_fill(&mut self, id: ActionId, fill: Fill) {
        self.fills.parked.push(Parked { id, fill, before: self.serial.next_number() });
        self.dispatch_fills();
    }

    /// Sends every fill to its lane that no operation holds back, in the order submitted.
    pub(super) fn dispatch_fills(&mut self) {
        let mut kept: Vec<Parked> = Vec::new();
        for parked in std::mem::take(&mut self.fills.parked) {
            let behind = kept.iter().any(|earlier| conflict(&earlier.fill, &parked.fill));
            if behind || self.serial.names_before(parked.before, &parked.fill.chunks) {
                kept.push(parked);
            } else {
                self.dispatch(parked.id, parked.fill);
            }
        }
        self.fills.parked = kept;
    }

    fn dispatch(&mut self, id: ActionId, fill: Fill) {
        if !self.fill_fits(&fill) {
            self.fail(id, Failure::Refused);
            return;
        }
        self.table.fill_begins(&fill.chunks);
        self.fills.in_lanes.push(id);
        self.transfers.submit(id, fill);
    }

    /// The slab is one of the model, its chunks exist, are as many as it takes, and each once.
    fn fill_fits(&self, fill: &Fill) -> bool {
        let bytes = match Slab::of(fill.target) {
            Slab::Global => Some(&self.geometry.global_bytes),
            Slab::Layer(layer) => self.geometry.slab_bytes.get(layer.index()),
        };
        let right_size = bytes.is_some_and(|&b| self.geometry.chunks_for(b) as usize == fill.chunks.len());
        let layers = usize::from(self.geometry.layers());
        let reader = fill.after.is_none_or(|(layer, _)| layer.index() < layers);
        right_size && reader && distinct(&fill.chunks) && fill.chunks.iter().all(|c| self.pool.exists(*c))
    }

    pub(super) fn filled(&mut self, id: ActionId, chunks: &[ChunkId], outcome: Outcome) {
        self.table.fill_ends(chunks);
        self.end(id, outcome);
        self.left_lane(id);
        self.finish_drops();
    }

    fn left_lane(&mut self, id: ActionId) {
        self.fills.in_lanes.retain(|fill| *fill != id);
        self.fills.drops.iter_mut().for_each(|drop| drop.running.retain(|fill| *fill != id));
    }

    /// Ends what has not started; the drop itself ends with the last fill that had.
    pub(super) fn drop_fills(&mut self, id: ActionId) {
        for (fill, chunks) in self.transfers.drop_queued() {
            self.table.fill_ends(&chunks);
            self.left_lane(fill);
            self.fail(fill, Failure::Dropped);
        }
        for parked in std::mem::take(&mut self.fills.parked) {
            self.fail(parked.id, Failure::Dropped);
        }
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

/// Whether two fills have to keep their order.
fn conflict(earlier: &Fill, later: &Fill) -> bool {
    let same_slot = slot(earlier.target).is_some() && slot(earlier.target) == slot(later.target);
    same_slot || earlier.chunks.iter().any(|chunk| later.chunks.contains(chunk))
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
