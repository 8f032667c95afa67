//! `Unified` chooses the reclaim option with the lowest cost per byte: stalls of own layers, a pause or a preemption.
//! Without cost comparison it uses a fixed order.

use std::sync::Arc;

use sluice_policy::ids::RequestId;
use sluice_policy::params::Slo;
use sluice_policy::reason::Reason;
use sluice_policy::reclaim::PolicyName;
use sluice_ports::sampling::Sampling;
use sluice_scheduler::Request;
use sluice_sim::Simulation;
use sluice_sim::simulation::Setup;

use crate::support::{LIMIT, assert_same, expected, setup};

const MS: u64 = 1_000_000;
const LAYERS: u16 = 8;
/// A step takes less than a millisecond.
const SLO: Slo = Slo { ttft_ns: 1000 * MS, tbt_ns: 20 * MS, allowed_miss_permille: 10 };
/// The copy of a layer takes five times its compute: no copy is hidden, and each remapped layer adds half to a step.
const R5: u64 = 520_000_000;
/// The copy of a layer takes seventy times its compute.
const R70: u64 = 37_000_000;

/// Requests that all fit on arrival, but no longer before they end: a request waits only because of the reclaim.
struct Case {
    link_bytes_per_second: u64,
    out_bytes_per_second: u64,
    slo: Slo,
    host_kv_blocks: u64,
    paced: bool,
    by_loss: bool,
    /// Number of such loads, one after the other.
    times: u64,
}

/// Fast offload, no host tier, no buffered tokens.
const CASE: Case = Case {
    link_bytes_per_second: R5,
    out_bytes_per_second: 16_000_000_000,
    slo: SLO,
    host_kv_blocks: 0,
    paced: false,
    by_loss: true,
    times: 1,
};

/// The options used: stalled layers, pauses, preemptions.
#[derive(Debug, PartialEq, Eq)]
struct ReclaimsUsed {
    layers: bool,
    pauses: bool,
    preemptions: bool,
}

const LAYERS_ONLY: ReclaimsUsed = ReclaimsUsed { layers: true, pauses: false, preemptions: false };
const PAUSES_ONLY: ReclaimsUsed = ReclaimsUsed { layers: false, pauses: true, preemptions: false };
const PREEMPTIONS_ONLY: ReclaimsUsed = ReclaimsUsed { layers: false, pauses: false, preemptions: true };

impl Case {
    fn setup(&self) -> Setup {
        let mut setup = setup(PolicyName::Unified, LAYERS, 26, 5);
        setup.params.host_kv_bytes =
            self.host_kv_blocks * u64::from(LAYERS) * setup.geometry.layer_block_bytes;
        (setup.params.slo, setup.params.ablations.reclaim_by_cost) = (self.slo, self.by_loss);
        // Activations use all their memory, so nothing else is idle.
        setup.params.min_step = setup.params.max_step;
        let profile = &mut setup.profile;
        (profile.link_bytes_per_second, profile.out_bytes_per_second) =
            (self.link_bytes_per_second, self.out_bytes_per_second);
        setup
    }

    fn run(&self) -> Simulation {
        let mut world = Simulation::new(self.setup(), None).unwrap();
        assert!(world.run_until_idle(LIMIT), "it loads");
        for first in (0..self.times).map(|load| 4 * load + 1) {
            (first..first + 4).for_each(|id| world.submit(request(id, self.paced)));
            assert!(world.run_until_idle(LIMIT), "every request ends");
        }
        world
    }

    fn done(&self) -> ReclaimsUsed {
        let world = self.run();
        let (core, counters) = (world.driver.scheduler(), world.driver.scheduler().snapshot().counters);
        let manager = core.manager();
        assert_eq!(manager.figures().counted(Reason::RemapOwn), 0, "no layer hides");
        ReclaimsUsed {
            layers: manager.figures().counted(Reason::RemapStalls) > 0,
            pauses: counters.pauses > 0,
            preemptions: counters.preemptions > 0,
        }
    }
}

fn request(id: u64, paced: bool) -> Request {
    let (prompt, sampling) = ((0..40).collect(), Arc::new(Sampling::default()));
    Request { id: RequestId(id), prompt, max_tokens: 60, sampling, priority: 0, salt: id, paced }
}

/// A request without buffered tokens would miss tokens when paused or computed again; steps that are half as long again
/// make none late.
#[test]
fn layers_stall_where_that_makes_no_token_late_and_a_pause_would() {
    assert_eq!(CASE.done(), LAYERS_ONLY);
    assert_eq!(Case { by_loss: false, ..CASE }.done(), PREEMPTIONS_ONLY);
    let tier = Case { host_kv_blocks: 400, ..CASE };
    assert_eq!(tier.done(), LAYERS_ONLY);
    assert_eq!(Case { by_loss: false, ..tier }.done(), PAUSES_ONLY);
}

/// No request is late in either case, and the other requests get their tokens earlier.
#[test]
fn request_with_buffered_tokens_is_paused_where_layers_would_stall() {
    let paced = Case { host_kv_blocks: 400, paced: true, ..CASE };
    assert_eq!(paced.done(), PAUSES_ONLY);
    assert_eq!(Case { paced: false, ..paced }.done(), LAYERS_ONLY, "with nothing in store it does not");
}

/// Without an objective a stall only slows requests down, by less than a preempted request would wait.
#[test]
fn without_an_objective_a_stall_is_weighed_against_a_preemption() {
    let of = |link_bytes_per_second, by_loss| {
        Case { link_bytes_per_second, slo: Slo::default(), by_loss, ..CASE }.done()
    };
    // The copies of two layers take a tenth more than a step.
    assert_eq!(of(3 * R5 / 2, true), LAYERS_ONLY);
    assert_eq!(of(3 * R5 / 2, false), PREEMPTIONS_ONLY);
    assert_eq!(of(R70, true), PREEMPTIONS_ONLY, "a layer's copy takes seventy times its compute");
}

/// Recomputing a prompt takes less time than offloading its KV, as the first pause shows.
#[test]
fn a_request_is_computed_again_where_that_takes_less_time_than_a_pause() {
    let slow_out = Case {
        link_bytes_per_second: R70,
        out_bytes_per_second: 40_000_000,
        host_kv_blocks: 400,
        times: 2,
        ..CASE
    };
    assert_eq!(slow_out.done(), ReclaimsUsed { layers: false, pauses: true, preemptions: true });
    assert_eq!(Case { by_loss: false, ..slow_out }.done(), PAUSES_ONLY);
}

#[test]
fn reclaim_choice_changes_no_token() {
    let expected = expected(&(1..=4).map(|id| (0, request(id, false))).collect::<Vec<_>>(), LAYERS);
    for (host_kv_blocks, paced, by_loss) in
        [(0, false, true), (0, false, false), (400, true, true), (400, false, false)]
    {
        let case = Case { host_kv_blocks, paced, by_loss, ..CASE };
        let what = format!("{host_kv_blocks} places, paced {paced}, by loss {by_loss}");
        assert_ne!(case.done(), ReclaimsUsed { layers: false, pauses: false, preemptions: false }, "{what}");
        assert_same(&case.run(), &expected, &what);
    }
}
