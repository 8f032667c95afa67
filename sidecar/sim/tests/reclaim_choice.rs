//! `Unified` takes the remedy that loses least for each byte: own layers that stall, a pause or a preemption, each where it does.
//! With prices switched off it takes them in a fixed order.

use std::sync::Arc;

use sluice_policy::ids::RequestId;
use sluice_policy::params::{PolicyName, Slo};
use sluice_policy::reason::Reason;
use sluice_ports::sampling::Sampling;
use sluice_scheduler::Request;
use sluice_sim::Simulation;
use sluice_sim::simulation::Setup;

use crate::support::{LIMIT, assert_same, expected, setup};

const MS: u64 = 1_000_000;
const LAYERS: u16 = 8;
/// A step takes less than a millisecond.
const SLO: Slo = Slo { ttft_ns: 1000 * MS, tbt_ns: 20 * MS, allowed_miss_permille: 10 };
/// The copy of a layer takes five times its compute: none hides, and one that gives its memory away adds half to a step.
const R5: u64 = 520_000_000;
/// Seventy times.
const R70: u64 = 37_000_000;

/// Requests that all fit when they come, and not any more when they end: nobody waits but for what is done about that.
struct Case {
    link_bytes_per_second: u64,
    out_bytes_per_second: u64,
    slo: Slo,
    host_columns: u64,
    paced: bool,
    by_loss: bool,
    /// Such loads, one after the other.
    times: u64,
}

/// A fast way out, no host tier, nothing in store.
const CASE: Case = Case {
    link_bytes_per_second: R5,
    out_bytes_per_second: 16_000_000_000,
    slo: SLO,
    host_columns: 0,
    paced: false,
    by_loss: true,
    times: 1,
};

/// What was done: layers that stall, pauses, preemptions.
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
        setup.params.host_kv_bytes = self.host_columns * u64::from(LAYERS) * setup.geometry.block_bytes;
        (setup.params.slo, setup.params.reclaim_by_cost) = (self.slo, self.by_loss);
        // Activations are as large as they are: nothing else is idle.
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
        assert_eq!(manager.counted(Reason::RemapOwn), 0, "no layer hides");
        ReclaimsUsed {
            layers: manager.counted(Reason::RemapStalls) > 0,
            pauses: counters.pauses > 0,
            preemptions: counters.preemptions > 0,
        }
    }
}

fn request(id: u64, paced: bool) -> Request {
    let (prompt, sampling) = ((0..40).collect(), Arc::new(Sampling::default()));
    Request { id: RequestId(id), prompt, max_tokens: 60, sampling, priority: 0, salt: id, paced }
}

/// Who has nothing in store would miss tokens, whether paused or computed again; steps that are half as long again make none late.
#[test]
fn layers_stall_where_that_makes_no_token_late_and_a_pause_would() {
    assert_eq!(CASE.done(), LAYERS_ONLY);
    assert_eq!(Case { by_loss: false, ..CASE }.done(), PREEMPTIONS_ONLY);
    let tier = Case { host_columns: 400, ..CASE };
    assert_eq!(tier.done(), LAYERS_ONLY);
    assert_eq!(Case { by_loss: false, ..tier }.done(), PAUSES_ONLY);
}

/// Nobody is late either way, and the others make their tokens sooner.
#[test]
fn request_with_buffered_tokens_is_paused_where_layers_would_stall() {
    let paced = Case { host_columns: 400, paced: true, ..CASE };
    assert_eq!(paced.done(), PAUSES_ONLY);
    assert_eq!(Case { paced: false, ..paced }.done(), LAYERS_ONLY, "with nothing in store it does not");
}

/// What has no objective is only slower, and by less than what somebody would have to wait for.
#[test]
fn without_an_objective_a_stall_is_weighed_against_a_preemption() {
    let of = |link_bytes_per_second, by_loss| {
        Case { link_bytes_per_second, slo: Slo::default(), by_loss, ..CASE }.done()
    };
    // Two layers pass in a tenth more than a step takes.
    assert_eq!(of(3 * R5 / 2, true), LAYERS_ONLY);
    assert_eq!(of(3 * R5 / 2, false), PREEMPTIONS_ONLY);
    assert_eq!(of(R70, true), PREEMPTIONS_ONLY, "a layer's copy takes seventy times its compute");
}

/// A prompt is computed again in less time than its KV needs to leave, as the first pause tells.
#[test]
fn a_request_is_computed_again_where_that_takes_less_time_than_a_pause() {
    let slow_out = Case {
        link_bytes_per_second: R70,
        out_bytes_per_second: 40_000_000,
        host_columns: 400,
        times: 2,
        ..CASE
    };
    assert_eq!(slow_out.done(), ReclaimsUsed { layers: false, pauses: true, preemptions: true });
    assert_eq!(Case { by_loss: false, ..slow_out }.done(), PAUSES_ONLY);
}

#[test]
fn reclaim_choice_changes_no_token() {
    let expected = expected(&(1..=4).map(|id| (0, request(id, false))).collect::<Vec<_>>(), LAYERS);
    for (host_columns, paced, by_loss) in
        [(0, false, true), (0, false, false), (400, true, true), (400, false, false)]
    {
        let case = Case { host_columns, paced, by_loss, ..CASE };
        let what = format!("{host_columns} places, paced {paced}, by loss {by_loss}");
        assert_ne!(case.done(), ReclaimsUsed { layers: false, pauses: false, preemptions: false }, "{what}");
        assert_same(&case.run(), &expected, &what);
    }
}
