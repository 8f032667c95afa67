//! Tests searches with more objects than expansions.

use sluice_policy::placement_planner::batch::{self, BatchCandidate, BatchContext};
use sluice_policy::placement_planner::link::Link;
use sluice_policy::placement_planner::placement::spread;
use sluice_policy::placement_planner::problem::{Object, Problem};
use sluice_policy::placement_planner::search::{DEFAULT_EXPANSIONS, Plan, plan};

use super::step_time::{gap_permille, step_ns};

const LAYERS: u16 = 32;

/// Returns one long request and many short ones over a link with a high fixed cost per transfer: equal shares pay that
/// cost for every short one, although offloading the long one alone suffices.
fn one_long(requests: u64) -> Problem {
    let link = Link { setup_ns: 20_000, ..Link::fluid(10_000_000_000) };
    let sets: Vec<Vec<u16>> = (0..=LAYERS / 2).map(|count| spread(LAYERS, count)).collect();
    let bytes = (0..requests).map(|request| if request == 0 { 400_000 } else { 4_000 + request * 10 });
    let objects: Vec<Object> = bytes.map(|bytes| Object::kv(&link, LAYERS, bytes, &sets)).collect();
    let all: u64 = objects.iter().map(|object| object.choices[0].resident_bytes).sum();
    Problem {
        capacity_bytes: all * 85 / 100,
        compute_ns: vec![20_000; LAYERS.into()],
        link,
        write_bytes: 0,
        objects,
    }
}

fn found(problem: &Problem, budget: u32) -> Plan {
    let found = plan(problem, &mut { budget }, step_ns).expect("a placement fits");
    assert!(found.expansions <= budget);
    assert!(problem.bytes_of(&found.chosen) <= problem.capacity_bytes);
    assert!(found.bound_ns <= found.cost.time_ns);
    found
}

#[test]
fn limited_search_beats_equal_shares() {
    for requests in [17, 24, 40, 64] {
        let problem = one_long(requests);
        let (equal, traded) = (found(&problem, 0), found(&problem, DEFAULT_EXPANSIONS));
        assert!(
            traded.cost.time_ns * 10 <= equal.cost.time_ns * 9,
            "{requests} requests: {:?} after {:?}",
            traded.cost,
            equal.cost
        );
        assert!(gap_permille(&traded) < gap_permille(&equal), "{requests} requests");
    }
}

#[test]
fn larger_budget_finds_no_worse_plan() {
    let problem = one_long(24);
    let costs: Vec<_> = [0, 1, 2, 4, 8, 16, 64, 256].map(|budget| found(&problem, budget).cost).into();
    assert!(costs.is_sorted_by(|less, more| less >= more), "{costs:?}");
}

/// Returns the same batch as [`one_long`] without pausable requests, plus 20 short waiting ones: more batches than
/// expansions.
fn batch_of(requests: u64) -> BatchContext {
    let Problem { capacity_bytes, compute_ns, link, objects, .. } = one_long(requests);
    let member = |kv: Object| BatchCandidate {
        kv,
        compute_ns: 0,
        tbt_ns: 0,
        deposit: 0,
        immune: true,
        must_admit: false,
    };
    let whole = member(Object { choices: objects[1].choices[..1].to_vec() });
    BatchContext {
        capacity_bytes,
        compute_ns,
        overhead_ns: 0,
        link,
        write_bytes: 0,
        window: 32,
        allowed_permille: 0,
        other_requests: Vec::new(),
        waiting: vec![whole; 20],
        alike: false,
        running: objects.into_iter().map(member).collect(),
    }
}

#[test]
fn limited_search_takes_most_promising_batch() {
    for requests in [17, 24, 40] {
        let outlook = batch_of(requests);
        let of = |budget| batch::plan(&outlook, budget, step_ns).expect("one fits");
        let best = of(DEFAULT_EXPANSIONS);
        let problem = batch::problem(&outlook, best.paused, best.admitted);
        let alone = plan(&problem, &mut { DEFAULT_EXPANSIONS }, step_ns);
        assert_eq!(Ok(best.placement), alone, "{requests} requests: as if there were no other batch");
        assert!(of(0).merit > best.merit);
    }
}

#[test]
fn full_fit_needs_no_search() {
    let problem = Problem { capacity_bytes: u64::MAX, ..one_long(64) };
    let found = found(&problem, DEFAULT_EXPANSIONS);
    assert_eq!((found.expansions, found.optimal), (0, true));
    assert!(found.chosen.iter().all(|choice| *choice == 0));
}
