//! Ten thousand paced streams (one token a second each) through one gateway; the client is a separate process.
//!
//! Lateness is what the client sees: the gap between two tokens of a stream beyond the interval. Streams begin at an even
//! rate, so that their tokens are due at all times of the second.
//!
//! `cargo run --release -p sluice-agent --example gateway_streams -- [STREAMS] [SECONDS]`

#[path = "gateway/host.rs"]
mod host;
#[path = "../tests/gateway/tiny.rs"]
mod tiny;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sluice_agent::service::{Message, Update};
use sluice_policy::deposit::Pacing;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const INTERVAL: Duration = Duration::from_secs(1);
const LATENESS_LIMIT_MS: f64 = 20.0;
const STREAM_LIMIT_KIB: f64 = 32.0;
/// New streams a second.
const ARRIVALS_PER_SECOND: u32 = 500;

fn main() -> anyhow::Result<ExitCode> {
    let mut args = std::env::args().skip(1).peekable();
    let client = args.next_if(|arg| arg == "--client").and_then(|_| args.next());
    let streams = args.next().map(|n| n.parse()).transpose()?.unwrap_or(10_000);
    let seconds = args.next().map(|n| n.parse()).transpose()?.unwrap_or(20);
    raise_descriptors(u64::from(streams) + 2048)?;
    match client {
        Some(address) => read_streams(address.parse()?, streams, Duration::from_secs(seconds)),
        None => measure(streams, seconds),
    }
}

fn raise_descriptors(wanted: u64) -> anyhow::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    ensure!(
        maximum.is_none_or(|most| most >= wanted),
        "{wanted} descriptors are needed, {maximum:?} allowed"
    );
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).context("RLIMIT_NOFILE")
}

/// Resident memory of this process, KiB.
fn resident_kib() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

fn measure(streams: u32, seconds: u64) -> anyhow::Result<ExitCode> {
    let pacing = Pacing::Paced { interval_ns: u64::try_from(INTERVAL.as_nanos())? };
    let (host, messages) = host::start(streams, pacing)?;
    std::thread::spawn(move || produce(&messages));
    let before = resident_kib()?;
    let mut client = Command::new(std::env::current_exe()?)
        .args(["--client", &host.address.to_string(), &streams.to_string(), &seconds.to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(client.stdout.take().context("a pipe")?).lines();
    ensure!(lines.next().transpose()?.as_deref() == Some("up"), "the client could not open its streams");
    let open = host.metrics.streams().open;
    ensure!(open == streams, "{open} streams are open");
    std::thread::sleep(Duration::from_secs(seconds) / 2);
    let kib = (resident_kib()?.saturating_sub(before)) as f64 / f64::from(streams);
    let figures = lines.next().transpose()?.context("the client said nothing")?;
    client.wait()?;
    let figures: Vec<f64> = figures.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    let &[samples, p50, p99, max] = figures.as_slice() else { anyhow::bail!("{figures:?}") };
    println!("{streams} streams, {samples} gaps: lateness p50 {p50:.2} ms, p99 {p99:.2} ms, max {max:.2} ms");
    println!("server's own view (due to handed to the socket):");
    let text = host.metrics.encode();
    text.lines()
        .filter(|l| l.starts_with("sluice_write_lateness_seconds_bucket"))
        .for_each(|line| println!("  {line}"));
    let late = host::verdict("lateness of paced tokens, p99", p99, LATENESS_LIMIT_MS, "ms");
    let small = host::verdict("resident memory per stream", kib, STREAM_LIMIT_KIB, "KiB");
    Ok(if late && small { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Gives every stream three tokens at once and then one every nine tenths of an interval, so that its deposit is never
/// empty and pacing alone decides.
fn produce(messages: &Receiver<Message>) {
    const PARTS: usize = 90;
    let mut wheel: Vec<Vec<tokio::sync::mpsc::UnboundedSender<Update>>> = vec![Vec::new(); PARTS];
    let token = || Update::Token { token: u32::from(b'a'), logprobs: None, at: Instant::now() };
    let mut due = Instant::now();
    for part in (0..PARTS).cycle() {
        wheel[part].retain(|updates| updates.send(token()).is_ok());
        due += Duration::from_millis(10);
        loop {
            match messages.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(Message::Submit(_, updates)) => {
                    // A client that has gone is dropped from the wheel with the next token.
                    (0..3).for_each(|_| drop(updates.send(token())));
                    wheel[part].push(updates);
                }
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

/// What all readers of the client share.
#[derive(Default)]
struct Tally {
    up: AtomicU32,
    counting: AtomicBool,
    late_us: Mutex<Vec<u64>>,
}

fn read_streams(address: SocketAddr, streams: u32, time: Duration) -> anyhow::Result<ExitCode> {
    let tally = Arc::new(Tally::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let shared = tally.clone();
    runtime.block_on(async move {
        for _ in 0..streams {
            tokio::spawn(read(address, shared.clone()));
            tokio::time::sleep(Duration::from_secs(1) / ARRIVALS_PER_SECOND).await;
        }
        while shared.up.load(Relaxed) < streams {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        println!("up");
        tokio::time::sleep(INTERVAL * 2).await;
        shared.counting.store(true, Relaxed);
        tokio::time::sleep(time).await;
        shared.counting.store(false, Relaxed);
    });
    let mut late = tally.late_us.lock().expect("no reader panicked").clone();
    late.sort_unstable();
    ensure!(!late.is_empty(), "no token came");
    let ms = |permille| host::rank(&late, permille) as f64 / 1000.0;
    println!("{} {} {} {}", late.len(), ms(500), ms(990), ms(1000));
    Ok(ExitCode::SUCCESS)
}

async fn read(address: SocketAddr, tally: Arc<Tally>) {
    let mut socket = TcpStream::connect(address).await.expect("a connection");
    socket.write_all(&host::request()).await.expect("a request sent");
    let (mut buffer, mut last) = ([0; 2048], None::<Instant>);
    while let Ok(length @ 1..) = socket.read(&mut buffer).await {
        let now = Instant::now();
        if !buffer[..length].windows(8).any(|part| part == b"\"text\":\"") {
            continue;
        }
        match last.replace(now) {
            None => drop(tally.up.fetch_add(1, Relaxed)),
            Some(before) if tally.counting.load(Relaxed) => {
                let late = (now - before).saturating_sub(INTERVAL).as_micros() as u64;
                tally.late_us.lock().expect("no reader panicked").push(late);
            }
            Some(_) => {}
        }
    }
    assert!(!tally.counting.load(Relaxed), "a stream ended");
}
