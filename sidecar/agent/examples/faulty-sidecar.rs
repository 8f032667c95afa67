//! A sidecar with one injected fault towards its peers or requests, for tests that must detect it, or with short loans,
//! for fast tests.
//!
//! `sluice-sidecar` itself contains no faults and no option to enable one.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use sluice_agent::args::Args;
use sluice_agent::engine_loop::InjectedFaults;

/// How long a lender keeps chunks that it has already lent: long enough to be observed from outside.
const EARLY: Duration = Duration::from_millis(300);

/// Index of the corrupted block, among the first that are loaded.
const CORRUPTED_BLOCK: u64 = 20;

/// The arguments of `sluice-sidecar`, and what goes wrong.
#[derive(clap::Parser)]
struct Faulty {
    #[arg(long, value_enum)]
    fault: Option<Fault>,
    /// Loans last so long unless they are renewed, milliseconds. No fault: what a neighbour does within the usual 10
    /// seconds it must do within these.
    #[arg(long)]
    loan_ms: Option<u64>,
    /// The engine sleeps so long before each layer, milliseconds. No fault: steps are long enough to be met from
    /// outside.
    #[arg(long, default_value_t = 0)]
    layer_delay_ms: u64,
    /// The engine sleeps so long before each change of its mappings, milliseconds. No fault either.
    #[arg(long, default_value_t = 0)]
    remap_delay_ms: u64,
    #[command(flatten)]
    args: Args,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Fault {
    /// A lender takes the bytes from its books and promises them to no peer.
    LostEarmark,
    /// A lender promises chunks that it still has mapped.
    EarlyEarmark,
    /// One block of KV that comes from the host tier is not what went there.
    SpoiltBlock,
}

impl Faulty {
    fn injected(&self) -> InjectedFaults {
        let mut faults =
            InjectedFaults { loan: self.loan_ms.map(Duration::from_millis), ..InjectedFaults::default() };
        faults.engine.layer_delay_ns = self.layer_delay_ms * 1_000_000;
        faults.engine.remap_delay_ns = self.remap_delay_ms * 1_000_000;
        match self.fault {
            None => {}
            Some(Fault::LostEarmark) => faults.ledger.lose_earmark = true,
            Some(Fault::EarlyEarmark) => faults.memory.early_earmark = EARLY,
            Some(Fault::SpoiltBlock) => faults.memory.corrupt_layer_block = Some(CORRUPTED_BLOCK),
        }
        faults
    }
}

fn main() -> ExitCode {
    let faulty = Faulty::parse();
    sluice_agent::args::init_logging(&faulty.args);
    match sluice_agent::run::run_with(&faulty.args, faulty.injected()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("faulty-sidecar: {failure:#}");
            failure.exit_code()
        }
    }
}
