//! Tests OrbitFlow's worked examples: Fig. 3 and the numbers of options.

use sluice_policy::placement_planner::batch::late_tokens;
use sluice_policy::placement_planner::link::Link;
use sluice_policy::placement_planner::placement::{by_distance, distances, spread};
use sluice_policy::placement_planner::problem::{Object, Problem};
use sluice_policy::placement_planner::steps::{FetchStream, Steps};

const LAYERS: u16 = 9;
/// A block takes one unit of time, a layer's compute three.
const UNIT_NS: u64 = 1_000;
const CAPACITY: u64 = 70;

/// Fig. 3: a link that moves a block per unit, two requests with these blocks per layer, and these offloaded layers
/// (from 1).
fn figure(layer_blocks: [u64; 2], away: [&[u16]; 2]) -> Problem {
    let link = Link::fluid(1_000_000);
    let object = |request: usize| {
        let absent = away[request].iter().map(|layer| layer - 1).collect();
        Object::kv(&link, LAYERS, layer_blocks[request], &[absent])
    };
    Problem {
        capacity_bytes: CAPACITY,
        compute_ns: vec![3 * UNIT_NS; LAYERS.into()],
        link,
        write_bytes: 0,
        objects: vec![object(0), object(1)],
    }
}

/// Returns (blocks of memory, stall in units) of the first step.
fn outcome(problem: &Problem) -> (u64, u64) {
    let streams = problem
        .choices_of(&[0, 0])
        .map(|choice| FetchStream { fetches: &choice.fetches, buffers: choice.buffers });
    let time = Steps::new(&problem.link, &problem.compute_ns, streams).step(0);
    assert_eq!(time.total_ns, 27 * UNIT_NS + time.stall_ns);
    assert_eq!(time.stall_ns % UNIT_NS, 0);
    (problem.bytes_of(&[0, 0]), time.stall_ns / UNIT_NS)
}

const THIRDS: &[u16] = &[3, 6, 9];

#[test]
fn figure_3_step_1_stalls_9_and_0_and_0() {
    assert_eq!(outcome(&figure([3, 6], [THIRDS, THIRDS])), (63, 9));
    assert_eq!(outcome(&figure([3, 6], [&[], THIRDS])), (69, 0));
    assert_eq!(outcome(&figure([3, 6], [&[4, 8], THIRDS])), (63, 0));
}

#[test]
fn figure_3_step_16_stalls_12_does_not_fit_and_stalls_2() {
    assert_eq!(outcome(&figure([4, 6], [THIRDS, THIRDS])), (70, 12));
    let (layer_blocks, stall) = outcome(&figure([4, 6], [&[], THIRDS]));
    assert!(
        layer_blocks == 78 && layer_blocks > CAPACITY && stall == 0,
        "{layer_blocks} blocks, stall {stall}"
    );
    assert_eq!(outcome(&figure([4, 6], [&[4, 8], THIRDS])), (70, 2));
}

#[test]
fn there_are_as_many_distances_as_the_table_says() {
    let table = [(9, 4), (32, 9), (36, 10), (40, 10), (48, 11), (60, 13), (64, 14), (80, 15)];
    for (layers, options) in table {
        assert_eq!(distances(layers).len(), options, "{layers} layers");
    }
}

#[test]
fn there_are_at_most_2_floor_sqrt_l_minus_1_distances_and_each_gives_another_count() {
    for layers in 2..200_u16 {
        let distances = distances(layers);
        assert!(distances.len() <= 2 * usize::from(layers.isqrt()) - 1 + usize::from(layers < 4), "{layers}");
        let counts: Vec<usize> = distances.iter().map(|&d| by_distance(layers, d).len()).collect();
        assert!(counts.is_sorted_by(|a, b| a < b), "{layers}: {counts:?}");
        let all: std::collections::BTreeSet<u16> = (2..=layers).map(|d| layers / d).collect();
        assert_eq!(counts.len(), all.len());
    }
}

#[test]
fn the_figures_sets_are_every_third_and_every_fourth_layer() {
    assert_eq!(by_distance(9, 3), [2, 5, 8]);
    assert_eq!(by_distance(9, 4), [3, 7]);
    assert_eq!(by_distance(9, 10), []);
}

#[test]
fn a_spread_has_gaps_that_differ_by_at_most_one() {
    for layers in 1..100_u16 {
        assert_eq!(spread(layers, 0), []);
        for count in 1..=layers {
            let spread = spread(layers, count);
            let ends = core::iter::once(0).chain(spread.iter().map(|layer| layer + 1)).collect::<Vec<_>>();
            let gaps: Vec<u16> = ends.windows(2).map(|pair| pair[1] - pair[0]).collect();
            assert_eq!(gaps.len(), usize::from(count));
            assert_eq!(gaps.iter().sum::<u16>(), layers, "the last one is the last layer");
            assert!(gaps.iter().max().expect("gaps") - gaps.iter().min().expect("gaps") <= 1, "{gaps:?}");
        }
    }
}

/// Returns the late tokens of a request that generates a token every `step` and delivers them by Token-Deposit.
fn delivered_late(step: u64, tbt: u64, deposit: u32, window: u16) -> u64 {
    let (mut due, mut late) = (0, 0);
    for token in 1..=u64::from(deposit) + u64::from(window) {
        let made = token.saturating_sub(deposit.into()) * step;
        due += tbt;
        if made > due {
            (due, late) = (made, late + u64::from(token > u64::from(deposit)));
        }
    }
    late
}

#[test]
fn deposit_bridges_expected_token_count() {
    assert_eq!(late_tokens(50, 50, 0, 32), 0);
    assert_eq!(late_tokens(51, 50, 0, 32), 32, "each token is late when none is in store");
    assert_eq!(late_tokens(100, 50, 10, 32), 22, "ten in store last for ten tokens at twice the interval");
    for (step, tbt, deposit, window) in
        [(100, 50, 10, 32), (60, 50, 3, 32), (51, 50, 1, 100), (500, 50, 40, 32), (75, 50, 7, 64)]
    {
        assert_eq!(
            late_tokens(step, tbt, deposit, window),
            delivered_late(step, tbt, deposit, window),
            "{step} {tbt} {deposit} {window}"
        );
    }
}
