//! Tests the search against two oracles: all placements of small problems, and an integer program for the stated
//! relaxation.

use std::cell::Cell;

use good_lp::{Expression, ProblemVariables, Solution, SolverModel, Variable, microlp, variable};
use proptest::prelude::*;
use sluice_policy::placement_planner::link::Link;
use sluice_policy::placement_planner::placement::{by_distance, distances, spread};
use sluice_policy::placement_planner::problem::{Choice, Object, Problem};
use sluice_policy::placement_planner::search::{Cost, NoPlan, plan};

use super::step_time::{gap_permille, step_ns};

const NO_LIMIT: u32 = u32::MAX;

fn links() -> impl Strategy<Value = Link> {
    (1..50_u64, 0..3_u64, 0..4_u64, 300..=1000_u16).prop_map(|(rate, setup, quantum, coupled)| Link {
        in_bytes_per_s: rate * 1_000_000,
        out_bytes_per_s: rate * 800_000,
        coupled_permille: coupled,
        setup_ns: setup * 700,
        quantum_ns: quantum * 500,
    })
}

/// Returns all sets that a request may choose from: the empty set, OrbitFlow's, and spreads.
fn sets(layers: u16) -> Vec<Vec<u16>> {
    let even = [1, layers / 2, layers].map(|count| spread(layers, count));
    let paper = distances(layers).into_iter().map(|distance| by_distance(layers, distance));
    let mut sets: Vec<Vec<u16>> = std::iter::once(Vec::new()).chain(paper).chain(even).collect();
    sets.sort();
    sets.dedup();
    sets
}

/// Two to four requests, one slowly moving object with two slots of its own, and too little memory for all.
fn problems() -> impl Strategy<Value = Problem> {
    let requests = prop::collection::vec(prop_oneof![Just(3_u64), 1..60_u64], 2..=4);
    (links(), 3..9_u16, requests, 1..200_u64, 200..1100_u64, 0..30_u64).prop_map(
        |(link, layers, layer_blocks, compute, permille, write_bytes)| {
            let mut objects: Vec<Object> =
                layer_blocks.iter().map(|&bytes| Object::kv(&link, layers, bytes, &sets(layers))).collect();
            objects.push(weights(&link, layers));
            let all: u64 = objects.iter().map(|object| object.choices[0].resident_bytes).sum();
            Problem {
                capacity_bytes: all * permille / 1000,
                compute_ns: (0..u64::from(layers)).map(|layer| compute * 50 + layer).collect(),
                link,
                write_bytes,
                objects,
            }
        },
    )
}

/// Returns weights of 10 bytes per layer: all resident, or all but one layer over two slots.
fn weights(link: &Link, layers: u16) -> Object {
    let mut object = Object::kv(link, layers, 10, &[Vec::new(), spread(layers, layers - 1)]);
    object.choices[1] = Choice {
        resident_bytes: object.choices[1].resident_bytes + 20,
        buffer_bytes: 0,
        buffers: 2,
        ..object.choices[1].clone()
    };
    object
}

/// Returns every combination of choices.
fn combinations(problem: &Problem) -> Vec<Vec<u16>> {
    problem.objects.iter().fold(vec![Vec::new()], |begun, object| {
        let with = |index: u16| begun.iter().map(move |path| [path.as_slice(), &[index]].concat());
        (0..object.choices.len() as u16).flat_map(with).collect()
    })
}

fn cost(problem: &Problem, chosen: &[u16]) -> Cost {
    let link_bytes = problem.choices_of(chosen).map(|choice| choice.link_bytes).sum();
    Cost { time_ns: step_ns(problem, chosen), link_bytes }
}

/// Returns the cheapest of all placements that fit.
fn exhaustive(problem: &Problem) -> Option<Cost> {
    let fitting =
        combinations(problem).into_iter().filter(|chosen| problem.bytes_of(chosen) <= problem.capacity_bytes);
    fitting.map(|chosen| cost(problem, &chosen)).min()
}

/// Returns the step time in the relaxation: the larger of its compute and its transfers.
fn relaxed_ns(problem: &Problem, chosen: &[u16]) -> u64 {
    let work_ns = problem.choices_of(chosen).map(Choice::work_ns).sum();
    problem.compute_total_ns().max(work_ns)
}

/// Returns the least link work that fits, by an integer program: one choice for each object, bytes with the prefetch
/// buffer.
fn integer_program(problem: &Problem) -> Option<u64> {
    let mut variables = ProblemVariables::new();
    let picks: Vec<Vec<Variable>> = (problem.objects.iter())
        .map(|object| object.choices.iter().map(|_| variables.add(variable().binary())).collect())
        .collect();
    let buffer = variables.add(variable().min(0));
    let sum = |of: &dyn Fn(&Choice) -> f64| -> Expression {
        let pairs = problem.objects.iter().zip(&picks);
        pairs
            .flat_map(|(object, picks)| object.choices.iter().zip(picks))
            .map(|(c, &pick)| of(c) * pick)
            .sum()
    };
    let work = sum(&|choice| choice.work_ns() as f64);
    let mut model = variables.minimise(work).using(microlp);
    for picks in &picks {
        model = model.with(picks.iter().sum::<Expression>().eq(1.0));
    }
    for layer in 0..problem.compute_ns.len() as u16 {
        let absent = sum(&|choice| {
            let away = choice.fetches.iter().any(|fetch| fetch.layer == layer);
            if away { choice.buffer_bytes as f64 } else { 0.0 }
        });
        model = model.with((absent - buffer).leq(0.0));
    }
    let resident = sum(&|choice| choice.resident_bytes as f64);
    let solution = model.with((resident + buffer).leq(problem.capacity_bytes as f64)).solve().ok()?;
    let chosen: Vec<u16> = picks
        .iter()
        .map(|picks| picks.iter().position(|&pick| solution.value(pick) > 0.5).expect("one is picked") as u16)
        .collect();
    Some(problem.choices_of(&chosen).map(Choice::work_ns).sum())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn search_with_sufficient_budget_is_optimal(problem in problems()) {
        let found = plan(&problem, &mut { NO_LIMIT }, step_ns);
        let Some(best) = exhaustive(&problem) else {
            prop_assert_eq!(found, Err(NoPlan::Proven));
            return Ok(());
        };
        let found = found.expect("a placement fits");
        prop_assert!(problem.bytes_of(&found.chosen) <= problem.capacity_bytes);
        prop_assert_eq!(cost(&problem, &found.chosen), found.cost);
        prop_assert_eq!(found.cost, best);
        prop_assert!(found.optimal && gap_permille(&found) == 0);
    }

    #[test]
    fn search_bound_is_valid_for_any_budget(problem in problems(), budget in 0..12_u32) {
        let best = exhaustive(&problem);
        match plan(&problem, &mut { budget }, step_ns) {
            Err(NoPlan::Proven) => prop_assert_eq!(best, None),
            Err(NoPlan::OutOfBudget) => {}
            Ok(found) => {
                let best = best.expect("a placement fits");
                prop_assert!(found.expansions <= budget);
                prop_assert!(problem.bytes_of(&found.chosen) <= problem.capacity_bytes);
                prop_assert!(found.cost >= best && found.bound_ns <= best.time_ns);
                prop_assert!(!found.optimal || found.cost == best);
            }
        }
    }

    #[test]
    fn under_the_relaxation_it_agrees_with_an_integer_program(problem in problems()) {
        let found = plan(&problem, &mut { NO_LIMIT }, relaxed_ns);
        let Some(work_ns) = integer_program(&problem) else {
            prop_assert_eq!(found, Err(NoPlan::Proven));
            return Ok(());
        };
        let found = found.expect("a placement fits");
        prop_assert_eq!(found.cost.time_ns, work_ns.max(problem.compute_total_ns()));
    }

    #[test]
    fn a_step_takes_its_compute_and_its_transfers_at_least(problem in problems()) {
        for chosen in combinations(&problem).iter().step_by(7) {
            prop_assert!(step_ns(&problem, chosen) >= relaxed_ns(&problem, chosen));
        }
    }
}

#[test]
fn one_order_of_equal_objects_is_searched() {
    let link = Link::fluid(1_000_000);
    let alike = || Object::kv(&link, 8, 20, &sets(8));
    let problem = Problem {
        capacity_bytes: 300,
        compute_ns: vec![9_000; 8],
        link,
        write_bytes: 0,
        objects: vec![alike(), alike(), alike()],
    };
    let leaves = Cell::new(0_usize);
    let counted = |problem: &Problem, chosen: &[u16]| {
        leaves.set(leaves.get() + 1);
        step_ns(problem, chosen)
    };
    let found = plan(&problem, &mut { NO_LIMIT }, counted).expect("a placement fits");
    assert_eq!(Some(found.cost), exhaustive(&problem));
    assert!(leaves.get() * 6 < combinations(&problem).len() * 2, "{} leaves", leaves.get());
}
