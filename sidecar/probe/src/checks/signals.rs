//! Check 6: waits for words of memory that another process writes, in streams and in graphs.

use std::time::{Duration, Instant};

use super::check::Check;
use super::mps;
use super::role::Role;
use super::sharing::busy::{Busy, BusyWork};
use crate::Error;
use crate::bench::Bench;
use crate::child_process::Environment;
use crate::kernels::Kernels;
use crate::report::Answer;
use crate::results::Findings;
use crate::statistics::Figure;

mod page;
mod pair;
mod process_exit;
mod signal_path;
mod wait_process;

use page::{SEEN, STARTED, SignalPage};
use pair::{LIMIT, Pair};
use signal_path::SignalPath;
use sluice_memory::cuda::{GraphBuilder, Stream};
use wait_process::{Costs, LAYERS, WAIT_PROCESS, WaitCommand, WaitReply};

/// Check 6.
pub const CHECK: Check = Check {
    id: 6,
    name: "signals",
    text: "Do a stream and a graph wait for a word that another process writes, with no CPU between, and is a stream \
           that waits for a dead process usable again?",
    mib: 640,
    quick_mib: 160,
    limit: Duration::from_secs(110),
    ask,
};

/// Where the waiting process and the third process run. This process is always outside MPS.
#[derive(Clone, Copy)]
struct Place<'a> {
    /// Start of the names of figures.
    name: &'a str,
    /// Environment variables of the processes.
    environment: Environment<'a>,
}

/// Without MPS.
const OUTSIDE: Place<'static> = Place { name: "", environment: &[] };

/// The child process: it acts as the engine, this process as its sidecar.
pub const ROLE: (&str, Role) = (WAIT_PROCESS, wait_process::run_wait_process);

fn ask(bench: &Bench, findings: &mut Findings<'_>) -> Result<Answer, Error> {
    findings.figures.push(launches(bench)?);
    let mut held = vec![("a stream", signals(bench, SignalPath::Stream, OUTSIDE, None, findings))];
    for way in SignalPath::GRAPHS {
        let result = signals(bench, way, OUTSIDE, None, findings).and_then(|()| costs(bench, way, findings));
        held.push((way.name(), result));
    }
    let waits = |name: &str| held.iter().any(|(known, held)| *known == name && held.is_ok());
    let ways = [("a stream", SignalPath::Stream), (SignalPath::Counter.name(), SignalPath::Counter)];
    let ways: Vec<SignalPath> =
        ways.into_iter().filter(|(name, _)| waits(name)).map(|(_, way)| way).collect();
    for work in [BusyWork::Computes, BusyWork::Copies] {
        if let Err(error) = signals_next_to(bench, work, OUTSIDE, &ways, findings) {
            findings.notes.push(format!("next to a process that {}: {error}", work.name()));
        }
    }
    let captured = captured(bench);
    findings.notes.push(match captured {
        Ok(()) => "a stream's wait for a word can be captured into a graph".into(),
        Err(error) => format!("a stream's wait for a word cannot be captured into a graph: {error}"),
    });
    held.push(("the death of the other process", process_exit::study(bench, findings)));
    let in_mps = mps::with_daemon(|environment| {
        let place = Place { name: "in MPS, ", environment };
        signals_next_to(bench, BusyWork::Computes, place, &ways, findings)
    });
    if let Err(error) = in_mps {
        findings.notes.push(format!("MPS: {error}"));
    }
    Ok(conclude(&held, &mut findings.notes))
}

/// Yes if a stream waits, a graph waits in some way, and the device survives a process exit. Failures are added to the
/// notes.
fn conclude(held: &[(&str, Result<(), Error>)], notes: &mut impl Extend<String>) -> Answer {
    for (what, result) in held {
        if let Err(error) = result {
            notes.extend([format!("{what}: {error}")]);
        }
    }
    let result = |name: &str| held.iter().find(|(known, _)| *known == name).map(|(_, result)| result);
    let graph = SignalPath::GRAPHS.iter().any(|way| matches!(result(way.name()), Some(Ok(()))));
    match (result("a stream"), graph, result("the death of the other process")) {
        (Some(Ok(())), true, Some(Ok(()))) => Answer::Yes,
        (Some(Err(Error::Timeout { .. })), ..) => {
            Answer::No { reason: "a waiting stream did not see the write of the other process".into() }
        }
        (Some(Err(error @ Error::Otherwise(_))), ..) | (.., Some(Err(error @ Error::Otherwise(_)))) => {
            Answer::No { reason: error.to_string() }
        }
        (Some(Err(error)), ..) | (.., Some(Err(error))) => Answer::unknown(error),
        _ => Answer::No { reason: "a stream can wait, but a graph cannot".into() },
    }
}

/// Measures the latency from the write here to the first write of the waiting kernel, for writes by the CPU and by a
/// stream, optionally next to a third process that works.
fn signals(
    bench: &Bench,
    way: SignalPath,
    place: Place<'_>,
    busy: Option<&mut Busy>,
    findings: &mut Findings<'_>,
) -> Result<(), Error> {
    let load = busy.as_ref().map(|busy| format!(", next to a process that {}", busy.work().name()));
    let name = format!("{}{}{}", place.name, way.name(), load.unwrap_or_default());
    bench.progress(&format!("signals: {name}"));
    let mut pair = Pair::start(bench, place.environment)?;
    let samples = if busy.is_some() { bench.setup.pick(5, 100) } else { bench.setup.pick(10, 200) };
    let stream = Stream::new(&bench.context)?;
    let stream_limit = samples + 1;
    let mut times = [Vec::new(), Vec::new()];
    for value in 1..2 * stream_limit {
        let by_stream = value >= stream_limit;
        let time = signal(&mut pair, way, value, by_stream.then_some(&stream))?;
        times[usize::from(by_stream)].push(time);
    }
    busy.map_or(Ok(()), Busy::check)?;
    for (writer, times) in ["the CPU", "a stream"].iter().zip(&times) {
        // The first sample is dropped: it finds cold caches and unloaded code.
        let name = format!("{name}: write by {writer} to kernel");
        findings.figures.push(Figure::of(name, "us", &times[1..]));
    }
    pair.end()
}

/// Measures one signal. Returns the microseconds from the write of the word, by `stream` or else by the CPU.
fn signal(pair: &mut Pair, way: SignalPath, value: u64, stream: Option<&Stream>) -> Result<f64, Error> {
    let (word, wanted) = way.target(value);
    pair.page.set(SEEN, 0);
    pair.request(&WaitCommand::Arm { way, value })?;
    if pair.page.get(SEEN) != 0 {
        return Err(Error::Otherwise("did not wait for the word".into()));
    }
    let start = Instant::now();
    match stream {
        Some(stream) => stream.write_value(pair.page.address(word), wanted)?,
        None => pair.page.set(word, wanted),
    }
    pair.page.wait_for(SEEN, 1, LIMIT)?;
    Ok(start.elapsed().as_secs_f64() * 1e6)
}

/// Measures the latency again, of the working kinds of wait, while a third process keeps the device busy.
fn signals_next_to(
    bench: &Bench,
    work: BusyWork,
    place: Place<'_>,
    ways: &[SignalPath],
    findings: &mut Findings<'_>,
) -> Result<(), Error> {
    let mut busy = Busy::start(bench, work, place.environment)?;
    ways.iter().try_for_each(|way| signals(bench, *way, place, Some(&mut busy), findings))?;
    busy.stop()
}

/// Measures the cost of waits in a graph of [`LAYERS`] layers when all words are already written.
fn costs(bench: &Bench, way: SignalPath, findings: &mut Findings<'_>) -> Result<(), Error> {
    let mut pair = Pair::start(bench, &[])?;
    let reply = pair.request(&WaitCommand::Cost { way, steps: bench.setup.pick(5, 100) })?;
    let WaitReply::Costs(Costs { host_us, device_us, bare_us }) = reply else {
        return Err(Error::Peer { role: WAIT_PROCESS.into(), what: "answered another command".into() });
    };
    let name = |what| format!("{}, {LAYERS} layers: {what}", way.name());
    findings.figures.push(Figure::of(name("CPU to launch"), "us", &host_us));
    findings.figures.push(Figure::of(name("device"), "us", &device_us));
    findings.figures.push(Figure::of(name("device without waits"), "us", &bare_us));
    pair.end()
}

/// Measures, for comparison, the time from a kernel launch until its first write is visible in this process.
fn launches(bench: &Bench) -> Result<Figure, Error> {
    let kernels = Kernels::load(&bench.context)?;
    let (page, stream) = (SignalPage::new(&bench.context)?, Stream::new(&bench.context)?);
    let mut times = Vec::new();
    for _ in 0..=bench.setup.pick(10, 200) {
        page.set(STARTED, 0);
        let start = Instant::now();
        kernels.mark(&stream, page.address(STARTED), 1)?;
        page.wait_for(STARTED, 1, LIMIT)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
        stream.finish()?;
    }
    Ok(Figure::of("one process: launch to kernel", "us", &times[1..]))
}

/// Tests whether a stream's wait can be captured.
fn captured(bench: &Bench) -> Result<(), Error> {
    let (page, stream) = (SignalPage::new(&bench.context)?, Stream::new(&bench.context)?);
    let chain = GraphBuilder::capture(&stream, |stream| stream.wait_value(page.address(STARTED), 1))?;
    let ready = chain.instantiate()?;
    ready.launch(&stream)?;
    if stream.finish_within(Duration::from_millis(5)).is_ok() {
        return Err(Error::Otherwise("did not wait in the captured graph".into()));
    }
    page.set(STARTED, 1);
    Ok(stream.finish_within(LIMIT)?)
}

#[cfg(test)]
mod tests;
