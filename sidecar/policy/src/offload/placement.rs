//! Decides which layers of which requests' KV are offloaded while they run, and carries it out at step boundaries.
//!
//! | policy | offloaded | when |
//! |---|---|---|
//! | `Ellm` | all layers, of prompts admitted without space ([`ellm`]) | during their prefill |
//! | `FlexGen` | a fixed share of the layers, of every request ([`flexgen`]) | always |
//! | `Pie` | the same layers of every request, as many as hide and help ([`pie`]) | KV is short |
//! | `OrbitFlow`, `Unified` if own layers may not move | planned layers of each request ([`orbitflow`]) | KV is short |
//!
//! Positions are fixed while a placement holds, as those of moving weight layers are: F layers that pass through two
//! buffers free F - 2 (Pie). Full blocks never change, so a swap writes nothing that was written before.

use alloc::vec::Vec;

mod ellm;
mod flexgen;
mod orbitflow;
mod pie;

use super::offloading::Offloading;
use super::view::OffloadView;
use crate::action::Action;
use crate::cost::StepTimes;
use crate::ids::RequestId;
use crate::kv::admissions::AdmissionEffects;
use crate::kv::layer_offload::Placement;
use crate::placement_planner::steps::StepTime;
use crate::reason::Reason;
use crate::reclaim::PlacementRule;
use crate::step_model::Layout;
use orbitflow::PlanDecision;

/// What is decided about the placement at a boundary.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PlacementDecision {
    /// No KV can be offloaded.
    Keep,
    /// This placement is due; `None`: the one in force stays.
    Due(Option<Placement>),
    /// The placement in force stays, and these requests take part in it.
    Extend(Vec<RequestId>),
    /// A plan decides.
    Plan(PlanDecision),
}

impl OffloadView<'_> {
    /// Decides the placement at this boundary.
    fn choose_placement(&self) -> PlacementDecision {
        if !self.offload.can_move_layers() {
            return PlacementDecision::Keep;
        }
        match self.offload.rule() {
            PlacementRule::Device => self.same_of_all(Layout::resident()),
            PlacementRule::FixedShare => self.same_of_all(flexgen::layout(self)),
            PlacementRule::Uniform => self.same_of_all(pie::layout(self)),
            PlacementRule::Prefills => PlacementDecision::Due(ellm::due_placement(self)),
            PlacementRule::PerRequest => PlacementDecision::Plan(orbitflow::decide(self)),
        }
    }

    /// All requests offload the layers of `layout`.
    fn same_of_all(&self, layout: Layout) -> PlacementDecision {
        let now = self.kv.layer_offload().placement();
        if now.layout != layout {
            let some = !layout.moving.is_empty();
            let placement = some.then(|| Placement::uniform(layout, self.kv.requests().running()));
            return PlacementDecision::Due(Some(placement.unwrap_or_default()));
        }
        if layout.moving.is_empty() {
            return PlacementDecision::Due(None);
        }
        let new = self.kv.requests().running().filter(|request| !now.of.contains_key(request));
        PlacementDecision::Extend(new.collect())
    }
}

impl Offloading<'_> {
    /// Takes the placement one boundary further.
    pub fn place_kv(&mut self, out: &mut Vec<Action>) {
        if self.kv.layer_offload().is_fetching_disabled() {
            if self.kv.layer_offload().fetches() == 0 {
                self.kv.place(Placement::default());
            }
            return;
        }
        self.note_placement();
        self.take_placement();
        if self.view().is_placed() {
            let (staged, holes) = self.kv.layer_offload().slot_counts();
            if staged == 0 && holes > 0 && self.view().can_compact_staging() {
                self.compact_staging();
            }
            self.kv.evict_staged();
        }
        self.write_back(None, &AdmissionEffects::default(), out);
    }

    /// Notes what is decided about the placement.
    fn note_placement(&mut self) {
        match self.view().choose_placement() {
            PlacementDecision::Keep => {}
            PlacementDecision::Due(placement) => self.offload.due = placement,
            PlacementDecision::Extend(requests) => {
                self.offload.due = None;
                requests.into_iter().for_each(|request| self.kv.register(request, 0));
            }
            PlacementDecision::Plan(decision) => self.follow_plan(decision),
        }
    }

    /// Puts the due placement in force, if no copy into a buffer is under way.
    fn take_placement(&mut self) {
        if self.kv.layer_offload().fetches() > 0 {
            return;
        }
        if let Some(placement) = self.offload.due.take() {
            self.orders.count(Reason::Place);
            self.kv.place(placement);
        }
    }

    /// Feeds the duration of a step to what places KV.
    pub fn observe_step(&mut self, times: &StepTimes) {
        let busy_ns = self.offload.take_fetched_ns().min(times.total_ns);
        if !times.decode_only {
            return;
        }
        let stall_ns = times.kv_stall_ns.iter().fold(0, |all: u64, one| all.saturating_add(*one));
        self.record_kv_read(times);
        self.check_plan(StepTime { total_ns: times.total_ns, stall_ns });
        self.observe_expansion(times, stall_ns, busy_ns);
    }

    /// Nothing is offloaded any more: KV that the device lacks is loaded, or stays in the host tier as a whole.
    pub fn restore_all(&mut self) {
        self.offload.forget_plan();
        if self.view().is_placed() {
            self.kv.place(Placement::default());
        }
        self.kv.drop_host_copies();
    }

    /// Compacts the staging slots: buffers keep blocks for slots without a request, and freeing them costs the early
    /// fetches.
    ///
    /// # Panics
    /// If a fetch is under way: ask [`OffloadView::can_compact_staging`] before.
    pub fn compact_staging(&mut self) {
        let placement = self.kv.layer_offload().placement().clone();
        self.kv.place(placement);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::LayerId;
    use crate::offload::offloading::tests::Parts;
    use crate::params::Params;
    use crate::reclaim::PolicyName;

    const ONE: RequestId = RequestId(1);

    fn decide(parts: &mut Parts) -> PlacementDecision {
        parts.parts().view().choose_placement()
    }

    #[test]
    fn without_host_tier_nothing_is_decided() {
        let params = Params { policy: PolicyName::FlexGen, ..Params::default() };
        assert_eq!(decide(&mut Parts::with(params)), PlacementDecision::Keep);
    }

    #[test]
    fn recompute_keeps_all_kv_on_the_device() {
        assert_eq!(decide(&mut Parts::new(PolicyName::Recompute)), PlacementDecision::Due(None));
    }

    #[test]
    fn flexgen_offloads_half_of_the_layers_of_every_request() {
        let mut parts = Parts::new(PolicyName::FlexGen);
        parts.run(ONE, 1);
        let PlacementDecision::Due(Some(placement)) = decide(&mut parts) else {
            panic!("a placement is due")
        };
        assert_eq!((placement.layout.moving.len(), placement.layout.beta), (2, 1));
        assert_eq!(placement.of.keys().copied().collect::<Vec<_>>(), [ONE]);
        parts.parts().place_kv(&mut Vec::new());
        assert_eq!(parts.kv.layer_offload().placement(), &placement);
        assert_eq!(decide(&mut parts), PlacementDecision::Extend(Vec::new()));
        parts.run(RequestId(2), 1);
        assert_eq!(decide(&mut parts), PlacementDecision::Extend(alloc::vec![RequestId(2)]));
        assert_eq!(parts.orders.counters().decisions()[Reason::Place as usize], 1);
    }

    #[test]
    fn pie_offloads_nothing_before_its_controller_allows_it() {
        let mut parts = Parts::new(PolicyName::Pie);
        (1..=2).for_each(|id| parts.run(RequestId(id), 1));
        assert!(parts.parts().view().kv_is_short());
        assert_eq!(decide(&mut parts), PlacementDecision::Due(None));
    }

    #[test]
    fn ellm_places_all_layers_while_a_prompt_is_offloaded() {
        let mut parts = Parts::new(PolicyName::Ellm);
        parts.run(ONE, 0);
        parts.parts().place_prefills();
        parts.kv.start_prefill_spill(ONE, 3);
        let all: Vec<_> = (0..4).map(LayerId).collect();
        assert_eq!(parts.kv.layer_offload().placement().layout, Layout { moving: all, beta: 2 });
        assert_eq!(decide(&mut parts), PlacementDecision::Due(None));
        parts.kv.close(ONE);
        assert_eq!(decide(&mut parts), PlacementDecision::Due(Some(Placement::default())));
    }

    #[test]
    fn orbitflow_watches_its_plan_while_a_request_waits() {
        let mut parts = Parts::new(PolicyName::OrbitFlow);
        assert_eq!(decide(&mut parts), PlacementDecision::Plan(PlanDecision::Forget));
        parts.offload.note_admission(Some(Some(ONE)), None);
        assert_eq!(decide(&mut parts), PlacementDecision::Plan(PlanDecision::Watch(None)));
        let request = parts.parts().ask_plan(&Default::default());
        parts
            .offload
            .on_planned(crate::placement_planner::request::PlanAnswer { id: request.id, result: None });
        assert_eq!(decide(&mut parts), PlacementDecision::Plan(PlanDecision::Adopt));
    }

    #[test]
    fn due_placement_waits_for_the_end_of_fetches() {
        let mut parts = Parts::new(PolicyName::FlexGen);
        parts.run(ONE, 1);
        parts.parts().note_placement();
        assert!(parts.offload.due.is_some() && !parts.parts().view().are_buffers_idle());
        parts.parts().take_placement();
        assert!(parts.offload.due.is_none() && parts.parts().view().is_placed());
    }
}
