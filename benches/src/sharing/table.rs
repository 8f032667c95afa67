//! Medians and ranges as text.

use super::super::statistics::cell;
use super::runs::Runs;
use crate::sharing_bench::SharingRunFigures;
use crate::sharing_bench::delays::{Delay, KINDS};

/// A figure's name, its decimals, and where it is.
type Row = (&'static str, usize, fn(&SharingRunFigures) -> f64);

const ROWS: [Row; 10] = [
    ("goodput, output tokens/s", 1, |o| o.goodput),
    ("throughput, output tokens/s", 1, |o| o.throughput),
    ("P99 TTFT, ms", 0, |o| o.ttft_p99),
    ("P99 TBT as delivered, ms", 1, |o| o.tbt_p99),
    ("requests in a batch, most", 0, |o| o.running as f64),
    ("requests preempted", 0, |o| o.preempted as f64),
    ("tokens recomputed", 0, |o| o.recomputed as f64),
    ("chunks lent, total", 0, |o| o.chunks_lent as f64),
    ("layers lent, most at a time", 0, |o| o.layers_lent as f64),
    ("MiB copied to the device", 0, |o| (o.copied_bytes >> 20) as f64),
];

/// Prints the runs under one load.
pub(super) fn print(runs: &Runs) {
    println!("\n{} load; median (range) of {}", runs.shape.name(), runs.outcomes[0].len());
    print!("{:<32}", "");
    runs.rules.iter().for_each(|rule| print!("{:>28}", rule.name));
    println!();
    for (name, digits, figure) in ROWS {
        row(runs, name, digits, figure);
    }
    let part = |name: &str, which: &str, figure: &dyn Fn(&SharingRunFigures) -> f64| {
        row(runs, &format!("{name}, {which}"), 2, figure);
    };
    for (at, (name, _)) in KINDS.iter().enumerate() {
        let delay = |outcome: &SharingRunFigures| -> Delay { outcome.delays[at] };
        row(runs, &format!("{name}, times"), 0, |o| delay(o).samples as f64);
        part(name, "p50 ms", &|o| delay(o).p50_ms);
        part(name, "p99 ms", &|o| delay(o).p99_ms);
    }
}

/// One figure under all rules; a run that has none counts for nothing.
fn row(runs: &Runs, name: &str, digits: usize, figure: impl Fn(&SharingRunFigures) -> f64) {
    print!("{name:<32}");
    for outcomes in &runs.outcomes {
        let samples: Vec<f64> = outcomes.iter().map(&figure).filter(|value| !value.is_nan()).collect();
        let text = if samples.is_empty() { "-".into() } else { cell(&samples, digits) };
        print!(" {text:>27}");
    }
    println!();
}
