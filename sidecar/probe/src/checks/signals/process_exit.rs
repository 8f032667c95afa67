//! Tests a copy that waits for a killed process: how soon the device is usable again.

use std::time::Instant;

use sluice_memory::cuda::{Buffer, Event, PinnedMemory, Stream};

use super::page::STARTED;
use super::pair::{LIMIT, Pair};
use super::signal_path::SignalPath;
use super::wait_process::WaitCommand;
use crate::Error;
use crate::bench::Bench;
use crate::results::Findings;
use crate::statistics::Figure;

/// Far above every other value.
const FAR: u64 = 1 << 40;
/// Bytes per copy.
const BYTES: u64 = 2 << 20;

/// Times of the parts, in milliseconds.
#[derive(Default)]
struct ExitTimes {
    reaped: Vec<f64>,
    fresh: Vec<f64>,
    freed: Vec<f64>,
}

/// Repeats the test. Measured times are reported even if a part stalls.
pub fn study(bench: &Bench, findings: &mut Findings<'_>) -> Result<(), Error> {
    bench.progress("a copy that waits for a process that exits");
    let memory = (PinnedMemory::registered(&bench.context, BYTES)?, Buffer::new(&bench.context, BYTES)?);
    let mut times = ExitTimes::default();
    let held = (0..bench.setup.pick(2, 5)).try_for_each(|_| once(bench, &memory, &mut times));
    let figures = [
        ("exit of a process whose stream waits", times.reaped),
        ("another stream's copy after it, 2 MiB", times.fresh),
        ("the waiting copy, once its word is written", times.freed),
    ];
    let figures = figures.into_iter().filter(|(_, times)| !times.is_empty());
    findings.figures.extend(figures.map(|(name, times)| Figure::of(name, "ms", &times)));
    held
}

fn once(bench: &Bench, memory: &(PinnedMemory, Buffer), times: &mut ExitTimes) -> Result<(), Error> {
    let mut pair = Pair::start(bench, &[])?;
    let (stream, other) = (Stream::new(&bench.context)?, Stream::new(&bench.context)?);
    let held = stages(&mut pair, (&stream, &other), memory, times);
    // In every case, end all waits, so that the memory is unused when it is freed.
    pair.page.set(STARTED, FAR);
    let ended = stream.finish_within(LIMIT).and_then(|()| other.finish_within(LIMIT));
    held.and(ended.map_err(Error::from))
}

fn stages(
    pair: &mut Pair,
    (stream, other): (&Stream, &Stream),
    (host, device): &(PinnedMemory, Buffer),
    times: &mut ExitTimes,
) -> Result<(), Error> {
    stream.wait_value(pair.page.address(STARTED), FAR)?;
    stream.upload(device.at(0), host, 0, BYTES)?;
    let copied = Event::after(stream)?;
    // The other process waits too, for a word that is not written, so it is killed with work on the device.
    pair.request(&WaitCommand::Arm { way: SignalPath::Stream, value: FAR })?;
    let start = Instant::now();
    pair.peer.kill();
    times.reaped.push(milliseconds(start));
    let start = Instant::now();
    other.upload(device.at(0), host, 0, BYTES)?;
    let finished = other.finish_within(LIMIT);
    finished.map_err(stalled("let a copy of another stream stand still behind one that waits"))?;
    times.fresh.push(milliseconds(start));
    if copied.is_reached()? {
        return Err(Error::Otherwise("copied before the word was written".into()));
    }
    let start = Instant::now();
    pair.page.set(STARTED, FAR);
    stream.finish_within(LIMIT).map_err(stalled("did not end a wait although its word is written"))?;
    times.freed.push(milliseconds(start));
    Ok(())
}

/// Turns a timeout into a finding about the device; other errors stay the same.
fn stalled<E: Into<Error>>(what: &'static str) -> impl FnOnce(E) -> Error {
    move |error| match error.into() {
        Error::Timeout { limit, .. } => Error::Otherwise(format!("{what} ({limit:?})")),
        error => error,
    }
}

fn milliseconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sluice_memory::cuda;

    use super::*;

    #[test]
    fn only_timeouts_are_attributed_to_device() {
        let late = Error::Timeout { what: "work".into(), limit: Duration::from_secs(2) };
        assert_eq!(stalled("slept")(late).to_string(), "the device slept (2s)");
        assert!(matches!(stalled("slept")(cuda::Error::Absent("x")), Error::Cuda(cuda::Error::Absent("x"))));
    }
}
