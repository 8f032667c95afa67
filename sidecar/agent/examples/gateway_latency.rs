//! What the gateway adds to a token: from the moment the scheduler has it to the moment a client has read it (the write
//! lies in between, so this is an upper bound). 2,000 tokens a second in steps, as an engine makes them: every stream of a
//! batch has its token at the same moment. The same again with a bare server shows how much of it is the machine's.
//!
//! `cargo run --release -p sluice-agent --example gateway_latency -- [STREAMS] [SECONDS]`

#[path = "gateway/host.rs"]
mod host;
#[path = "gateway/reader.rs"]
mod reader;
#[path = "../tests/gateway/tiny.rs"]
mod tiny;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use sluice_agent::service::Update;
use sluice_policy::deposit::Pacing;

use self::host::{Server, Updates};
use self::reader::Reader;

const TOKENS_PER_SECOND: u32 = 2000;
const LIMIT_US: f64 = 200.0;
/// Steps before anything is counted.
const WARM_UP: usize = 100;
/// Longest silence.
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> anyhow::Result<ExitCode> {
    let mut numbers = std::env::args().skip(1).map(|arg| arg.parse::<u32>());
    let streams = numbers.next().transpose()?.unwrap_or(16);
    let seconds = numbers.next().transpose()?.unwrap_or(20);
    let floor = measure(Server::Bare, streams, seconds)?;
    let added = measure(Server::Gateway, streams, seconds)?;
    let passed = host::verdict("added latency per token, p99", added, LIMIT_US, "us", Some(floor));
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The 99th percentile, us.
fn measure(server: Server, streams: u32, seconds: u32) -> anyhow::Result<f64> {
    let (host, opened) = host::start(server, streams, Pacing::Immediate)?;
    let steps = (seconds * TOKENS_PER_SECOND / streams) as usize;
    let address = host.address;
    let client = std::thread::spawn(move || read(address, streams as usize, steps));
    let next = || opened.recv_timeout(PATIENCE).context("a client did not come");
    let clients: Vec<_> = (0..streams).map(|_| next()).collect::<anyhow::Result<_>>()?;
    let sent = produce(&clients, steps, Duration::from_secs(1) * streams / TOKENS_PER_SECOND);
    let open = host.metrics.streams().open;
    ensure!(server == Server::Bare || open == streams, "{open} streams are open");
    let arrived = client.join().expect("the client does not panic")?;
    let late = |times: &Vec<Instant>| -> Vec<u64> {
        times.iter().zip(&sent).skip(WARM_UP).map(|(at, sent)| (*at - *sent).as_nanos() as u64).collect()
    };
    let mut late: Vec<u64> = arrived.iter().flat_map(late).collect();
    ensure!(!late.is_empty(), "too few steps");
    late.sort_unstable();
    let at = |permille| host::rank(&late, permille) as f64 / 1000.0;
    println!("{server:?}: {} tokens, {streams} streams, {TOKENS_PER_SECOND} tokens/s", late.len());
    println!("  p50 {:.1} us, p90 {:.1} us, p99 {:.1} us, max {:.1} us", at(500), at(900), at(990), at(1000));
    Ok(at(990))
}

/// One token for every stream, every `period`. Returns when each step's tokens were handed out.
fn produce(clients: &[Updates], steps: usize, period: Duration) -> Vec<Instant> {
    let began = Instant::now();
    let step = |index: usize| {
        let due = began + period * u32::try_from(index).expect("fewer steps than that");
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let at = Instant::now();
        for updates in clients {
            // A reader that has gone shows as tokens that never arrive.
            let _ = updates.send(Update::Token { token: u32::from(b'a'), logprobs: None, at });
        }
        at
    };
    (0..steps).map(step).collect()
}

/// When the tokens of each stream were read: the n-th was handed out with the n-th step.
fn read(address: SocketAddr, streams: usize, steps: usize) -> anyhow::Result<Vec<Vec<Instant>>> {
    let mut reader = Reader::new()?;
    let mut arrived = vec![Vec::with_capacity(steps); streams];
    (0..streams).try_for_each(|_| reader.open(address))?;
    let (mut left, mut last) = (streams * steps, Instant::now());
    while left > 0 {
        reader.wait(PATIENCE, |stream, tokens, at| {
            arrived[stream].extend(std::iter::repeat_n(at, tokens));
            (left, last) = (left.saturating_sub(tokens), at);
        })?;
        ensure!(last.elapsed() < PATIENCE, "{left} tokens were lost");
    }
    Ok(arrived)
}
