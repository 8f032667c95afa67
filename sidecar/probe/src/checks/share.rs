//! Check 2: a handle that is passed to another process as a file descriptor.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use sluice_memory::cuda::{Chunk, Range, Stream, granularity};

use super::check::Check;
use crate::Error;
use crate::bench::Bench;
use crate::child_process::ChildProcess;
use crate::kernels::Kernels;
use crate::report::Answer;
use crate::results::{EventSink, Findings};
use crate::statistics::Figure;

pub mod importer;
mod wrong_words;

use importer::{HeldReference, ImporterCommand, ImporterReply};
use wrong_words::wrong_words;

/// Check 2.
pub const CHECK: Check = Check {
    id: 2,
    name: "share",
    text: "Does a handle exported as a file descriptor show the same bytes in a second process, and is its memory free \
           again when the last mapping, import and descriptor have gone?",
    mib: 320,
    quick_mib: 96,
    limit: Duration::from_secs(60),
    ask,
};

/// Time limit for freed bytes to be reported as free.
const FREE_LIMIT: Duration = Duration::from_secs(3);

fn ask(bench: &Bench, findings: &mut Findings<'_>) -> Result<Answer, Error> {
    let free_before = free_without_peer(bench)?;
    let mut peer = ChildProcess::start(bench.setup, importer::ROLE.0)?;
    let mut wrong = 0;
    let chunk = granularity(bench.device)?;
    for bytes in [chunk, 32 * chunk] {
        wrong += same_bytes(bench, &mut peer, bytes)?;
    }
    findings.figures.push(Figure::single("wrong words seen through an import", "words", wrong as f64));
    costs(bench, &mut peer, &mut findings.figures)?;
    let late = when_free(bench, peer, free_before, findings)?;
    Ok(answer(wrong, &late))
}

/// Returns the free bytes without the other process, whose context takes memory too, after this process has loaded its
/// kernels.
fn free_without_peer(bench: &Bench) -> Result<u64, Error> {
    let bytes = granularity(bench.device)?;
    let (kernels, handle) = (Kernels::load(&bench.context)?, Chunk::create(&bench.context, bytes)?);
    let mut range = Range::reserve(&bench.context, bytes)?;
    range.map_with_access(0, &handle)?;
    wrong_words(bench, &kernels, &range, bytes, 0)?;
    drop((range, handle, kernels));
    Ok(bench.context.memory()?.free)
}

fn answer(wrong: u64, late: &[&str]) -> Answer {
    Answer::of(wrong == 0 && late.is_empty(), || {
        format!(
            "{wrong} words differed; the memory was not free within {FREE_LIMIT:?} after the last of: {}",
            late.join(", ")
        )
    })
}

/// Each process writes what the other one reads. Returns the number of wrong words.
fn same_bytes(bench: &Bench, peer: &mut ChildProcess, bytes: u64) -> Result<u64, Error> {
    let context = &bench.context;
    let (stream, kernels) = (Stream::new(context)?, Kernels::load(context)?);
    let handle = Chunk::create(context, bytes)?;
    let mut range = Range::reserve(context, bytes)?;
    range.map_with_access(0, &handle)?;
    let (ours, theirs) = (0x0A00_0000_0000_0000 | bytes, 0x0B00_0000_0000_0000 | bytes);
    kernels.write(&stream, range.at(0), bytes / 8, ours)?;
    stream.finish()?;
    peer.send(&ImporterCommand::Check { bytes, ours, theirs }, &[handle.export()?.as_fd()])?;
    let (reply, _) = peer.recv()?;
    let seen = wrong_words(bench, &kernels, &range, bytes, theirs)?;
    Ok(seen + expect_wrong(reply)?)
}

fn expect_wrong(reply: ImporterReply) -> Result<u64, Error> {
    match reply {
        ImporterReply::Wrong(words) => Ok(words),
        other => Err(other.unexpected()),
    }
}

/// Measures the calls of the importing process, by size.
fn costs(bench: &Bench, peer: &mut ChildProcess, figures: &mut EventSink<'_, Figure>) -> Result<(), Error> {
    let rounds = bench.setup.pick(5, 30);
    for mib in [2_u64, 64] {
        let handle = Chunk::create(&bench.context, mib << 20)?;
        let order = ImporterCommand::Time { bytes: mib << 20, rounds };
        peer.send(&order, &[handle.export()?.as_fd()])?;
        let costs = match peer.recv()?.0 {
            ImporterReply::Costs(costs) => costs,
            other => return Err(other.unexpected()),
        };
        let named = [
            ("import", costs.import),
            ("map", costs.map),
            ("set access", costs.allow),
            ("unmap", costs.unmap),
            ("release", costs.release),
        ];
        figures.extend(named.map(|(name, us)| Figure::of(format!("importer: {name}, {mib} MiB"), "us", &us)));
    }
    Ok(())
}

/// Result of dropping the last reference.
enum FreeTime {
    /// The bytes were free after this time in microseconds.
    After(f64),
    /// The bytes were not free within [`FREE_LIMIT`].
    Late,
    /// The bytes were free before: this reference does not hold memory.
    Before,
}

/// Measures, by kind of the last reference, how soon bytes are free after it is dropped. Returns the kinds after which
/// they were not. The other process is killed at the end of each round.
fn when_free(
    bench: &Bench,
    mut peer: ChildProcess,
    free_before: u64,
    findings: &mut Findings<'_>,
) -> Result<Vec<&'static str>, Error> {
    let (mut late, mut times) = (Vec::new(), [const { Vec::new() }; 4]);
    let parts =
        [HeldReference::Mapping, HeldReference::Import, HeldReference::Descriptor, HeldReference::Process];
    for round in 0..bench.setup.pick(1, 5) {
        if !late.is_empty() {
            break;
        }
        if round > 0 {
            peer = ChildProcess::start(bench.setup, importer::ROLE.0)?;
        }
        for (last, times) in parts.into_iter().zip(&mut times) {
            match freed_after(bench, &mut peer, last, free_before)? {
                FreeTime::After(us) => times.push(us),
                FreeTime::Late => late.push(last.words()),
                FreeTime::Before if round > 0 => {}
                FreeTime::Before => {
                    findings.notes.push(format!("the last {} does not hold memory", last.words()))
                }
            }
        }
    }
    let measured = parts.into_iter().zip(&times).filter(|(_, times)| !times.is_empty());
    findings.figures.extend(measured.map(|(last, times)| {
        Figure::of(format!("free again after the last {} was released", last.words()), "us", times)
    }));
    Ok(late)
}

/// The other process takes all references to a handle's memory, this one releases its own, and then the other one drops
/// them, `last` at the end.
fn freed_after(
    bench: &Bench,
    peer: &mut ChildProcess,
    last: HeldReference,
    free_before: u64,
) -> Result<FreeTime, Error> {
    let bytes = bench.setup.pick(64_u64, 256) << 20;
    let handle = Chunk::create(&bench.context, bytes)?;
    command(peer, ImporterCommand::Hold { bytes }, &[handle.export()?.as_fd()])?;
    handle.release()?;
    // Half the bytes: other processes may allocate a little. A killed process frees its context as well.
    let enough = match last {
        HeldReference::Process => free_before.saturating_sub(bytes / 2),
        _ => bench.context.memory()?.free + bytes / 2,
    };
    for part in HeldReference::WITHOUT_PROCESS
        .into_iter()
        .filter(|part| *part != last && last != HeldReference::Process)
    {
        command(peer, ImporterCommand::Drop(part), &[])?;
    }
    let held = bench.context.memory()?.free < enough;
    let start = Instant::now();
    match last {
        HeldReference::Process => peer.kill(),
        last => command(peer, ImporterCommand::Drop(last), &[])?,
    }
    if !held {
        return Ok(FreeTime::Before);
    }
    while start.elapsed() < FREE_LIMIT {
        if bench.context.memory()?.free >= enough {
            return Ok(FreeTime::After(start.elapsed().as_secs_f64() * 1e6));
        }
    }
    Ok(FreeTime::Late)
}

fn command(peer: &mut ChildProcess, order: ImporterCommand, fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
    peer.send(&order, fds)?;
    peer.recv::<ImporterReply>()?.0.done()
}
