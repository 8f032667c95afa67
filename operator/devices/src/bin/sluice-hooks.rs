//! `sluice-hooks`: the Jobs of the chart.

use std::time::Duration;

use clap::{Parser, Subcommand};
use sluice_devices::hooks;

/// What the chart runs before it is uninstalled and when it is tested.
#[derive(Parser)]
#[command(name = "sluice-hooks", version, arg_required_else_help = true)]
struct Args {
    #[command(subcommand)]
    hook: Hook,
}

#[derive(Subcommand)]
enum Hook {
    /// Stop the operator and take its finalizers off pools and tenants.
    Uninstall {
        /// Namespace of the operator.
        #[arg(long)]
        namespace: String,
        /// Give up after this time, seconds.
        #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=60))]
        timeout_seconds: u64,
    },
    /// See whether an installation works.
    Check {
        /// Host and port of the operator's probes.
        #[arg(long)]
        operator: String,
        /// Some node must offer devices.
        #[arg(long)]
        devices: bool,
    },
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    tracing_subscriber::fmt().json().with_writer(std::io::stderr).init();
    let client = kube::Client::try_default().await?;
    match args.hook {
        Hook::Uninstall { namespace, timeout_seconds } => {
            let limit = Duration::from_secs(timeout_seconds);
            let released = hooks::uninstall(&client, &namespace, limit).await?;
            println!("finalizers taken off {released} objects");
        }
        Hook::Check { operator, devices } => {
            hooks::check(&client, &operator, devices).await?;
            println!("all well");
        }
    }
    Ok(())
}
