//! `sluice-operator-budgets`: checks the budgets of an operator. `cargo run -p sluice-benches -- operator` builds and
//! runs it, and prints its verdicts as a table.

mod bench;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use crate::bench::{Options, Sizes};

/// Measures a `sluice-operator` on a real API server, with pods, devices and sidecars that are made up.
///
/// Prints one JSON object a line: verdicts, and notes. The exit status is 1 if a limit was not kept.
#[derive(Debug, Parser)]
#[command(name = "sluice-operator-budgets")]
struct Args {
    /// The `sluice-operator` to measure.
    #[arg(long, value_name = "FILE")]
    operator: PathBuf,
    #[command(flatten)]
    sizes: Sizes,
    /// Folder for the logs of the operator. Default: one that goes at the end.
    #[arg(long, value_name = "FOLDER")]
    logs: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let options = Options { operator: args.operator, sizes: args.sizes, logs: args.logs };
    let started = std::time::Instant::now();
    let Some(outcome) = runtime.block_on(bench::run(&options)) else {
        eprintln!("there is no Kubernetes to measure on");
        return ExitCode::FAILURE;
    };
    for verdict in &outcome.verdicts {
        println!("{}", verdict.json());
    }
    println!("{}", serde_json::json!({"note": outcome.notes}));
    eprintln!("took {:?}", Duration::from_secs(started.elapsed().as_secs()));
    if outcome.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
