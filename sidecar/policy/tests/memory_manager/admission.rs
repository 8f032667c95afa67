//! Tests plan requests, and the admissions and pauses that their answers allow.

use sluice_policy::geometry::BLOCK_TOKENS;
use sluice_policy::ids::RequestId;
use sluice_policy::memory_manager::{
    Admission, MemoryManager, MemoryNotes, PlanAdmission, PlannedAdmissions, RunningRequest, SchedulerView,
    WaitingRequest,
};
use sluice_policy::params::{Params, Slo};
use sluice_policy::placement_planner::replan;
use sluice_policy::placement_planner::request::{PlanAnswer, PlanResult, RequestState};
use sluice_policy::reclaim::PolicyName;

use super::cases::{BLOCK, guaranteed_chunks, open, tenant};
use super::device::Faults;
use super::random::MODEL_TOKENS;
use super::world::World;

const LAYERS: u32 = 8;
/// KV blocks that a request grows by during a plan's window.
const GROWTH: u32 = 2;

fn manager(host_kv_blocks: u64) -> MemoryManager {
    pausing_manager(host_kv_blocks, Params::default().pause_bound_ns)
}

fn pausing_manager(host_kv_blocks: u64, pause_bound_ns: u64) -> MemoryManager {
    let slabs = vec![4; LAYERS as usize];
    let (params, _) = tenant(PolicyName::OrbitFlow, &slabs, 0, MODEL_TOKENS);
    let (_, geometry) = tenant(PolicyName::OrbitFlow, &slabs, guaranteed_chunks(&params) + 20, MODEL_TOKENS);
    let params = Params {
        host_kv_bytes: host_kv_blocks * u64::from(LAYERS) * BLOCK,
        pause_bound_ns,
        slo: Slo { tbt_ns: 1_000_000, ..Slo::default() },
        replan: replan::ReplanTunables {
            window: GROWTH as u16 * BLOCK_TOKENS as u16,
            least_steps: 0,
            ..Default::default()
        },
        ..params
    };
    let mut world = World::new(params, geometry, 1, Faults::default());
    assert!(world.load());
    world.manager
}

fn runner(id: u64, kv_blocks: u32) -> RunningRequest {
    RunningRequest { request: RequestId(id), kv_blocks, deposit: 0, immune: false }
}

fn waiter(id: u64, kv_blocks: u32) -> WaitingRequest {
    WaitingRequest { request: RequestId(id), kv_blocks, deposit: 0, fresh: true }
}

/// Returns a view with runners numbered from 1, which were opened and hold no KV blocks yet, and one waiting request.
fn scheduler_view(manager: &mut MemoryManager, kv_blocks: &[u32], waiting: WaitingRequest) -> SchedulerView {
    let come = |(id, kv_blocks): (u64, &u32)| {
        open(manager, RequestId(id), id, &vec![7; (kv_blocks * BLOCK_TOKENS) as usize]);
        runner(id, *kv_blocks)
    };
    SchedulerView { running: (1..).zip(kv_blocks).map(come).collect(), waiting: vec![waiting] }
}

fn can_admit(manager: &MemoryManager, waiter: &WaitingRequest) -> bool {
    let none = PlannedAdmissions::default();
    match manager.after(&none).plan_admission(waiter) {
        Some(answer) => answer == PlanAdmission::Now,
        None => manager.after(&none).has_room(waiter),
    }
}

fn boundary(manager: &mut MemoryManager) {
    let now = sluice_policy::ids::Nanos(1);
    manager.boundary(now, &mut Vec::new());
}

fn answer(id: u64, (paused, admitted): (u16, u16), members: usize) -> PlanAnswer {
    let found = PlanResult { paused, admitted, chosen: vec![0; members], step_ns: 1, bound_ns: 1 };
    PlanAnswer { id, result: Some(found) }
}

#[test]
fn new_request_is_planned_with_its_future_kv() {
    let mut manager = manager(200);
    let view = scheduler_view(&mut manager, &[5, 3], waiter(9, 4));
    let asked = manager.ask_plan(&view);
    let kv_blocks = |one: &RequestState| one.full + one.tails;
    assert_eq!(asked.running.iter().map(kv_blocks).collect::<Vec<_>>(), [5 + GROWTH, 3 + GROWTH]);
    assert_eq!(asked.waiting.iter().map(kv_blocks).collect::<Vec<_>>(), [4 + GROWTH]);
}

#[test]
fn request_without_host_space_is_not_paused() {
    let mut manager = manager(8);
    let view = scheduler_view(&mut manager, &[5, 5], waiter(9, 4));
    let asked = manager.ask_plan(&view);
    let leaving: Vec<_> = asked.running.iter().map(|one| (one.full, one.tails, one.immune)).collect();
    assert_eq!(leaving, [(4 + GROWTH, 1, false), (8 - 4 - GROWTH, 3 + GROWTH, true)]);
}

#[test]
fn plan_decides_pauses_and_admissions() {
    let mut manager = manager(200);
    let most = manager.figures().kv_counts().total_layer_blocks / LAYERS;
    let view = scheduler_view(&mut manager, &[2, 2], waiter(9, 3));
    manager.note(&head(Some(RequestId(9))));
    let id = manager.ask_plan(&view).id;
    manager.planned(answer(id, (1, 0), 1));
    boundary(&mut manager);
    assert_eq!(manager.offload_view().pauses(), [RequestId(1)]);
    manager.note(&MemoryNotes { pauses_are_made: true, ..MemoryNotes::default() });
    assert!(manager.offload_view().pauses().is_empty());
    // There is memory for it, but not in addition to the reserve.
    let large = most - 4;
    assert!(!can_admit(&manager, &waiter(9, large)), "it was not let in");
    let id = manager.ask_plan(&view).id;
    manager.planned(answer(id, (0, 1), 3));
    boundary(&mut manager);
    assert!(manager.offload_view().pauses().is_empty());
    assert!(can_admit(&manager, &waiter(9, large)), "a plan says so");
    assert!(!can_admit(&manager, &waiter(9, most)), "its KV would not fit");
    let mut other = PlannedAdmissions::default();
    let prefix = manager.cached_prefix(0, &[1]);
    other.add(&Admission::new(RequestId(8), prefix), 4 * LAYERS, &manager.offload_view());
    assert_eq!(
        manager.after(&other).plan_admission(&waiter(9, large)),
        Some(PlanAdmission::NotYet),
        "nor next to the other new request"
    );
    assert!(!can_admit(&manager, &waiter(8, large)), "another is not let in");
    manager.cancel(RequestId(9));
    assert!(!can_admit(&manager, &waiter(9, large)), "its client has gone");
}

#[test]
fn plan_is_requested_once_per_waiting_head() {
    let mut manager = manager(200);
    boundary(&mut manager);
    assert!(
        !manager.after(&PlannedAdmissions::default()).wants_plan(&MemoryNotes::default()),
        "everything fits, and no request waits"
    );
    let held = |manager: &mut MemoryManager, request: Option<u64>| {
        manager.note(&head(request.map(RequestId)));
        boundary(manager);
        manager.after(&PlannedAdmissions::default()).wants_plan(&MemoryNotes::default())
    };
    assert!(held(&mut manager, Some(9)));
    manager.note(&head(None));
    assert!(!manager.after(&PlannedAdmissions::default()).wants_plan(&MemoryNotes::default()), "it has come");
    assert!(held(&mut manager, Some(9)));
    manager.cancel(RequestId(8));
    assert!(
        manager.after(&PlannedAdmissions::default()).wants_plan(&MemoryNotes::default()),
        "another request gave up"
    );
    manager.cancel(RequestId(9));
    assert!(
        !manager.after(&PlannedAdmissions::default()).wants_plan(&MemoryNotes::default()),
        "its client has gone"
    );
    assert!(held(&mut manager, Some(9)));
    let view = scheduler_view(&mut manager, &[2], waiter(9, 3));
    let id = manager.ask_plan(&view).id;
    assert!(!held(&mut manager, Some(9)), "it is asked for");
    manager.planned(answer(id, (0, 0), 1));
    assert!(!held(&mut manager, Some(9)), "and adopted");
    assert!(!held(&mut manager, Some(9)), "it looked at who is next");
    assert!(held(&mut manager, Some(8)), "another is next");
}

#[test]
fn without_pauses_plan_admits_only_what_fits() {
    let (pauses, never) = (manager(200), pausing_manager(200, 0));
    let most = never.figures().kv_counts().total_layer_blocks / LAYERS;
    let (small, large) = (waiter(9, 2), waiter(9, most - 1));
    let none = PlannedAdmissions::default();
    assert!(
        pauses.after(&none).may_plan_admission(&small, 0)
            && pauses.after(&none).may_plan_admission(&large, 0)
    );
    assert!(
        never.after(&none).may_plan_admission(&small, 0) && !never.after(&none).may_plan_admission(&large, 0)
    );
    assert!(!never.after(&none).may_plan_admission(&small, (most - 1) * LAYERS), "others come as well");
}

/// The queue head that admission skipped.
fn head(request: Option<RequestId>) -> MemoryNotes {
    MemoryNotes { blocked_head: Some(request), ..MemoryNotes::default() }
}
