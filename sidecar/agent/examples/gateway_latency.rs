//! What the gateway adds to a token: from the moment the scheduler's thread announces it to the moment it is written to the
//! client's socket, and, beside it, to the moment a client that shares the processors has read it.
//!
//! Inside: the hand-over from that thread to the async world, the text of the token, the event, the write. Not inside: what
//! the scheduler's thread does between the engine's `Done` and the announcement (it reads the answer off the link, retires
//! the step and hands the engine its next one), because tokens are put in where that thread puts them, with no scheduler.
//!
//! 2,000 tokens a second in steps, as an engine makes them: every stream of a batch has its token at the same moment. The same
//! again with a bare server shows how much of it is the machine's.
//!
//! `cargo run --release -p sluice-agent --example gateway_latency -- [STREAMS] [SECONDS]`

#[path = "gateway/host.rs"]
mod host;
#[path = "gateway/reader.rs"]
mod reader;
#[path = "gateway/stamped.rs"]
mod stamped;
#[path = "../tests/gateway/tiny.rs"]
mod tiny;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, ensure};
use sluice_agent::service::Update;
use sluice_policy::deposit::Pacing;

use self::host::{Server, Updates};
use self::reader::{Arrival, Reader};

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
    let name = "added latency per token, p99";
    let passed = host::verdict(name, added.written, LIMIT_US, "us", Some(floor.written));
    println!("read by the client, p99: {:.2} us  (the bare server: {:.2} us)", added.read, floor.read);
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The 99th percentiles from the scheduler's token to its write and to its read, us.
struct Found {
    written: f64,
    read: f64,
}

/// One moment by both clocks: the kernel's stamps are of the second.
type Moment = (Instant, SystemTime);

fn measure(server: Server, streams: u32, seconds: u32) -> anyhow::Result<Found> {
    let (host, opened) = host::start(server, streams, Pacing::Immediate)?;
    let steps = (seconds * TOKENS_PER_SECOND / streams) as usize;
    ensure!(steps > WARM_UP, "too few steps");
    let address = host.address;
    let client = std::thread::spawn(move || read(address, streams as usize, steps));
    let next = || opened.recv_timeout(PATIENCE).context("a client did not come");
    let clients: Vec<_> = (0..streams).map(|_| next()).collect::<anyhow::Result<_>>()?;
    let sent = produce(&clients, steps, Duration::from_secs(1) * streams / TOKENS_PER_SECOND);
    let open = host.metrics.streams().open;
    ensure!(server == Server::Bare || open == streams, "{open} streams are open");
    let arrived = client.join().expect("the client does not panic")?;
    println!("{server:?}: {} tokens, {streams} streams, {TOKENS_PER_SECOND} tokens/s", steps * arrived.len());
    Ok(Found {
        written: tell("written", latencies(&arrived, &sent, write_latency)?),
        read: tell("read by the client", latencies(&arrived, &sent, |(sent, _), at| Ok(at.read - *sent))?),
    })
}

fn write_latency((_, sent): &Moment, at: &Arrival) -> anyhow::Result<Duration> {
    let written = at.written.context("the kernel did not stamp what came")?;
    written.duration_since(*sent).context("written before it was sent: somebody set the clock")
}

/// Of all tokens but the first, nanoseconds in rising order.
fn latencies(
    arrived: &[Vec<Arrival>],
    sent: &[Moment],
    latency: impl Fn(&Moment, &Arrival) -> anyhow::Result<Duration>,
) -> anyhow::Result<Vec<u64>> {
    let pairs = arrived.iter().flat_map(|times| sent.iter().zip(times).skip(WARM_UP));
    let nanos = pairs.map(|(sent, at)| Ok(latency(sent, at)?.as_nanos() as u64));
    let mut nanos: Vec<_> = nanos.collect::<anyhow::Result<_>>()?;
    nanos.sort_unstable();
    Ok(nanos)
}

/// Prints percentiles and returns the 99th, us.
fn tell(name: &str, nanos: Vec<u64>) -> f64 {
    let at = |permille| host::rank(&nanos, permille) as f64 / 1000.0;
    let (p50, p90, p99, max) = (at(500), at(900), at(990), at(1000));
    println!("  {name}: p50 {p50:.1} us, p90 {p90:.1} us, p99 {p99:.1} us, max {max:.1} us");
    p99
}

/// One token for every stream, every `period`. Returns when each step's tokens were handed out.
fn produce(clients: &[Updates], steps: usize, period: Duration) -> Vec<Moment> {
    let began = Instant::now();
    let step = |index: usize| {
        let due = began + period * u32::try_from(index).expect("fewer steps than that");
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let (at, by_kernel) = (Instant::now(), SystemTime::now());
        for updates in clients {
            // A reader that has gone shows as tokens that never arrive.
            let _ = updates.send(Update::Token { token: u32::from(b'a'), logprobs: None, at });
        }
        (at, by_kernel)
    };
    (0..steps).map(step).collect()
}

/// When the tokens of each stream came: the n-th was handed out with the n-th step.
fn read(address: SocketAddr, streams: usize, steps: usize) -> anyhow::Result<Vec<Vec<Arrival>>> {
    let mut reader = Reader::new()?;
    let mut arrived = vec![Vec::with_capacity(steps); streams];
    (0..streams).try_for_each(|_| reader.open(address))?;
    let (mut left, mut last) = (streams * steps, Instant::now());
    while left > 0 {
        reader.wait(PATIENCE, |stream, tokens, at| {
            arrived[stream].extend(std::iter::repeat_n(at, tokens));
            (left, last) = (left.saturating_sub(tokens), at.read);
        })?;
        ensure!(last.elapsed() < PATIENCE, "{left} tokens were lost");
    }
    Ok(arrived)
}
