//! Time of a plan, and how far it may be from the best: 16 requests of different lengths, 80 layers, too little memory for
//! all of their KV, a budget of node expansions as the sidecar has it.
//!
//! Run with `cargo run --release -p sluice-policy --example planner_speed`. Prints the median, the limit and pass or fail;
//! with `-- --json` each verdict as one JSON object.

use std::process::ExitCode;
use std::time::Instant;

use sluice_policy::planner::link::Link;
use sluice_policy::planner::placement::spread;
use sluice_policy::planner::problem::{Object, Problem};
use sluice_policy::planner::search::{DEFAULT_EXPANSIONS, plan};

const LIMIT_NS: u64 = 1_000_000;
const LAYERS: u16 = 80;
const REQUESTS: u64 = 16;
const PROBLEMS: u64 = 400;

/// 2 KiB of KV a token and layer (Llama-3-70B has 4 KiB), 250 us a layer, GH200's link, room for so much of all KV.
fn problem(seed: u64, room_permille: u64) -> Problem {
    let link = Link {
        in_bytes_per_s: 419_000_000_000,
        out_bytes_per_s: 371_000_000_000,
        coupled_permille: 870,
        setup_ns: 4_000,
        quantum_ns: 40_000,
    };
    let sets: Vec<Vec<u16>> = (0..=LAYERS).map(|count| spread(LAYERS, count)).collect();
    let lengths = (0..REQUESTS).map(|request| 500 + (seed * 7919 + request * request * 1013) % 16_000);
    let objects: Vec<Object> =
        lengths.map(|tokens| Object::kv(&link, LAYERS, tokens * 2048, &sets)).collect();
    let all: u64 = objects.iter().map(|object| object.choices[0].resident_bytes).sum();
    Problem {
        capacity_bytes: all * room_permille / 1000,
        compute_ns: vec![250_000; LAYERS.into()],
        link,
        write_bytes: REQUESTS * 2048 * u64::from(LAYERS),
        window: 1,
        objects,
    }
}

/// The value at this permille of a sorted row.
fn at(sorted: &[u64], permille: usize) -> u64 {
    sorted[(sorted.len() - 1) * permille / 1000]
}

fn main() -> ExitCode {
    let json = std::env::args().any(|arg| arg == "--json");
    let mut passed = true;
    for room_permille in [950, 800, 600] {
        let (mut times, mut gaps) = (Vec::new(), Vec::new());
        for seed in 0..PROBLEMS {
            let problem = problem(seed, room_permille);
            let start = Instant::now();
            let plan = plan(&problem, DEFAULT_EXPANSIONS).expect("a placement fits");
            times.push(start.elapsed().as_nanos() as u64);
            gaps.push(plan.gap_permille());
        }
        times.sort_unstable();
        gaps.sort_unstable();
        let (median, p99, ok) = (at(&times, 500), at(&times, 990), at(&times, 500) <= LIMIT_NS);
        passed &= ok;
        let gap = [500, 900, 1000].map(|permille| at(&gaps, permille));
        if json {
            let name =
                format!("plan of {REQUESTS} requests, {LAYERS} layers, room for {room_permille} permille");
            let detail = format!(r#"{{"p99_ns": {p99}, "gap_permille_p50_p90_max": {gap:?}}}"#);
            let limit = format!(r#""limit": {LIMIT_NS}, "passed": {ok}, "detail": {detail}"#);
            println!(r#"{{"name": "{name}, median", "value": {median}, "unit": "ns", {limit}}}"#);
            continue;
        }
        println!(
            "planner: {REQUESTS} requests, {LAYERS} layers, room for {room_permille} permille: median {median} ns, p99 {p99} ns, limit {LIMIT_NS} ns: {}; gap p50 {}, p90 {}, max {} permille",
            if ok { "pass" } else { "fail" },
            gap[0],
            gap[1],
            gap[2]
        );
    }
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
