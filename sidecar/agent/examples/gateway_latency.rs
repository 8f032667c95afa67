//! What the gateway adds to a token: from the moment the scheduler has it to the moment a client has read it (the write
//! lies in between, so this is an upper bound). 2,000 tokens a second in steps, as an engine makes them.
//!
//! `cargo run --release -p sluice-agent --example gateway_latency -- [STREAMS] [SECONDS]`

#[path = "gateway/host.rs"]
mod host;
#[path = "../tests/gateway/tiny.rs"]
mod tiny;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use sluice_agent::service::{Message, Update};
use sluice_policy::deposit::Pacing;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const TOKENS_PER_SECOND: u32 = 2000;
const LIMIT_US: f64 = 200.0;
/// Steps before anything is counted.
const WARM_UP: usize = 100;

type Updates = tokio::sync::mpsc::UnboundedSender<Update>;

fn main() -> anyhow::Result<ExitCode> {
    let mut numbers = std::env::args().skip(1).map(|arg| arg.parse::<u32>());
    let streams = numbers.next().transpose()?.unwrap_or(16);
    let seconds = numbers.next().transpose()?.unwrap_or(20);
    let (host, messages) = host::start(streams, Pacing::Immediate)?;
    let (arrivals, arrived) = channel();
    std::thread::spawn(move || read_all(host.address, streams, &arrivals));
    let clients: Vec<_> = (0..streams).map(|_| next_request(&messages)).collect::<anyhow::Result<_>>()?;
    anyhow::ensure!(host.metrics.streams().open == streams, "streams were refused");
    let steps = u64::from(seconds * TOKENS_PER_SECOND / streams);
    let sent = produce(&clients, steps, Duration::from_secs(1) * streams / TOKENS_PER_SECOND);
    let mut late = latencies(&sent, &arrived, streams as usize)?;
    late.sort_unstable();
    let at = |permille| host::rank(&late, permille) as f64 / 1000.0;
    println!("{} tokens, {streams} streams, {TOKENS_PER_SECOND} tokens/s", late.len());
    println!("p50 {:.1} us, p90 {:.1} us, p99 {:.1} us, max {:.1} us", at(500), at(900), at(990), at(1000));
    let passed = host::verdict("added latency per token, p99", at(990), LIMIT_US, "us");
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn next_request(messages: &Receiver<Message>) -> anyhow::Result<Updates> {
    match messages.recv_timeout(Duration::from_secs(10)).context("a client did not come")? {
        Message::Submit(_, updates) => Ok(updates),
        other => anyhow::bail!("unexpected: {other:?}"),
    }
}

/// One token for every stream, every `period`. Returns when each step's tokens were handed out.
fn produce(clients: &[Updates], steps: u64, period: Duration) -> Vec<Instant> {
    let began = Instant::now();
    let step = |index: u64| {
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

/// The n-th token of every stream was handed out with the n-th step.
fn latencies(
    sent: &[Instant],
    arrived: &Receiver<(usize, Instant)>,
    streams: usize,
) -> anyhow::Result<Vec<u64>> {
    let mut counts = vec![0; streams];
    let mut late = Vec::new();
    for _ in 0..sent.len() * streams {
        let (stream, at) = arrived.recv_timeout(Duration::from_secs(10)).context("tokens were lost")?;
        let step: usize = counts[stream];
        counts[stream] += 1;
        if step >= WARM_UP {
            late.push(u64::try_from((at - sent[step]).as_nanos())?);
        }
    }
    Ok(late)
}

fn read_all(address: SocketAddr, streams: u32, arrivals: &Sender<(usize, Instant)>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let readers = (0..streams as usize).map(|index| read(address, index, arrivals.clone()));
    runtime.block_on(futures_util::future::join_all(readers));
}

async fn read(address: SocketAddr, index: usize, arrivals: Sender<(usize, Instant)>) {
    let mut socket = TcpStream::connect(address).await.expect("a connection");
    socket.write_all(&host::request()).await.expect("a request sent");
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length @ 1..) = socket.read(&mut buffer).await {
        let at = Instant::now();
        let text = String::from_utf8_lossy(&buffer[..length]);
        let tokens =
            text.split("\"text\":\"").skip(1).map(|rest| rest.bytes().take_while(|b| *b == b'a').count());
        for _ in 0..tokens.sum() {
            if arrivals.send((index, at)).is_err() {
                return;
            }
        }
    }
}
