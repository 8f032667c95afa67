//! Fetches of KV for each step, and what follows if they fail.

use alloc::vec::Vec;

use super::fetch_failures::AfterFailure;
use super::offloading::Offloading;
use crate::action::{Action, Fetch, Spill, Work};
use crate::copy_priority::CopyDeadlines;
use crate::event::{Failure, Outcome};
use crate::ids::{Generation, LayerId, SlotId};
use crate::orders::pending::Pending;
use crate::reason::Reason;
use crate::slots::DueCopy;
use crate::step_model::Layout;

/// Fetches into a layer's buffer failed every time: the tenant cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchesFailed {
    /// Layer of the last one.
    pub layer: LayerId,
}

impl Offloading<'_> {
    /// A step begins: orders its fetches.
    pub fn begin_fetches(&mut self, out: &mut Vec<Action>) {
        // The last step of a prompt would fetch early for no reader.
        let prompts = self.offload.prompts_in_force().is_some() || self.kv.layer_offload().places_prefills();
        let still = prompts
            || self.kv.layer_offload().writes_to_buffers()
            || self.offload.plans.skips_early_fetches();
        let early = self.offload.due.is_none() && !self.kv.layer_offload().is_fetching_disabled() && !still;
        let due = self.kv.begin_fetches(early, self.generations);
        self.order_fetches(due, out);
    }

    /// Orders fetches again that were dropped or failed.
    pub fn reorder_fetches(&mut self, out: &mut Vec<Action>) {
        if !self.orders.pending().dropping() && !self.has_failed {
            let due = self.kv.due_fetches();
            self.order_fetches(due, out);
        }
    }

    /// Orders the reads and writes of a buffer in the order in which the step uses it.
    fn order_fetches(&mut self, due: Vec<DueCopy>, out: &mut Vec<Action>) {
        let (holdings, per) = (self.chunks.ownership(), self.sizes.layer_blocks_per_chunk);
        let mut spills =
            self.kv.take_due_spills(|layer_block| holdings.chunk_of(layer_block, per)).into_iter().peekable();
        if due.is_empty() && spills.len() == 0 {
            return;
        }
        let timetable = self.orders.timetable(self.step_stats);
        out.reserve(due.len() + spills.len());
        for due in due {
            let layer = due.instance.layer;
            while let Some(spill) = spills.next_if(|(_, spill)| spill.layer < layer) {
                self.order_spill(spill, &timetable, out);
            }
            self.order_fetch(due, &timetable, out);
        }
        spills.for_each(|spill| self.order_spill(spill, &timetable, out));
    }

    /// The next layer that the step writes into the buffer waits for it.
    fn order_spill(
        &mut self,
        (name, spill): (Generation, Spill),
        timetable: &CopyDeadlines,
        out: &mut Vec<Action>,
    ) {
        let Layout { moving, beta } = &self.kv.layer_offload().placement().layout;
        let this = moving.binary_search(&spill.layer).unwrap_or_else(|at| at);
        let next = moving.get(this + usize::from(*beta)).copied().unwrap_or(LayerId(u16::MAX));
        let due = Some(timetable.layer(next, false));
        self.orders.order_by(due, Work::Spill(spill), Reason::WriteBack, Pending::Spill(name), out);
    }

    fn order_fetch(&mut self, due: DueCopy, timetable: &CopyDeadlines, out: &mut Vec<Action>) {
        let (holdings, per) = (self.chunks.ownership(), self.sizes.layer_blocks_per_chunk);
        let layer_blocks =
            self.kv.fetch_layer_blocks(&due, |layer_block| holdings.chunk_of(layer_block, per));
        let DueCopy { instance, after, early } = due;
        let (layer, generation) = (instance.layer, instance.generation);
        let copies = layer_blocks.copies();
        let fetch = Fetch { layer, buffer: instance.slot.0, generation, after, layer_blocks };
        let effect = Pending::Fetch { layer, buffer: instance.slot, generation, copies };
        let needed = Some(timetable.layer(layer, early));
        self.orders.order_by(needed, Work::Fetch(fetch), Reason::Fetch, effect, out);
    }

    /// Handles the end of a fetch.
    ///
    /// # Errors
    /// If fetches failed every time.
    pub fn on_fetched(
        &mut self,
        place: (LayerId, SlotId),
        (generation, copies): (Generation, bool),
        outcome: Outcome,
        out: &mut Vec<Action>,
    ) -> Result<(), FetchesFailed> {
        let end = match outcome {
            Outcome::Done { bytes, duration_ns } => {
                self.step_stats.timed(bytes, duration_ns);
                self.offload.record_fetch(bytes, duration_ns);
                self.offload.fetch_failures.on_done(copies);
                Ok(())
            }
            Outcome::Failed(failure) => Err(failure == Failure::Dropped),
        };
        self.kv.fetched(place, generation, end, self.orders.step().is_running(), self.generations);
        let Err(clean) = end else { return Ok(()) };
        if self.orders.pending().dropping() && clean {
            return Ok(());
        }
        self.orders.count(Reason::BackendFailed);
        let after = self.offload.fetch_failures.on_failed(copies);
        if after == AfterFailure::GiveUp {
            self.abort_fetches();
        }
        if after == AfterFailure::Fail {
            return Err(FetchesFailed { layer: place.0 });
        }
        if self.kv.layer_offload().fetches_behind(place.1, generation) {
            self.orders.drop_copies(Reason::BackendFailed, out);
        } else {
            self.reorder_fetches(out);
        }
        Ok(())
    }

    /// The step under way continues without the KV that cannot be fetched; its requests are lost, and nothing is
    /// offloaded afterwards.
    fn abort_fetches(&mut self) {
        let lost = self.kv.abort_fetches();
        self.orders.count_many(Reason::SwapLost, lost);
        self.offload.forget_plan();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::RequestId;
    use crate::kv::layer_offload::Placement;
    use crate::offload::offloading::tests::Parts;
    use crate::reclaim::PolicyName;

    /// A running request whose KV block is in the host tier, with two of its layers in a buffer.
    fn offloaded() -> Parts {
        let mut parts = Parts::new(PolicyName::OrbitFlow);
        parts.run(RequestId(1), 1);
        let layout = Layout { moving: [0, 1].map(LayerId).to_vec(), beta: 1 };
        let Offloading { kv, generations, .. } = parts.parts();
        kv.place(Placement::uniform(layout, [RequestId(1)].into_iter()));
        for _ in 0..2 {
            let written = kv.plan_write_back(u32::MAX, (false, true), &Parts::no_admissions(), generations);
            kv.finish_write_back(&written, true);
        }
        kv.evict_staged();
        assert_eq!(kv.layer_offload().slot_counts(), (1, 0));
        parts
    }

    #[test]
    fn step_orders_the_first_fetches_of_the_next_one_unless_an_admission_waits_for_fetches() {
        let fetched = |skips| {
            let (mut parts, mut out) = (offloaded(), Vec::new());
            parts.offload.note_admission(Some(Some(RequestId(2))), Some(skips));
            parts.parts().begin_fetches(&mut out);
            let layer = |action: &Action| match &action.work {
                Work::Fetch(fetch) => fetch.layer.0,
                other => panic!("only fetches are due: {other:?}"),
            };
            out.iter().map(layer).collect::<Vec<_>>()
        };
        assert_eq!(fetched(false), [0, 1, 0]);
        assert_eq!(fetched(true), [0, 1]);
    }
}
