//! Orders the copies of weights that are due, handles their ends, and records in the chunk table what they wrote.

use alloc::vec::Vec;

use super::{Placement, Weights};
use crate::action::{Action, Fill, FillTarget, Work};
use crate::chunk_table::{Owner, State};
use crate::chunks::Chunks;
use crate::cost::StepStats;
use crate::event::{Failure, Outcome};
use crate::ids::{Generation, LayerId, Nanos, SlotId};
use crate::orders::Orders;
use crate::orders::pending::Pending;
use crate::reason::Reason;
use crate::slots::{DueCopy, Generations};
use crate::step_model::{Layout, MAX_BETA};

/// Copies failed too often in a row: this holder cannot be filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FillFailed(pub FillTarget);

/// The owner of the chunks that a copy writes.
pub fn owner_of(target: FillTarget) -> Owner {
    match target {
        FillTarget::Global => Owner::WeightsGlobal,
        FillTarget::Resident(layer) => Owner::WeightsLayer(layer),
        FillTarget::Slot(slot, _) => Owner::Slot(slot),
    }
}

/// The parts that copies of weights concern. Nothing else changes by them.
#[derive(Debug)]
pub struct WeightCopies<'a> {
    /// Contents of the holders.
    pub weights: &'a mut Weights,
    /// Where their generations come from.
    pub generations: &'a mut Generations,
    /// The chunks that they write.
    pub chunks: &'a mut Chunks,
    /// What is ordered and counted.
    pub orders: &'a mut Orders,
    /// Measured times: deadlines follow from them, and ends of copies extend them.
    pub step_stats: &'a mut StepStats,
    /// The tenant has loaded: copies follow from a change of layout or from moving layers.
    pub loaded: bool,
    /// The tenant has failed: nothing more is copied.
    pub failed: bool,
}

impl WeightCopies<'_> {
    /// Orders every due copy: own chunks first, front layers first.
    pub fn order_due(&mut self, out: &mut Vec<Action>) {
        if self.orders.pending().fills_blocked() || self.failed {
            return;
        }
        let reason = if self.loaded { self.weights.load_reason() } else { Reason::Load };
        let due = self.weights.due();
        if !due.is_empty() {
            let timetable = self.orders.timetable(self.step_stats);
            for (target, generation) in due {
                // A step reads embeddings before all layers.
                let layer = target.layer().unwrap_or(LayerId(0));
                self.order(target, (generation, None), timetable.layer(layer, false), reason, out);
            }
        }
        self.weights.extend_early(self.generations);
        self.order_due_slots(out);
    }

    /// Orders the due copies into slots.
    pub fn order_due_slots(&mut self, out: &mut Vec<Action>) {
        let reason = if self.loaded { Reason::Stream } else { Reason::Load };
        let due = self.weights.take_due_slots();
        if due.is_empty() {
            return;
        }
        let timetable = self.orders.timetable(self.step_stats);
        for DueCopy { instance, after, early } in due {
            let target = FillTarget::Slot(instance.slot, instance.layer);
            let needed = timetable.layer(instance.layer, early);
            self.order(target, (instance.generation, after), needed, reason, out);
        }
    }

    fn order(
        &mut self,
        target: FillTarget,
        (generation, after): (Generation, Option<(LayerId, Generation)>),
        needed: Nanos,
        reason: Reason,
        out: &mut Vec<Action>,
    ) {
        let chunks = match target {
            FillTarget::Global => self.chunks.ownership().global.clone(),
            FillTarget::Resident(layer) | FillTarget::Slot(_, layer) => {
                self.chunks.ownership().layer_chunks(layer).to_vec()
            }
        };
        self.weights.on_ordered(target);
        let work = Work::Fill(Fill { target, generation, after, chunks });
        self.orders.order_by(Some(needed), work, reason, Pending::Fill { target, generation }, out);
        self.record(target);
    }

    /// Handles the end of a copy. An error if copies have failed too often in a row.
    pub fn on_filled(
        &mut self,
        target: FillTarget,
        generation: Generation,
        outcome: Outcome,
        out: &mut Vec<Action>,
    ) -> Result<(), FillFailed> {
        match outcome {
            Outcome::Done { bytes, duration_ns } => {
                self.step_stats.copied(bytes, duration_ns);
                self.weights.on_filled(target, generation);
                self.record(target);
                Ok(())
            }
            Outcome::Failed(failure) => self.on_failed(target, generation, failure, out),
        }
    }

    fn on_failed(
        &mut self,
        target: FillTarget,
        generation: Generation,
        failure: Failure,
        out: &mut Vec<Action>,
    ) -> Result<(), FillFailed> {
        let clean = failure == Failure::Dropped;
        let step_runs = self.orders.step().is_running();
        self.weights.on_incomplete(target, generation, (clean, step_runs), self.generations);
        self.record(target);
        if self.orders.pending().dropping() && clean {
            // The memory manager dropped it, and orders due copies again when the drop has ended.
            return Ok(());
        }
        self.orders.count(Reason::BackendFailed);
        if !self.weights.can_retry() {
            return Err(FillFailed(target));
        }
        if self.weights.has_copies_behind(target, generation) {
            self.orders.drop_copies(Reason::BackendFailed, out);
        } else {
            self.order_due(out);
        }
        Ok(())
    }

    /// Puts a layout in force: layers and slots that lost their contents are loaded. A slot made of its first layer's
    /// chunks has contents, so the copies of the others are ordered when a step begins.
    pub fn place(&mut self, layout: Layout, preserved: Vec<(LayerId, Generation)>, reason: Reason) {
        let ownership = self.chunks.ownership();
        let layers = ownership.layers.len() as u16;
        let placement = Placement {
            layout,
            has_global: !ownership.global.is_empty(),
            locations: (0..layers).map(|l| ownership.location(LayerId(l))).collect(),
            preserved,
            reason,
        };
        self.weights.place(placement, self.generations);
        self.record(FillTarget::Global);
        for l in 0..layers {
            self.record(FillTarget::Resident(LayerId(l)));
        }
        self.record_slots();
    }

    /// Records in the chunk table what the slots contain.
    pub fn record_slots(&mut self) {
        for slot in (0..MAX_BETA).map(SlotId) {
            if slot.0 < self.weights.layout().beta {
                self.record(FillTarget::Slot(slot, LayerId(0)));
            } else {
                self.chunks.set_contents(Owner::Slot(slot), State::Idle);
            }
        }
    }

    /// Records in the chunk table what a holder contains.
    fn record(&mut self, target: FillTarget) {
        self.chunks.set_contents(owner_of(target), self.weights.state(target));
    }
}

#[cfg(test)]
mod tests {
    use super::super::FILL_RETRIES;
    use super::*;
    use crate::chunks::tests::{geometry, loaded};
    use crate::params::Params;

    /// Four layers whose chunks exist, and no copy yet.
    struct Tenant {
        weights: Weights,
        generations: Generations,
        chunks: Chunks,
        orders: Orders,
        step_stats: StepStats,
        out: Vec<Action>,
    }

    impl Tenant {
        fn new() -> Tenant {
            Tenant {
                weights: Weights::new(4),
                generations: Generations::default(),
                chunks: loaded(),
                orders: Orders::new(true),
                step_stats: StepStats::new(&Params::default(), &geometry().slab_bytes),
                out: Vec::new(),
            }
        }

        fn copies(&mut self, failed: bool) -> (WeightCopies<'_>, &mut Vec<Action>) {
            let copies = WeightCopies {
                weights: &mut self.weights,
                generations: &mut self.generations,
                chunks: &mut self.chunks,
                orders: &mut self.orders,
                step_stats: &mut self.step_stats,
                loaded: false,
                failed,
            };
            (copies, &mut self.out)
        }

        fn order_due(&mut self, failed: bool) -> Vec<FillTarget> {
            let (mut copies, out) = self.copies(failed);
            copies.place(Layout::resident(), Vec::new(), Reason::Load);
            copies.order_due(out);
            out.iter().filter_map(|action| fill_of(action).map(|fill| fill.target)).collect()
        }

        fn end(&mut self, at: usize, outcome: Outcome) -> Result<(), FillFailed> {
            let Fill { target, generation, .. } = *fill_of(&self.out[at]).expect("a copy of weights");
            self.orders.take(self.out[at].id);
            let (mut copies, out) = self.copies(false);
            copies.on_filled(target, generation, outcome, out)
        }
    }

    fn fill_of(action: &Action) -> Option<&Fill> {
        if let Work::Fill(fill) = &action.work { Some(fill) } else { None }
    }

    #[test]
    fn embeddings_load_first_and_chunk_table_knows_what_loads() {
        let mut tenant = Tenant::new();
        let layers = (0..4).map(|l| FillTarget::Resident(LayerId(l)));
        let expected: Vec<_> = core::iter::once(FillTarget::Global).chain(layers).collect();
        assert_eq!(tenant.order_due(false), expected);
        let contents = |tenant: &Tenant| tenant.chunks.table().contents(Owner::WeightsGlobal);
        assert!(matches!(contents(&tenant), State::Filling(_)));
        assert_eq!(tenant.end(0, Outcome::Done { bytes: 128, duration_ns: 10 }), Ok(()));
        assert!(matches!(contents(&tenant), State::Filled(_)));
    }

    #[test]
    fn failed_tenant_copies_nothing() {
        assert_eq!(Tenant::new().order_due(true), []);
    }

    #[test]
    fn failed_copy_is_ordered_again_until_the_bound() {
        let mut tenant = Tenant::new();
        tenant.order_due(false);
        for layer in 1..=4 {
            assert_eq!(tenant.end(layer, Outcome::Done { bytes: 128, duration_ns: 10 }), Ok(()));
        }
        let mut ends = Vec::new();
        for round in 0..=FILL_RETRIES {
            // The first order of the embeddings is the oldest; each failure orders them again, as the newest.
            let at = if round == 0 { 0 } else { tenant.out.len() - 1 };
            ends.push(tenant.end(at, Outcome::Failed(Failure::CopyFailed)));
        }
        let last = ends.pop();
        assert_eq!(last, Some(Err(FillFailed(FillTarget::Global))));
        assert!(ends.iter().all(Result::is_ok), "{ends:?}");
        assert_eq!(
            tenant.orders.counters().decisions()[Reason::BackendFailed as usize],
            u64::from(FILL_RETRIES) + 1
        );
    }
}
