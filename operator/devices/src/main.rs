//! `sluice-devices`: the DRA driver of one node.

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use kube::Client;
use sluice_devices::cli::{Cli, Job};
use sluice_devices::helm_hooks::{self, Release};
use sluice_devices::serve::serve;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Exit status of a Job that refuses to continue (`EX_CONFIG` of sysexits.h).
const EXIT_REFUSED: u8 = 78;

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let cli = Cli::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt().json().with_env_filter(filter).with_writer(std::io::stderr);
    // By default, a failed write of a log line panics.
    lines.log_internal_errors(false).init();
    // The signal handlers are set up first, so that a signal during the start is not lost.
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let ended = async {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    };
    let client = Client::try_default().await?;
    match (cli.job, cli.driver) {
        (Some(job), _) => tokio::select! {
            done = run(&client, &job) => status(&job, done),
            () = ended => anyhow::bail!("ended by a signal"),
        },
        (None, driver) => {
            serve(&driver.expect("required without a job"), client, ended).await?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Returns the exit status. A refusal has its own status, so that the Job is not retried.
fn status(job: &Job, done: anyhow::Result<()>) -> anyhow::Result<ExitCode> {
    match (job, done) {
        (Job::Uninstall { namespace, release, revision, .. }, Err(error)) if helm_hooks::is_final(&error) => {
            let (name, namespace, revision) = (release.clone(), namespace.clone(), *revision);
            eprintln!("not uninstalled: {error}\n{}", Release { name, namespace, revision }.recovery_hint());
            Ok(ExitCode::from(EXIT_REFUSED))
        }
        (_, done) => done.map(|()| ExitCode::SUCCESS),
    }
}

async fn run(client: &Client, job: &Job) -> anyhow::Result<()> {
    match job {
        Job::Uninstall { namespace, keep_tenants, timeout_seconds, .. } => {
            let began = Instant::now();
            if !keep_tenants {
                helm_hooks::ensure_no_tenants(client).await?;
                helm_hooks::wait_for_no_pods(client, *timeout_seconds / 2).await?;
            }
            let rest = timeout_seconds.saturating_sub(began.elapsed());
            let released = helm_hooks::uninstall(client, namespace, rest).await?;
            println!("removed the finalizers of {released} objects");
        }
        Job::Check { operator, devices, timeout_seconds } => {
            helm_hooks::check(client, operator, *devices, *timeout_seconds).await?;
            println!("the installation works");
        }
    }
    Ok(())
}
