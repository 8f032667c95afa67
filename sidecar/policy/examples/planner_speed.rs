//! Measures the time of a plan and its gap to the optimum, with plan requests as a serving sidecar sends them: 16
//! requests of different lengths, of which all but one may be paused, four that wait, 80 layers, too little memory for
//! all of their KV, and the sidecar's budget of node expansions. Two of three requests have an objective.
//!
//! Run with `cargo run --release -p sluice-policy --example planner_speed`. Prints the median, the limit and pass or
//! fail; `-- --json` prints each result as one JSON object.

use std::process::ExitCode;
use std::time::Instant;

use sluice_common::statistics::percentile_of_sorted;
use sluice_policy::placement_planner::link::Link;
use sluice_policy::placement_planner::request::{PlanRequest, RequestState};
use sluice_policy::placement_planner::search::DEFAULT_EXPANSIONS;

const LIMIT_NS: u64 = 1_000_000;
const LAYERS: u16 = 80;
const REQUESTS: u64 = 16;
const WAITING: u64 = 4;
const PROBLEMS: u64 = 400;
/// Bytes of KV per token and layer: half of Llama-3-70B's.
const TOKEN_BYTES: u64 = 2048;
const COMPUTE_NS: u64 = 250_000;
const ROOMS_PERMILLE: [u64; 3] = [950, 800, 600];

/// The link of a GH200.
const LINK: Link = Link {
    in_bytes_per_s: 419_000_000_000,
    out_bytes_per_s: 371_000_000_000,
    coupled_permille: 870,
    setup_ns: 4_000,
    quantum_ns: 40_000,
};

fn tokens(seed: u64, request: u64) -> u64 {
    500 + (seed * 7919 + request * request * 1013) % 16_000
}

/// Returns a plan request with memory for `room_permille` of all KV. A step without stalls meets the objective by a
/// tenth or by a half, or there is no objective.
fn live(seed: u64, room_permille: u64) -> PlanRequest {
    let standing = |request: u64| RequestState {
        full: (tokens(seed, request) / 16) as u32,
        tails: 1,
        deposit: (request % 4) as u32,
        immune: request == 15,
        placed: true,
        ..RequestState::default()
    };
    let running: Vec<_> = (0..REQUESTS).map(standing).collect();
    let kv_blocks: u64 = running.iter().map(|one| u64::from(one.full + one.tails)).sum();
    let layer_block_bytes = 16 * TOKEN_BYTES;
    PlanRequest {
        id: 1,
        layers: LAYERS,
        layer_block_bytes,
        running,
        waiting: (REQUESTS..REQUESTS + WAITING).map(standing).collect(),
        capacity_bytes: kv_blocks * layer_block_bytes * u64::from(LAYERS) * room_permille / 1000,
        compute_ns: vec![COMPUTE_NS; LAYERS.into()],
        kv_block_ns: 5,
        overhead_ns: 500_000,
        link: Link::fluid(LINK.in_bytes_per_s),
        window: 32,
        tbt_ns: COMPUTE_NS * u64::from(LAYERS) * [11, 20, 0][seed as usize % 3] / 10,
        allowed_permille: 10,
        expansions: DEFAULT_EXPANSIONS,
        alike: false,
    }
}

fn at(sorted: &[u64], permille: u64) -> u64 {
    percentile_of_sorted(sorted, permille).expect("there are samples")
}

/// Returns the times of plans and their proven gaps, both sorted.
fn timed(plan: impl Fn(u64) -> (u64, u64)) -> (Vec<u64>, Vec<u64>) {
    let (mut times, mut gaps): (Vec<_>, Vec<_>) = (0..PROBLEMS).map(plan).unzip();
    times.sort_unstable();
    gaps.sort_unstable();
    (times, gaps)
}

fn solve(seed: u64, room_permille: u64) -> (u64, u64) {
    let request = live(seed, room_permille);
    let start = Instant::now();
    let found = request.solve().result.expect("a placement fits");
    (start.elapsed().as_nanos() as u64, found.gap_permille().into())
}

/// Prints the result; returns whether it is within the limit.
fn print_result(json: bool, what: &str, (times, gaps): &(Vec<u64>, Vec<u64>)) -> bool {
    let (median, p99, ok) = (at(times, 500), at(times, 990), at(times, 500) <= LIMIT_NS);
    let gap = [500, 900, 1000].map(|permille| at(gaps, permille));
    if json {
        let detail = format!(r#"{{"p99_ns": {p99}, "gap_permille_p50_p90_max": {gap:?}}}"#);
        let limit = format!(r#""limit": {LIMIT_NS}, "passed": {ok}, "detail": {detail}"#);
        println!(r#"{{"name": "plan of {what}, median", "value": {median}, "unit": "ns", {limit}}}"#);
        return ok;
    }
    println!(
        "planner: {what}: median {median} ns, p99 {p99} ns, limit {LIMIT_NS} ns: {}; gap p50 {}, p90 {}, max {} permille",
        if ok { "pass" } else { "fail" },
        gap[0],
        gap[1],
        gap[2]
    );
    ok
}

fn main() -> ExitCode {
    let json = std::env::args().any(|arg| arg == "--json");
    let mut passed = true;
    for room_permille in ROOMS_PERMILLE {
        let what = format!(
            "{REQUESTS} requests, {LAYERS} layers, room for {room_permille} permille, {WAITING} waiting, an objective"
        );
        passed &= print_result(json, &what, &timed(|seed| solve(seed, room_permille)));
    }
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
