//! `sluice bench`: sends load to any OpenAI-compatible endpoint and reports the latency that its clients measured.

mod args;
mod client;
mod load;
mod report;
mod requests;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sluice_client::run_at;
use sluice_common::text::counted;
use tokio::sync::Semaphore;

use crate::print;
use crate::up::output::eprint_note;
pub use args::BenchArgs;
pub use client::RequestRecord;
pub use load::{Arrivals, Lengths};
pub use report::{BenchReport, Distribution};
pub use requests::BenchRequest;

/// Interval of progress lines without a terminal.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// Runs the benchmark and prints its report.
///
/// # Errors
/// An unreadable trace, a server that cannot be reached, or a run in which no request succeeded.
pub async fn run(args: BenchArgs) -> anyhow::Result<()> {
    let records = run_load(&args).await?;
    if let Some(path) = &args.outputs {
        let texts: Vec<_> = records.iter().map(|r| &r.text).collect();
        std::fs::write(path, serde_json::to_vec(&texts)?).with_context(|| path.display().to_string())?;
    }
    let report = BenchReport::of(&records, args.slo_ttft, args.slo_tbt);
    match args.json {
        true => print(serde_json::to_string_pretty(&report)?)?,
        false => print(report.to_string().trim_end())?,
    }
    if report.completed == 0 {
        bail!("no request succeeded; the first error: {}", report.first_error.as_deref().unwrap_or("none"));
    }
    Ok(())
}

/// Sends the load and waits for every answer. Returns the records in the order of the jobs.
///
/// # Errors
/// As [`run`].
pub async fn run_load(args: &BenchArgs) -> anyhow::Result<Vec<RequestRecord>> {
    let bar = progress_bar(args.requests as u64);
    let records = tokio::select! {
        records = send_all(args, &bar, eprint_note) => records?,
        never = report_progress(&bar, PROGRESS_INTERVAL, eprint_note) => match never {},
    };
    bar.finish_and_clear();
    Ok(records)
}

/// Like [`run_load`], without progress output.
///
/// # Errors
/// As [`run`].
pub async fn run_load_quietly(args: &BenchArgs) -> anyhow::Result<Vec<RequestRecord>> {
    send_all(args, &ProgressBar::hidden(), |_| {}).await
}

/// Sends the load. Names the server and its model first: another server may listen at the default address.
async fn send_all(
    args: &BenchArgs,
    bar: &ProgressBar,
    say: impl FnOnce(String),
) -> anyhow::Result<Vec<RequestRecord>> {
    raise_nofile_limit();
    let jobs = requests::generate_requests(args)?;
    // A trace may contain fewer requests than the command line asked for.
    bar.set_length(jobs.len() as u64);
    let client = Arc::new(client::BenchClient::connect(args).await?);
    say(format!("sends {} to {client}", counted(jobs.len(), "request")));
    let gate = Arc::new(Semaphore::new(args.concurrency.unwrap_or(Semaphore::MAX_PERMITS)));
    let start = Instant::now();
    let jobs = jobs.into_iter().map(|job| {
        let (client, gate, bar, arrival) = (client.clone(), gate.clone(), bar.clone(), job.arrival);
        let send = async move {
            let _permit = gate.acquire_owned().await;
            let record = client.send(start, &job).await;
            bar.inc(1);
            record
        };
        (arrival, send)
    });
    Ok(run_at(start.into(), jobs).await)
}

/// Prints progress at intervals when there is no terminal. Only the end of the run ends it.
async fn report_progress(bar: &ProgressBar, every: Duration, mut say: impl FnMut(String)) -> Infallible {
    if !bar.is_hidden() {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(every).await;
        let (answered, all) = (bar.position(), bar.length().unwrap_or(0));
        say(format!("{answered} of {all} requests answered after {} s", bar.elapsed().as_secs()));
    }
}

/// Raises the soft limit of open files: each open request is a connection, and a session usually starts with 1,024.
fn raise_nofile_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // If the limit cannot be raised, requests that get no file descriptor report the error.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

fn progress_bar(total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total);
    let style = ProgressStyle::with_template("{elapsed_precise} {bar:40} {pos}/{len} requests answered");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

#[cfg(test)]
mod tests {
    use indicatif::ProgressDrawTarget;

    use super::*;

    #[tokio::test]
    async fn run_without_visible_bar_prints_progress() {
        let bar = ProgressBar::with_draw_target(Some(5), ProgressDrawTarget::hidden());
        bar.inc(2);
        let (sender, mut said) = tokio::sync::mpsc::unbounded_channel();
        let report = report_progress(&bar, Duration::from_millis(1), |line| drop(sender.send(line)));
        let first = tokio::select! {
            line = said.recv() => line,
            never = report => match never {},
        };
        assert_eq!(first.as_deref(), Some("2 of 5 requests answered after 0 s"));
    }
}
