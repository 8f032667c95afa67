//! Tests Pause-Resume and the triggers of a new plan.

use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::placement_planner::pause::{Candidate, PausedSince, Pauses};
use sluice_policy::placement_planner::replan::{ReplanTrigger, ReplanTunables, ReplanWatch};
use sluice_policy::placement_planner::steps::StepTime;

const BOUND_NS: u64 = 100;
const NOW: Nanos = Nanos(1_000);

fn candidate(id: u64, kv_bytes: u64, deposit: u32) -> Candidate {
    Candidate { id: RequestId(id), kv_bytes, deposit }
}

fn ids(ids: &[u64]) -> Vec<RequestId> {
    ids.iter().copied().map(RequestId).collect()
}

#[test]
fn victim_has_most_layer_blocks_and_is_not_oldest() {
    let pauses = Pauses::new(BOUND_NS);
    let running = [candidate(1, 900, 0), candidate(2, 100, 10), candidate(3, 120, 0), candidate(4, 140, 0)];
    // 100 bytes and ten tokens of four bytes are 140 too; of equals the youngest is first.
    assert_eq!(pauses.victims(NOW, &running), ids(&[4, 2, 3]));
}

#[test]
fn oldest_request_includes_paused() {
    let mut pauses = Pauses::new(BOUND_NS);
    pauses.pause(RequestId(1), NOW);
    let running = [candidate(2, 10, 0), candidate(3, 20, 0)];
    assert_eq!(pauses.victims(NOW, &running), ids(&[3, 2]));
    pauses.resume(RequestId(1), NOW);
    assert_eq!(pauses.victims(NOW, &running), ids(&[3]));
}

#[test]
fn a_pause_ends_after_a_completion_and_with_a_plan() {
    let mut pauses = Pauses::new(BOUND_NS);
    let id = RequestId(2);
    pauses.pause(id, NOW);
    assert_eq!(pauses.can_resume(id, NOW, true, false), Err(PausedSince::NothingCompleted));
    pauses.on_finish(RequestId(5));
    assert_eq!(pauses.can_resume(id, NOW, false, false), Err(PausedSince::NoPlan));
    assert_eq!(pauses.can_resume(id, NOW, true, false), Ok(()));
    pauses.resume(id, NOW.plus(30));
    pauses.pause(id, NOW.plus(40));
    let again = pauses.can_resume(id, NOW.plus(40), true, false);
    assert_eq!(again, Err(PausedSince::NothingCompleted), "a completion counts for pauses that it ends");
    assert_eq!(
        pauses.can_resume(id, NOW.plus(40), true, true),
        Ok(()),
        "nothing runs, so nothing will complete"
    );
}

#[test]
fn pauses_add_up_to_the_bound_and_then_the_request_is_immune() {
    let mut pauses = Pauses::new(BOUND_NS);
    let id = RequestId(7);
    pauses.pause(id, NOW);
    pauses.resume(id, NOW.plus(60));
    assert_eq!(pauses.total_ns(id, NOW.plus(500)), 60, "time between pauses does not count");
    pauses.pause(id, NOW.plus(500));
    assert!(!pauses.immune(id, NOW.plus(539)) && pauses.immune(id, NOW.plus(540)));
    assert_eq!(
        pauses.can_resume(id, NOW.plus(540), true, false),
        Ok(()),
        "it waits for no completion any more"
    );
    pauses.pause(RequestId(3), NOW);
    pauses.pause(RequestId(9), NOW.plus(530));
    assert_eq!(pauses.overdue(NOW.plus(539)), Some(RequestId(3)), "the oldest of those who must");
    pauses.on_cancel(RequestId(3));
    assert_eq!(pauses.overdue(NOW.plus(539)), None);
    assert_eq!(pauses.overdue(NOW.plus(540)), Some(id));
    pauses.resume(id, NOW.plus(545));
    let running = [candidate(1, 1, 0), candidate(7, 900, 0), candidate(8, 5, 0)];
    assert_eq!(pauses.victims(NOW.plus(600), &running), ids(&[8]));
}

#[test]
fn finished_requests_are_removed() {
    let mut pauses = Pauses::new(BOUND_NS);
    pauses.pause(RequestId(4), NOW);
    pauses.on_finish(RequestId(4));
    assert_eq!(pauses.total_ns(RequestId(4), NOW.plus(1_000)), 0);
    assert!(!pauses.is_paused(RequestId(4)));
}

#[test]
fn cancelled_waiter_ends_no_pause() {
    let mut pauses = Pauses::new(BOUND_NS);
    pauses.pause(RequestId(2), NOW);
    pauses.on_cancel(RequestId(5));
    assert_eq!(pauses.can_resume(RequestId(2), NOW, true, false), Err(PausedSince::NothingCompleted));
}

#[test]
fn sleep_ends_pauses() {
    let mut pauses = Pauses::new(BOUND_NS);
    let (before, within) = (RequestId(2), RequestId(3));
    pauses.pause(before, NOW);
    pauses.on_sleep(true, NOW.plus(30));
    pauses.on_sleep(true, NOW.plus(40));
    pauses.pause(within, NOW.plus(50));
    let totals = |pauses: &Pauses, now| [before, within].map(|id| pauses.total_ns(id, now));
    assert_eq!(totals(&pauses, NOW.plus(5_000)), [30, 0]);
    pauses.on_sleep(false, NOW.plus(5_000));
    assert_eq!(totals(&pauses, NOW.plus(5_010)), [40, 10]);
    pauses.resume(before, NOW.plus(5_020));
    assert_eq!(totals(&pauses, NOW.plus(9_000)), [50, 4_000]);
}

fn step(total_ns: u64) -> StepTime {
    StepTime { total_ns, stall_ns: 0 }
}

#[test]
fn a_plan_holds_for_its_window() {
    let mut watch = ReplanWatch::new(ReplanTunables { window: 4, ..ReplanTunables::default() }, 1_000);
    let triggers: Vec<_> = (0..5).map(|_| watch.step(step(1_100))).collect();
    assert_eq!(
        triggers,
        [None, None, None, Some(ReplanTrigger::WindowOver), Some(ReplanTrigger::WindowOver)]
    );
}

#[test]
fn missing_plan_is_retried_after_window() {
    let mut watch = ReplanWatch::in_vain(ReplanTunables { window: 4, ..ReplanTunables::default() });
    let triggers: Vec<_> = [1, 1_000, 1, 9_000].map(|ns| watch.step(step(ns))).into();
    assert_eq!(triggers, [None, None, None, Some(ReplanTrigger::WindowOver)]);
}

#[test]
fn consecutive_differing_steps_are_mismatch() {
    let mut watch = ReplanWatch::new(ReplanTunables::default(), 1_000);
    for total_ns in [1_300, 700, 1_100, 1_201, 799] {
        assert_eq!(watch.step(step(total_ns)), None, "{total_ns}");
    }
    assert_eq!(watch.step(step(5_000)), Some(ReplanTrigger::Mismatch));
    let mut watch = ReplanWatch::new(ReplanTunables::default(), 1_000);
    assert!((0..20).all(|_| watch.step(step(1_200)).is_none()), "a fifth is still within it");
}
