//! Measures the time of one remapping decision for an 80-layer model and prints value, limit and result. Run with
//! `--release`; `--json` prints the result as one JSON object.
//!
//! The cases vary the link (r from 1 to 70), the layers (equal or not), the current layout and the wanted alpha. Each
//! is repeated many times. The result is the median over all repeats; the slowest case's own median is also shown.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use sluice_common::statistics::percentile;
use sluice_policy::remap::{Question, choose_layout, uniform};
use sluice_policy::step_model::{Layout, Times};

const LAYERS: u16 = 80;
const LIMIT_NS: u128 = 20_000;
const REPEATS: usize = 200;

fn main() -> ExitCode {
    let (mut all, mut slowest) = (Vec::new(), (0, String::new()));
    for r_permille in [1_000, 2_300, 3_000, 5_300, 7_500, 20_000, 70_000] {
        for alike in [true, false] {
            for (held, wanted) in [(0, 1), (0, 8), (0, 40), (3, 4), (8, 6), (8, 9), (20, 30), (30, 2)] {
                let samples = ask(r_permille, alike, held, wanted);
                let name = format!("r {r_permille}/1000, alike {alike}, alpha {held} -> {wanted}");
                slowest = slowest.max((median(samples.clone()), name));
                all.extend(samples);
            }
        }
    }
    let median_ns = median(all);
    let passed = median_ns <= LIMIT_NS;
    if std::env::args().any(|arg| arg == "--json") {
        let limit = format!(r#""limit": {LIMIT_NS}, "passed": {passed}"#);
        let (slowest_ns, question) = slowest;
        let detail =
            format!(r#"{{"slowest_question_median_ns": {slowest_ns}, "slowest_question": "{question}"}}"#);
        let name = format!("remapping decision, {LAYERS} layers, median");
        println!(r#"{{"name": "{name}", "value": {median_ns}, "unit": "ns", {limit}, "detail": {detail}}}"#);
    } else {
        let verdict = if passed { "pass" } else { "FAIL" };
        println!("decision at n = {LAYERS}: median {median_ns} ns, limit {LIMIT_NS} ns, {verdict}");
        println!("slowest question: median {} ns ({})", slowest.0, slowest.1);
    }
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns the nanoseconds of each repeat of one case.
fn ask(r_permille: u64, alike: bool, held_alpha: u16, wanted_alpha: u16) -> Vec<u128> {
    let vary = |layer: u64| if alike { 0 } else { layer * 7919 % 83 * 1000 };
    let compute: Vec<u64> = (0..u64::from(LAYERS)).map(|layer| 500_000 + vary(layer)).collect();
    let transfer: Vec<u64> = (0..u64::from(LAYERS)).map(|layer| 500 * r_permille + vary(layer + 1)).collect();
    let times = Times { compute_ns: &compute, transfer_ns: &transfer };
    let current = match held_alpha {
        0 => Layout::resident(),
        alpha => Layout { moving: uniform(LAYERS, alpha + 1), beta: 1 },
    };
    let allowance_ns = times.token_compute_ns() / 20;
    let question = Question {
        times: &times,
        current: &current,
        wanted_alpha,
        cap_m: 48,
        allowance_ns,
        horizon_tokens: 256,
    };
    let timed = |_| {
        let start = Instant::now();
        black_box(choose_layout(black_box(&question)));
        start.elapsed().as_nanos()
    };
    (0..REPEATS).map(timed).collect()
}

fn median(mut samples: Vec<u128>) -> u128 {
    percentile(&mut samples, 500).expect("there are samples")
}
