//! Measures ten thousand paced streams (one token per second each) through one gateway; the client is a separate
//! process.
//!
//! Lateness is measured at the client: the gap between two tokens of a stream beyond the interval. Streams start at an
//! even rate, so that their tokens are due at all times of a second. A run with a bare server shows the machine's
//! share.
//!
//! `cargo run --release -p sluice-agent --example gateway_streams -- [STREAMS] [SECONDS]`

#[path = "gateway/host.rs"]
mod host;
#[path = "gateway/reader.rs"]
mod reader;
#[path = "gateway/stamped.rs"]
mod stamped;
#[path = "../tests/gateway/tiny.rs"]
mod tiny;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sluice_agent::scheduler_handle::RequestUpdate;
use sluice_common::statistics::percentile_of_sorted;
use sluice_policy::token_deposit::Pacing;

use self::host::{Server, Updates};
use self::reader::Reader;

const INTERVAL: Duration = Duration::from_secs(1);
const LATENESS_LIMIT_MS: f64 = 20.0;
const STREAM_LIMIT_KIB: f64 = 32.0;
/// New streams per second.
const ARRIVALS_PER_SECOND: u32 = 500;
/// Longest time until all streams have their first token.
const TIMEOUT: Duration = Duration::from_secs(300);

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

/// Returns the resident memory of this process, KiB.
fn resident_kib() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

fn measure(streams: u32, seconds: u64) -> anyhow::Result<ExitCode> {
    let found = measure_server(Server::Gateway, streams, seconds)?;
    let floor = measure_server(Server::Bare, streams, seconds)?;
    let (late, name) = (found.p99_ms, "lateness of paced tokens, p99");
    let late = host::print_check(name, late, LATENESS_LIMIT_MS, "ms", Some(floor.p99_ms));
    let small = host::print_check("resident memory per stream", found.kib, STREAM_LIMIT_KIB, "KiB", None);
    Ok(if late && small { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Result of a measurement.
struct StreamResult {
    p99_ms: f64,
    kib: f64,
}

fn measure_server(server: Server, streams: u32, seconds: u64) -> anyhow::Result<StreamResult> {
    let pacing = Pacing::Paced { interval_ns: u64::try_from(INTERVAL.as_nanos())? };
    let (host, opened) = host::start(server, streams, pacing)?;
    let producer = std::thread::spawn(move || produce(&opened));
    let before = resident_kib()?;
    let mut client = Command::new(std::env::current_exe()?)
        .args(["--client", &host.address.to_string(), &streams.to_string(), &seconds.to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(client.stdout.take().context("a pipe")?).lines();
    ensure!(lines.next().transpose()?.as_deref() == Some("up"), "the client could not open its streams");
    let (open, used) = (host.metrics.streams().open, processor_seconds()?);
    ensure!(server == Server::Bare || open == streams, "{open} streams are open");
    std::thread::sleep(Duration::from_secs(seconds) / 2);
    let kib = (resident_kib()?.saturating_sub(before)) as f64 / f64::from(streams);
    let figures = lines.next().transpose()?.context("the client said nothing")?;
    let used = (processor_seconds()? - used) / (INTERVAL * 2 + Duration::from_secs(seconds)).as_secs_f64();
    client.wait()?;
    let text = host.metrics.encode();
    drop(host);
    producer.join().expect("the producer does not panic");
    let figures: Vec<f64> = figures.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    let &[samples, p50, p99_ms, max] = figures.as_slice() else { anyhow::bail!("{figures:?}") };
    println!("{server:?}: {streams} streams, {samples} gaps, {used:.2} processors without the client");
    println!("  lateness p50 {p50:.2} ms, p99 {p99_ms:.2} ms, max {max:.2} ms");
    let lateness = text.lines().filter(|l| l.starts_with("sluice_write_lateness_seconds_bucket"));
    lateness.filter(|_| server == Server::Gateway).take(10).for_each(|line| println!("  {line}"));
    Ok(StreamResult { p99_ms, kib })
}

/// Returns the processor time of this process, seconds.
fn processor_seconds() -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The program's name is in brackets and may contain any character; user and system time are the 12th and 13th field
    // after it.
    let (_, fields) = stat.rsplit_once(')').context("no name")?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
    let ticks: u64 = ticks.sum::<Result<_, _>>()?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Sends each stream three tokens at once and then one per nine tenths of an interval, so that its deposit is never
/// empty and only pacing decides. Ends with the server.
fn produce(opened: &Receiver<Updates>) {
    const PARTS: usize = 90;
    let mut wheel: Vec<Vec<Updates>> = vec![Vec::new(); PARTS];
    let token = || RequestUpdate::Token { token: u32::from(b'a'), logprobs: None, at: Instant::now() };
    let mut due = Instant::now();
    for part in (0..PARTS).cycle() {
        wheel[part].retain(|updates| updates.send(token()).is_ok());
        due += Duration::from_millis(10);
        loop {
            match opened.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(updates) => {
                    // A stream whose client has disconnected is removed from the wheel at the next token.
                    (0..3).for_each(|_| drop(updates.send(token())));
                    wheel[part].push(updates);
                }
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

/// Runs the client: opens its streams at an even rate and times their tokens.
fn read_streams(address: SocketAddr, streams: u32, time: Duration) -> anyhow::Result<ExitCode> {
    let (mut reader, mut tally) = (Reader::new()?, LatenessStats::new(streams));
    let began = Instant::now();
    let request = host::request("p", 1_000_000);
    for number in 1..=streams {
        reader.open(address, &request)?;
        tally.read(&mut reader, began + Duration::from_secs(1) * number / ARRIVALS_PER_SECOND)?;
    }
    while tally.last.contains(&None) {
        tally.read(&mut reader, Instant::now() + INTERVAL / 10)?;
        ensure!(began.elapsed() < TIMEOUT, "some streams have no token");
    }
    println!("up");
    tally.read(&mut reader, Instant::now() + INTERVAL * 2)?;
    tally.is_counting = true;
    tally.read(&mut reader, Instant::now() + time)?;
    let mut late = tally.late_us;
    late.sort_unstable();
    let ms = |permille| {
        let us = percentile_of_sorted(&late, permille).context("no token came")?;
        anyhow::Ok(us as f64 / 1000.0)
    };
    println!("{} {} {} {}", late.len(), ms(500)?, ms(990)?, ms(1000)?);
    Ok(ExitCode::SUCCESS)
}

/// The client's statistics.
struct LatenessStats {
    is_counting: bool,
    /// When each stream's last token was read.
    last: Vec<Option<Instant>>,
    late_us: Vec<u64>,
}

impl LatenessStats {
    fn new(streams: u32) -> Self {
        LatenessStats { is_counting: false, last: vec![None; streams as usize], late_us: Vec::new() }
    }

    fn read(&mut self, reader: &mut Reader, until: Instant) -> anyhow::Result<()> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            reader.wait(left, |stream, tokens, at| (0..tokens).for_each(|_| self.token(stream, at.read)))?;
            if left.is_zero() {
                return Ok(());
            }
        }
    }

    fn token(&mut self, stream: usize, at: Instant) {
        if let (Some(before), true) = (self.last[stream].replace(at), self.is_counting) {
            self.late_us.push((at - before).saturating_sub(INTERVAL).as_micros() as u64);
        }
    }
}
