//! What a plan is asked for, and what its answer lets whom do.

use sluice_policy::brain::{Brain, Crowd, Runner, Waiter};
use sluice_policy::geometry::BLOCK_TOKENS;
use sluice_policy::ids::RequestId;
use sluice_policy::params::{Params, PolicyName, Slo};
use sluice_policy::planner::replan;
use sluice_policy::planner::request::{Found, PlanAnswer, Standing};

use super::cases::{BLOCK, guaranteed_chunks, tenant};
use super::device::Faults;
use super::random::MODEL_TOKENS;
use super::world::World;

const LAYERS: u32 = 8;
/// Columns that a request grows by within a plan's window.
const GROWTH: u32 = 2;

fn brain(host_columns: u64) -> Brain {
    brain_that_pauses(host_columns, Params::default().pause_bound_ns)
}

fn brain_that_pauses(host_columns: u64, pause_bound_ns: u64) -> Brain {
    let slabs = vec![4; LAYERS as usize];
    let (params, _) = tenant(PolicyName::OrbitFlow, &slabs, 0, MODEL_TOKENS);
    let (_, geometry) = tenant(PolicyName::OrbitFlow, &slabs, guaranteed_chunks(&params) + 20, MODEL_TOKENS);
    let params = Params {
        host_kv_bytes: host_columns * u64::from(LAYERS) * BLOCK,
        pause_bound_ns,
        slo: Slo { tbt_ns: 1_000_000, ..Slo::default() },
        replan: replan::Tunables {
            window: GROWTH as u16 * BLOCK_TOKENS as u16,
            least_steps: 0,
            ..Default::default()
        },
        ..params
    };
    let mut world = World::new(params, geometry, 1, Faults::default());
    assert!(world.load());
    world.brain
}

fn runner(id: u64, columns: u32) -> Runner {
    Runner { request: RequestId(id), columns, deposit: 0, immune: false }
}

fn waiter(id: u64, columns: u32) -> Waiter {
    Waiter { request: RequestId(id), columns, deposit: 0, fresh: true }
}

/// So many runners, numbered from 1, that have come and hold nothing yet, and one that waits.
fn crowd(brain: &mut Brain, columns: &[u32], waiting: Waiter) -> Crowd {
    let come = |(id, columns): (u64, &u32)| {
        brain.open(RequestId(id), id, &vec![7; (columns * BLOCK_TOKENS) as usize]);
        runner(id, *columns)
    };
    Crowd { running: (1..).zip(columns).map(come).collect(), waiting: vec![waiting] }
}

fn boundary(brain: &mut Brain) {
    let now = sluice_policy::ids::Nanos(1);
    brain.boundary(now, &mut Vec::new());
}

fn answer(id: u64, (paused, admitted): (u16, u16), going: usize) -> PlanAnswer {
    let found = Found { paused, admitted, chosen: vec![0; going], step_ns: 1, bound_ns: 1 };
    PlanAnswer { id, found: Some(found) }
}

#[test]
fn who_came_a_moment_ago_is_planned_for_with_what_it_will_hold() {
    let mut brain = brain(200);
    let crowd = crowd(&mut brain, &[5, 3], waiter(9, 4));
    let asked = brain.ask_plan(&crowd);
    let columns = |one: &Standing| one.full + one.tails;
    assert_eq!(asked.running.iter().map(columns).collect::<Vec<_>>(), [5 + GROWTH, 3 + GROWTH]);
    assert_eq!(asked.waiting.iter().map(columns).collect::<Vec<_>>(), [4 + GROWTH]);
}

#[test]
fn what_the_host_tier_has_no_place_for_stays_and_its_request_is_not_paused() {
    let mut brain = brain(8);
    let crowd = crowd(&mut brain, &[5, 5], waiter(9, 4));
    let asked = brain.ask_plan(&crowd);
    let leaving: Vec<_> = asked.running.iter().map(|one| (one.full, one.tails, one.immune)).collect();
    assert_eq!(leaving, [(4 + GROWTH, 1, false), (8 - 4 - GROWTH, 3 + GROWTH, true)]);
}

#[test]
fn a_plan_says_who_is_paused_and_who_comes_when_there_is_room() {
    let mut brain = brain(200);
    let most = brain.kv_counts().total_blocks / LAYERS;
    let crowd = crowd(&mut brain, &[2, 2], waiter(9, 3));
    brain.hold_back(Some(RequestId(9)));
    let id = brain.ask_plan(&crowd).id;
    brain.planned(answer(id, (1, 0), 1));
    boundary(&mut brain);
    assert_eq!((brain.take_pauses(), brain.take_pauses()), (vec![RequestId(1)], vec![]));
    // Memory for it is there, but not beside the reserve.
    let large = most - 4;
    assert!(!brain.admits(&waiter(9, large), 0), "it was not let in");
    let id = brain.ask_plan(&crowd).id;
    brain.planned(answer(id, (0, 1), 3));
    boundary(&mut brain);
    assert!(brain.take_pauses().is_empty());
    assert!(brain.admits(&waiter(9, large), 0), "a plan says so");
    assert!(!brain.admits(&waiter(9, most), 0), "its KV would not fit");
    assert!(!brain.admits(&waiter(9, large), 4 * LAYERS), "nor beside who comes as well");
    assert!(!brain.admits(&waiter(8, large), 0), "another is not let in");
    brain.gave_up(RequestId(9));
    assert!(!brain.admits(&waiter(9, large), 0), "its client has gone");
}

#[test]
fn a_plan_is_asked_for_once_for_the_next_in_line_and_not_when_it_has_come() {
    let mut brain = brain(200);
    boundary(&mut brain);
    assert!(!brain.wants_plan(), "everything fits, and nobody waits");
    let held = |brain: &mut Brain, request: Option<u64>| {
        brain.hold_back(request.map(RequestId));
        boundary(brain);
        brain.wants_plan()
    };
    assert!(held(&mut brain, Some(9)));
    brain.hold_back(None);
    assert!(!brain.wants_plan(), "it has come");
    assert!(held(&mut brain, Some(9)));
    brain.gave_up(RequestId(8));
    assert!(brain.wants_plan(), "somebody else gave up");
    brain.gave_up(RequestId(9));
    assert!(!brain.wants_plan(), "its client has gone");
    assert!(held(&mut brain, Some(9)));
    let crowd = crowd(&mut brain, &[2], waiter(9, 3));
    let id = brain.ask_plan(&crowd).id;
    assert!(!held(&mut brain, Some(9)), "it is asked for");
    brain.planned(answer(id, (0, 0), 1));
    assert!(!held(&mut brain, Some(9)), "and adopted");
    assert!(!held(&mut brain, Some(9)), "it looked at who is next");
    assert!(held(&mut brain, Some(8)), "another is next");
}

#[test]
fn where_nobody_is_paused_a_plan_lets_in_only_whom_there_is_room_for() {
    let (pauses, never) = (brain(200), brain_that_pauses(200, 0));
    let most = never.kv_counts().total_blocks / LAYERS;
    let (small, large) = (waiter(9, 2), waiter(9, most - 1));
    assert!(pauses.may_be_let_in(&small, 0) && pauses.may_be_let_in(&large, 0));
    assert!(never.may_be_let_in(&small, 0) && !never.may_be_let_in(&large, 0));
    assert!(!never.may_be_let_in(&small, (most - 1) * LAYERS), "others come as well");
}
