//! `sluice bench`: sends load to any OpenAI-compatible endpoint and reports the latency that its clients measured.

mod client;
mod load;
mod report;

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sluice_client::run_at;
use tokio::sync::Semaphore;

use crate::print;
use crate::up::output::eprint_note;
pub use client::RequestRecord;
pub use load::{Arrivals, BenchRequest, Lengths};
pub use report::{BenchReport, Distribution};

/// Interval of progress lines without a terminal.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| "a whole number above 0".into())
}

/// Explains the figures of the report.
const METRIC_DEFINITIONS: &str = "\
Figures, over requests that were answered:
  TTFT        from sending to the first chunk of the stream with tokens
  TBT         between two such chunks, over all gaps of all requests; `inter-token latency` in vLLM's benchmark.
              A server may put several tokens into a chunk; the report says how many it did on average
  TPOT        a request's time from its first chunk to its last one, by its tokens less one: (latency - TTFT) /
              (tokens - 1) in vLLM's benchmark. With a token a chunk, this is the mean TBT of the request
  end to end  from sending to the end of the stream
A chunk that holds only the finish reason does not count. The server counts tokens.
The shares of TTFT and of both targets are of all requests, failed requests included; the share of TBT is of gaps.

The exit status is 1 if no request was answered.";

/// Options of `sluice bench`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = METRIC_DEFINITIONS)]
pub struct BenchArgs {
    /// Base URL, without /v1.
    #[arg(long, default_value = "http://127.0.0.1:8000")]
    pub url: String,
    /// Model name. Default: the first model of the server.
    #[arg(long)]
    pub model: Option<String>,
    /// API key.
    #[arg(long, env = "OPENAI_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Requests to send.
    #[arg(long, short = 'n', default_value_t = 64, value_parser = at_least_one)]
    pub requests: usize,
    /// Arrivals: `burst`, `poisson:RATE`, `gamma:RATE:CV`, `every:SECONDS`, `trace:FILE[:SPEEDUP]` (requests per
    /// second; CSV with a TIMESTAMP or arrival_s column).
    #[arg(long, default_value = "burst")]
    pub arrivals: Arrivals,
    /// Lengths: `PROMPT:OUTPUT`, `LOW-HIGH:LOW-HIGH` (uniform), or a CSV file with context and generated token columns.
    #[arg(long, default_value = "64:64")]
    pub lengths: Lengths,
    /// Longest prompt and output together; longer draws are cut.
    #[arg(long, default_value_t = u32::MAX)]
    pub max_total: u32,
    /// Closed loop: at most this many requests open at once. Default: open loop.
    #[arg(long, value_parser = at_least_one)]
    pub concurrency: Option<usize>,
    /// Prompts are random token ids below this number. Token ids work with every server and tokenizer.
    #[arg(long, default_value_t = 256)]
    pub vocab: u32,
    /// Let the model end a sequence by itself.
    #[arg(long)]
    pub respect_eos: bool,
    /// TTFT target, milliseconds.
    #[arg(long, default_value_t = 2000)]
    pub slo_ttft: u64,
    /// TBT target, milliseconds: a request meets it when the 99th percentile of its gaps does.
    #[arg(long, default_value_t = 100)]
    pub slo_tbt: u64,
    /// Seed of arrivals, lengths and prompts.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Give up on a request after this many seconds.
    #[arg(long, default_value_t = 600)]
    pub timeout: u64,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
    /// Write every request's output text to this file (JSON), to compare two runs.
    #[arg(long)]
    pub outputs: Option<PathBuf>,
}

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
        records = send_all(args, &bar) => records?,
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
    send_all(args, &ProgressBar::hidden()).await
}

async fn send_all(args: &BenchArgs, bar: &ProgressBar) -> anyhow::Result<Vec<RequestRecord>> {
    raise_nofile_limit();
    let jobs = load::generate_requests(args)?;
    // A trace may contain fewer requests than the command line asked for.
    bar.set_length(jobs.len() as u64);
    let client = Arc::new(client::BenchClient::connect(args).await?);
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
        let telling = report_progress(&bar, Duration::from_millis(1), |line| drop(sender.send(line)));
        let first = tokio::select! {
            line = said.recv() => line,
            never = telling => match never {},
        };
        assert_eq!(first.as_deref(), Some("2 of 5 requests answered after 0 s"));
    }
}
