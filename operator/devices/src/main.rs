//! `sluice-devices`: the DRA driver of one node.

use clap::Parser;
use kube::Client;
use sluice_devices::cli::{Cli, Job};
use sluice_devices::hooks;
use sluice_devices::serve::serve;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().json().with_env_filter(filter).with_writer(std::io::stderr).init();
    // Handlers first: a signal during the start is not lost.
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let ended = async {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    };
    let client = Client::try_default().await?;
    match (cli.job, cli.driver) {
        (Some(job), _) => tokio::select! {
            done = run(&client, &job) => done,
            () = ended => anyhow::bail!("told to end"),
        },
        (None, driver) => serve(&driver.expect("required without a job"), client, ended).await,
    }
}

async fn run(client: &Client, job: &Job) -> anyhow::Result<()> {
    match job {
        Job::Uninstall { namespace, timeout_seconds } => {
            let released = hooks::uninstall(client, namespace, *timeout_seconds).await?;
            println!("finalizers taken off {released} objects");
        }
        Job::Check { operator, devices } => {
            hooks::check(client, operator, *devices).await?;
            println!("all well");
        }
    }
    Ok(())
}
