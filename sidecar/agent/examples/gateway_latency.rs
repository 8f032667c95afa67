//! Measures the latency that a sidecar adds to a token: from the moment the engine's `Done` is given to the engine
//! loop's thread until the token is written to the client's socket, and until a client on the same processors has read
//! it.
//!
//! Included: waking the thread, retiring the step, deciding and sending the next one, publishing, passing updates to
//! the async runtime, the token's text, the event and the write. Engine loop, scheduler, memory, link reader and
//! gateway are the product's; a stand-in for the engine is attached over the real link. Not included: the link itself,
//! which `link_latency` measures, because the stand-in sends its `Done` to the channel of the link's reader thread.
//!
//! The engine makes 2,000 tokens per second in steps: every stream of a batch gets its token at the same moment. Pacing
//! is `Immediate`, so every token is written when it is produced; a token in a deposit waits by design. A run with a
//! bare server, whose tokens also pass through a thread, shows the machine's share.
//!
//! `cargo run --release -p sluice-agent --example gateway_latency -- [STREAMS] [SECONDS]`

#[path = "gateway/engine.rs"]
mod engine;
#[path = "gateway/host.rs"]
mod host;
#[path = "gateway/reader.rs"]
mod reader;
#[path = "gateway/stamped.rs"]
mod stamped;
#[path = "gateway/tenant.rs"]
mod tenant;
#[path = "../tests/gateway/tiny.rs"]
mod tiny;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use sluice_agent::scheduler_handle::RequestUpdate;
use sluice_common::statistics::percentile_of_sorted;
use sluice_policy::token_deposit::Pacing;

use self::engine::{Moment, Sent};
use self::host::{Server, Updates};
use self::reader::{Arrival, Reader};
use self::tenant::Tenant;

const TOKENS_PER_SECOND: u32 = 2000;
const LIMIT_US: f64 = 200.0;
/// Steps before the measurement starts.
const WARM_UP: usize = 100;
/// Longest time without a token.
const TIMEOUT: Duration = Duration::from_secs(10);

fn main() -> anyhow::Result<ExitCode> {
    let mut numbers = std::env::args().skip(1).map(|arg| arg.parse::<u32>());
    let streams = numbers.next().transpose()?.unwrap_or(16);
    let seconds = numbers.next().transpose()?.unwrap_or(20);
    let load = Load::new(streams, seconds)?;
    let floor = load.bare()?;
    let added = load.gateway()?;
    let name = "added latency per token, p99";
    let passed = host::print_check(name, added.written, LIMIT_US, "us", Some(floor.written));
    println!("read by the client, p99: {:.2} us  (the bare server: {:.2} us)", added.read, floor.read);
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The 99th percentiles from a step's end to the write and to the read of its tokens, us.
struct LatencyResult {
    written: f64,
    read: f64,
}

/// Load on both servers.
#[derive(Clone, Copy)]
struct Load {
    streams: u32,
    /// Number of steps, and of tokens per stream.
    steps: u32,
    /// Time from step to step.
    period: Duration,
}

impl Load {
    fn new(streams: u32, seconds: u32) -> anyhow::Result<Load> {
        let steps = seconds * TOKENS_PER_SECOND / streams;
        ensure!(steps as usize > WARM_UP, "too few steps");
        Ok(Load { streams, steps, period: Duration::from_secs(1) * streams / TOKENS_PER_SECOND })
    }

    fn gateway(self) -> anyhow::Result<LatencyResult> {
        let tenant = Tenant::start(self.streams, self.steps, self.period)?;
        let arrived = self.client(tenant.host.address).join().expect("the client does not panic")?;
        self.latency_result("gateway", &arrived, &tenant.shutdown()?)
    }

    fn bare(self) -> anyhow::Result<LatencyResult> {
        let (host, opened) = host::start(Server::Bare, self.streams, Pacing::Immediate)?;
        let client = self.client(host.address);
        let next = |_| opened.recv_timeout(TIMEOUT).context("a client did not come");
        let clients: Vec<_> = (0..self.streams).map(next).collect::<anyhow::Result<_>>()?;
        // The streams stay open until their client has read everything.
        let (sent, _clients) = self.produce(clients);
        let arrived = client.join().expect("the client does not panic")?;
        self.latency_result("bare server", &arrived, &vec![sent; self.streams as usize])
    }

    /// Makes steps without an engine; a thread only forwards their tokens. Returns when each step was done, and the
    /// senders.
    fn produce(self, clients: Vec<Updates>) -> (Vec<Moment>, Vec<Updates>) {
        let (done, steps) = channel();
        let receiver = std::thread::spawn(move || {
            for at in steps {
                for updates in &clients {
                    // A disconnected reader shows as tokens that never arrive.
                    let _ = updates.send(RequestUpdate::Token { token: u32::from(b'a'), logprobs: None, at });
                }
            }
            clients
        });
        let mut begun = Instant::now();
        let step = |_| {
            begun = engine::wait(begun, self.period);
            let at = engine::moment();
            // The thread runs until this sender is dropped.
            let _ = done.send(at.0);
            at
        };
        let sent = (0..self.steps).map(step).collect();
        drop(done);
        (sent, receiver.join().expect("it does not panic"))
    }

    /// Starts a client of all streams.
    fn client(self, address: SocketAddr) -> JoinHandle<anyhow::Result<Vec<Vec<Arrival>>>> {
        std::thread::spawn(move || read(address, self.streams as usize, self.steps))
    }

    fn latency_result(
        self,
        name: &str,
        arrived: &[Vec<Arrival>],
        sent: &Sent,
    ) -> anyhow::Result<LatencyResult> {
        let Load { streams, steps, .. } = self;
        println!("{name}: {} tokens, {streams} streams, {TOKENS_PER_SECOND} tokens/s", steps * streams);
        Ok(LatencyResult {
            written: print_percentiles("written", latencies(arrived, sent, write_latency)?),
            read: print_percentiles(
                "read by the client",
                latencies(arrived, sent, |(sent, _), at| Ok(at.read - *sent))?,
            ),
        })
    }
}

fn write_latency((_, sent): &Moment, at: &Arrival) -> anyhow::Result<Duration> {
    let written = at.written.context("the kernel did not stamp what came")?;
    written.duration_since(*sent).context("written before it was sent: the clock was set")
}

/// Returns the latencies of all tokens after the warm-up, nanoseconds in rising order.
fn latencies(
    arrived: &[Vec<Arrival>],
    sent: &Sent,
    latency: impl Fn(&Moment, &Arrival) -> anyhow::Result<Duration>,
) -> anyhow::Result<Vec<u64>> {
    let pairs = sent.iter().zip(arrived).flat_map(|(sent, times)| sent.iter().zip(times).skip(WARM_UP));
    let nanos = pairs.map(|(sent, at)| Ok(latency(sent, at)?.as_nanos() as u64));
    let mut nanos: Vec<_> = nanos.collect::<anyhow::Result<_>>()?;
    nanos.sort_unstable();
    Ok(nanos)
}

/// Prints percentiles and returns the 99th, us.
fn print_percentiles(name: &str, nanos: Vec<u64>) -> f64 {
    let at = |permille| percentile_of_sorted(&nanos, permille).map_or(f64::NAN, |ns| ns as f64 / 1000.0);
    let (p50, p90, p99, max) = (at(500), at(900), at(990), at(1000));
    println!("  {name}: p50 {p50:.1} us, p90 {p90:.1} us, p99 {p99:.1} us, max {max:.1} us");
    p99
}

/// Returns when the tokens of each stream arrived, in the order in which they were made.
fn read(address: SocketAddr, streams: usize, steps: u32) -> anyhow::Result<Vec<Vec<Arrival>>> {
    let mut reader = Reader::new()?;
    let mut arrived = vec![Vec::with_capacity(steps as usize); streams];
    let request = |stream| host::request(&tenant::prompt_of(stream), steps);
    (0..streams).try_for_each(|stream| reader.open(address, &request(stream)))?;
    let (mut left, mut last) = (streams * steps as usize, Instant::now());
    while left > 0 {
        reader.wait(TIMEOUT, |stream, tokens, at| {
            arrived[stream].extend(std::iter::repeat_n(at, tokens));
            (left, last) = (left.saturating_sub(tokens), at.read);
        })?;
        ensure!(last.elapsed() < TIMEOUT, "{left} tokens were lost");
    }
    Ok(arrived)
}
