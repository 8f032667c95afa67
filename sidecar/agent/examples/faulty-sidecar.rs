//! A sidecar that breaks one promise to its neighbours: for tests which show that they would notice.
//!
//! `sluice-sidecar` itself has no faults and no way to switch one on.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use sluice_agent::args::Args;
use sluice_agent::room::InjectedFaults;

/// How long a lender keeps what it has lent already: long enough to be met from outside.
const EARLY: Duration = Duration::from_millis(300);

/// The arguments of `sluice-sidecar`, and what goes wrong.
#[derive(clap::Parser)]
struct Faulty {
    #[arg(long, value_enum)]
    fault: Fault,
    #[command(flatten)]
    args: Args,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Fault {
    /// A lender takes the bytes from its books and promises them to nobody.
    LostEarmark,
    /// A lender promises chunks that it still has mapped.
    EarlyEarmark,
}

impl Fault {
    fn inject(self) -> InjectedFaults {
        let mut faults = InjectedFaults::default();
        match self {
            Fault::LostEarmark => faults.ledger.lose_earmark = true,
            Fault::EarlyEarmark => faults.memory.early_earmark = EARLY,
        }
        faults
    }
}

fn main() -> ExitCode {
    let Faulty { fault, args } = Faulty::parse();
    sluice_agent::args::init_logging(&args);
    match sluice_agent::run::run_with(&args, fault.inject()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("faulty-sidecar: {failure:#}");
            failure.exit_code()
        }
    }
}
