//! Plans under the scheduler: the requests they cover, admit and pause, and that no token changes.

use sluice_policy::placement_planner::request::{PlanRequest, PlanResult};
use sluice_policy::reason::Reason;
use sluice_policy::reclaim::PolicyName;
use sluice_sim::Simulation;
use sluice_sim::simulation::Setup;

use crate::policies::{ample_memory_tokens, submit_all, tokens};
use crate::support::{LIMIT, setup};

const LAYERS: u16 = 8;
/// KV chunks that are too few for half of the requests.
const SHORT: u32 = 24;

/// Results of a load with short memory.
struct Served {
    world: Simulation,
    /// Largest number of concurrent requests.
    most_running: u32,
    plan_requests: Vec<PlanRequest>,
}

impl Served {
    fn counted(&self, reason: Reason) -> u64 {
        self.world.driver.scheduler().manager().figures().counted(reason)
    }

    fn pauses(&self) -> u64 {
        self.world.driver.scheduler().snapshot().counters.pauses
    }

    /// Returns the number of plans that pause a request, and of those that admit one.
    fn plans(&self) -> (usize, usize) {
        let found: Vec<_> = self.plan_requests.iter().filter_map(|asked| asked.solve().result).collect();
        let count = |named: fn(&PlanResult) -> u16| found.iter().filter(|found| named(found) > 0).count();
        (count(|found| found.paused), count(|found| found.admitted))
    }
}

fn paced(tbt_ns: u64, kv_chunks: u32, set: impl Fn(&mut Setup)) -> Served {
    let mut setup = setup(PolicyName::OrbitFlow, LAYERS, kv_chunks, 5);
    setup.params.host_kv_bytes = 200 * u64::from(LAYERS) * setup.geometry.layer_block_bytes;
    setup.params.slo.tbt_ns = tbt_ns;
    set(&mut setup);
    let mut world = Simulation::new(setup, None).unwrap();
    submit_all(&mut world);
    let mut most_running = 0;
    while world.tick(LIMIT) {
        most_running = world.driver.scheduler().snapshot().running.max(most_running);
    }
    assert!(world.driver.scheduler().is_idle(), "every request ends");
    assert_eq!(tokens(&world), ample_memory_tokens(), "no token changes");
    Served { plan_requests: world.plan_requests(), most_running, world }
}

#[test]
fn request_that_delays_all_is_not_admitted_by_plan() {
    let (loose, tight) = (paced(u64::MAX, SHORT, |_| {}), paced(1, SHORT, |_| {}));
    assert!(loose.plans().1 > 0, "what is tested happens");
    assert!(tight.plan_requests.iter().any(|asked| !asked.waiting.is_empty()), "a request waits for a plan");
    assert_eq!(tight.plans().1, 0);
    for served in [&loose, &tight] {
        assert!(served.counted(Reason::Plan) > 0 && served.counted(Reason::Fetch) > 0);
    }
}

/// Under `Recompute` every request that fits is admitted.
#[test]
fn without_pauses_no_request_is_admitted_unplanned_under_pressure() {
    let never = |setup: &mut Setup| setup.params.pause_bound_ns = 0;
    let tight = paced(1, SHORT, never);
    assert_eq!((tight.pauses(), tight.plans()), (0, (0, 0)));
    let whoever_fits = paced(1, SHORT, |setup| setup.params.policy = PolicyName::Recompute);
    assert!(tight.most_running < whoever_fits.most_running);
}

#[test]
fn request_paused_by_plan_waits() {
    let served = paced(u64::MAX, 32, |_| {});
    assert!(served.plans().0 > 1, "what is tested happens");
    assert_eq!(served.pauses(), served.plans().0 as u64);
}

#[test]
fn plan_considers_as_many_requests_as_rows() {
    const ROWS: usize = 3;
    let served = paced(u64::MAX, SHORT, |setup| setup.config.max_sequences = ROWS as u32);
    let asked = |asked: &PlanRequest| (asked.running.len(), asked.waiting.len());
    let asked: Vec<_> = served.plan_requests.iter().map(asked).collect();
    assert!(asked.iter().any(|(_, waiting)| *waiting > 0), "{asked:?}");
    assert!(asked.iter().all(|(running, waiting)| running + waiting <= ROWS), "{asked:?}");
}

/// Otherwise consecutive plans move KV back and forth, and no step runs.
#[test]
fn steps_run_between_two_plans() {
    for world in [paced(u64::MAX, SHORT, |_| {}).world, paced(1, SHORT, |_| {}).world] {
        let core = world.driver.scheduler();
        let plans =
            core.manager().figures().counted(Reason::Plan) + core.manager().figures().counted(Reason::NoPlan);
        let (steps, apart) = (core.snapshot().counters.steps, core.manager().params().replan.least_steps);
        assert!(plans > 1 && (plans - 1) * u64::from(apart) <= steps, "{plans} plans, {steps} steps");
    }
}

#[test]
fn deviating_step_times_trigger_replan() {
    let plans = |mismatch_permille| {
        let served = paced(u64::MAX, SHORT, |setup| {
            let replan = &mut setup.params.replan;
            (replan.window, replan.mismatch_permille) = (16, mismatch_permille);
        });
        served.counted(Reason::Plan)
    };
    let (whatever, any) = (plans(u16::MAX), plans(0));
    assert!(whatever > 0 && 2 * any > 3 * whatever, "{whatever} plans, {any} where any difference counts");
}
