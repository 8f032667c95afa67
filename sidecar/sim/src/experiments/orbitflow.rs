//! OrbitFlow's worked examples.

use sluice_policy::placement_planner::link::Link;
use sluice_policy::placement_planner::placement::distances;
use sluice_policy::placement_planner::problem::{Object, Problem};
use sluice_policy::placement_planner::steps::{FetchStream, Steps};

use super::{ComparisonRow, ExperimentReport, Figure, Series};

const LAYERS: u16 = 9;
const CAPACITY_BLOCKS: u64 = 70;

/// The time to move one block. A layer's compute takes three of these.
const UNIT_NS: u64 = 1_000;

/// A plan: its name, and the offloaded layers of both requests, from 1.
const PLANS: [(&str, [&[u16]; 2]); 3] =
    [("A", [&[3, 6, 9], &[3, 6, 9]]), ("B", [&[], &[3, 6, 9]]), ("C", [&[4, 8], &[3, 6, 9]])];

/// Blocks of memory, and units of stall if they fit.
type PlanCost = (u64, Option<u64>);

/// Steps of the figure: step number, blocks per layer of both requests, and for each plan the blocks of memory and the
/// units of stall (`None` if the plan does not fit).
const STEPS: [(u64, [u64; 2], [PlanCost; 3]); 2] = [
    (1, [3, 6], [(63, Some(9)), (69, Some(0)), (63, Some(0))]),
    (16, [4, 6], [(70, Some(12)), (78, None), (70, Some(2))]),
];

fn problem(layer_blocks: [u64; 2], away: [&[u16]; 2]) -> Problem {
    let link = Link::fluid(1_000_000);
    let object = |(layer_blocks, away): (u64, &[u16])| {
        Object::kv(&link, LAYERS, layer_blocks, &[away.iter().map(|layer| layer - 1).collect()])
    };
    Problem {
        capacity_bytes: CAPACITY_BLOCKS,
        compute_ns: vec![3 * UNIT_NS; LAYERS.into()],
        link,
        write_bytes: 0,
        objects: layer_blocks.into_iter().zip(away).map(object).collect(),
    }
}

fn outcome(layer_blocks: [u64; 2], away: [&[u16]; 2]) -> PlanCost {
    let problem = problem(layer_blocks, away);
    let memory = problem.bytes_of(&[0, 0]);
    let streams = problem.choices_of(&[0, 0]);
    let streams = streams.map(|choice| FetchStream { fetches: &choice.fetches, buffers: choice.buffers });
    let stall_ns = Steps::new(&problem.link, &problem.compute_ns, streams).step(0).stall_ns;
    (memory, (memory <= CAPACITY_BLOCKS).then_some(stall_ns / UNIT_NS))
}

fn format_cost((memory, stall): PlanCost) -> String {
    match stall {
        Some(stall) => format!("{memory} blocks, stall {stall}"),
        None => format!("{memory} blocks, infeasible"),
    }
}

/// Reproduces Fig. 3.
pub fn fig3() -> ExperimentReport {
    let cases = STEPS.iter().flat_map(|(step, layer_blocks, paper)| {
        PLANS.iter().zip(paper).map(move |((name, away), paper)| (*step, *layer_blocks, *name, *away, *paper))
    });
    let rows = cases.map(|(step, layer_blocks, name, away, paper)| {
        let ours = outcome(layer_blocks, away);
        ComparisonRow::equal(format!("plan {name}, step {step}"), &format_cost(paper), &format_cost(ours))
    });
    let line = |(name, away): &(&str, [&[u16]; 2])| {
        let stall = |layer_blocks| {
            outcome([layer_blocks, 6], *away).1.map(|stall| (layer_blocks as f64, stall as f64))
        };
        Series { name: format!("plan {name}"), points: (1..=8).filter_map(stall).collect() }
    };
    ExperimentReport::new(
        rows.collect(),
        Figure {
            title: "OrbitFlow Fig. 3: stall of a step as the first request grows".to_owned(),
            x: "blocks per layer of the first request".to_owned(),
            y: "stall, thirds of a layer's compute".to_owned(),
            names: Vec::new(),
            lines: PLANS.iter().map(line).collect(),
        },
    )
}

/// Checks D(L), the number of distinct placements.
pub fn dl() -> ExperimentReport {
    const TABLE: [(u16, usize); 8] =
        [(9, 4), (32, 9), (36, 10), (40, 10), (48, 11), (60, 13), (64, 14), (80, 15)];
    let rows = TABLE.iter().map(|(layers, options)| {
        ComparisonRow::equal(format!("{layers} layers"), options, &distances(*layers).len())
    });
    let points = |count: fn(u16) -> f64| (2..=128).map(|layers| (f64::from(layers), count(layers))).collect();
    ExperimentReport::new(
        rows.collect(),
        Figure {
            title: "OrbitFlow 4.2: distinct placements of one request".to_owned(),
            x: "layers".to_owned(),
            y: "placements".to_owned(),
            names: Vec::new(),
            lines: vec![
                Series { name: "D(L)".to_owned(), points: points(|layers| distances(layers).len() as f64) },
                Series {
                    name: "2 floor(sqrt L) - 1".to_owned(),
                    points: points(|layers| f64::from(2 * layers.isqrt() - 1)),
                },
            ],
        },
    )
}
