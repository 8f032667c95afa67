//! Medians and ranges as text.

use super::super::statistics::cell;
use super::runs::{POLICIES, Runs};
use crate::policy_comparison::PolicyRunFigures;

/// A figure's name, its decimals, and where it is.
type Row = (&'static str, usize, fn(&PolicyRunFigures) -> f64);

const ROWS: [Row; 11] = [
    ("throughput, output tokens/s", 1, |o| o.throughput),
    ("P99 TTFT, ms", 0, |o| o.ttft_p99),
    ("P99 TBT as delivered, ms", 1, |o| o.delivered_tbt_p99),
    ("P99 TBT of the engine, ms", 1, |o| o.engine_tbt_p99),
    ("requests in the batch, most", 0, |o| o.running as f64),
    ("layers remapped, most", 0, |o| o.remapped as f64),
    ("remappings", 0, |o| o.remappings as f64),
    ("remappings declined", 0, |o| o.declined as f64),
    ("requests preempted", 0, |o| o.preempted as f64),
    ("tokens recomputed", 0, |o| o.recomputed as f64),
    ("r as measured", 1, |o| o.ratio.unwrap_or(f64::NAN)),
];

/// Prints the runs on one link.
pub(super) fn print(runs: &Runs) {
    let link = runs.device.link_bytes_per_s.unwrap_or(u64::MAX) as f64 / 1e9;
    let memory = runs.device.memory_bytes >> 20;
    println!(
        "\nr = {} (link {link:.2} GB/s, device {memory} MiB); median (range) of {}",
        runs.ratio,
        runs.outcomes[0].len()
    );
    print!("{:<30}", "");
    POLICIES.iter().for_each(|policy| print!("{policy:>24}"));
    println!();
    for (name, digits, figure) in ROWS {
        print!("{name:<30}");
        for outcomes in &runs.outcomes {
            let samples: Vec<f64> = outcomes.iter().map(figure).collect();
            print!("{:>24}", cell(&samples, digits));
        }
        println!();
    }
    for policy in &POLICIES[1..] {
        let ratios = runs.ratios(policy, |outcome| outcome.throughput);
        println!("{policy} / {}, throughput: {}", POLICIES[0], cell(&ratios, 2));
    }
}
