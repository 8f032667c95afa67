//! Tests which processes continue after one of two engines exits: the other engine, the owner of the memory, a new
//! engine.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_memory::cuda::{Chunk, Range, Stream, granularity};

use super::worker::{self, WORKER, WorkerCommand, WorkerReply};
use crate::Error;
use crate::bench::Bench;
use crate::child_process::{ChildProcess, Environment, REPLY_LIMIT};
use crate::kernels::Kernels;

/// Pattern written to the memory before the exits.
const VALUE: u64 = 0x5111_ce00_0000_0000;
/// Run time of the victim's kernel; the victim is killed during it.
const LONG: Duration = Duration::from_secs(10);
/// Run time of the other engine's kernel; the victim exits during it.
const SHORT: Duration = Duration::from_millis(200);
/// Time limit for an engine that starts before the remaining engines have exited: an MPS server may make it wait for
/// their exit.
const NEW_ENGINE_LIMIT: Duration = Duration::from_secs(4);
/// Prefix of MPS errors, including the error of a recovering server, which accepts new clients later.
const MPS_ERROR_PREFIX: &str = "CUDA_ERROR_MPS_";

/// How an engine exits.
#[derive(Clone, Copy, Debug)]
enum ExitKind {
    Killed,
    Fault,
}

/// Returns one note per kind of exit. This process owns the memory; the engines map it.
pub fn study(bench: &Bench, engines: Environment<'_>) -> Result<Vec<String>, Error> {
    let owner = Owner::new(bench)?;
    let note = |death: ExitKind| {
        owner.describe(engines, death).unwrap_or_else(|error| format!("{}: not known: {error}", death.name()))
    };
    Ok([ExitKind::Killed, ExitKind::Fault].map(note).to_vec())
}

impl ExitKind {
    fn name(self) -> &'static str {
        match self {
            ExitKind::Killed => "after SIGKILL of an engine in a kernel",
            ExitKind::Fault => "after an illegal access of an engine",
        }
    }

    /// Makes an engine exit in this way. Returns a description.
    fn inflict(self, victim: &mut ChildProcess) -> Result<String, Error> {
        let name = self.name();
        match self {
            ExitKind::Killed => {
                worker::request(victim, &WorkerCommand::Spin { ns: nanoseconds(LONG) }, &[])?;
                victim.kill();
                Ok(name.into())
            }
            ExitKind::Fault => Ok(match worker::request(victim, &WorkerCommand::Fault, &[]) {
                Err(error) => format!("{name} ({error})"),
                Ok(_) => format!("{name}, not detected"),
            }),
        }
    }
}

struct Owner<'a> {
    bench: &'a Bench,
    range: Range,
    handle: Arc<Chunk>,
}

impl<'a> Owner<'a> {
    fn new(bench: &'a Bench) -> Result<Owner<'a>, Error> {
        let context = &bench.context;
        let handle = Chunk::create(context, granularity(bench.device)?)?;
        let mut range = Range::reserve(context, handle.bytes())?;
        range.map_with_access(0, &handle)?;
        let (kernels, stream) = (Kernels::load(context)?, Stream::new(context)?);
        kernels.write(&stream, range.at(0), handle.bytes() / 8, VALUE)?;
        stream.finish()?;
        Ok(Owner { bench, range, handle })
    }

    /// Makes one of two engines exit while the other has a kernel in flight. Describes which processes continue.
    fn describe(&self, engines: Environment<'_>, death: ExitKind) -> Result<String, Error> {
        let (mut victim, mut other) =
            (self.engine(engines, REPLY_LIMIT)?, self.engine(engines, REPLY_LIMIT)?);
        worker::request(&mut other, &WorkerCommand::Spin { ns: nanoseconds(SHORT) }, &[])?;
        let how = death.inflict(&mut victim)?;
        let goes_on = worker::request(&mut other, &WorkerCommand::Check { value: VALUE }, &[]);
        let bytes = self.handle.bytes();
        let owner = worker::check(&self.bench.context, self.range.at(0), bytes, VALUE);
        let beside = self.engine(engines, NEW_ENGINE_LIMIT);
        // An MPS server accepts no new client until the faulted client has exited.
        drop((victim, other));
        let later = self.start_new_engine(engines);
        let said = [
            ("the other engine", goes_on.map(|_| String::new())),
            ("the owner of the memory", owner.map(|()| String::new())),
            ("a new engine next to them", beside.map(|_| String::new())),
            ("an engine after both have ended", later.map(|ms| format!(" {ms:.0} ms after its start"))),
        ];
        let said = said.map(|(who, result)| match result {
            Ok(when) => format!("{who} continues{when}"),
            Err(error) => format!("{who} fails ({error})"),
        });
        Ok(format!("{how}: {}", said.join("; ")))
    }

    /// Starts an engine. Returns the milliseconds until it has read the memory.
    fn start_new_engine(&self, engines: Environment<'_>) -> Result<f64, Error> {
        let start = Instant::now();
        retry_during_recovery(REPLY_LIMIT, |left| self.engine(engines, left))?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    }

    /// Starts an engine that has mapped the memory and checked its content, each within `limit`.
    fn engine(&self, environment: Environment<'_>, limit: Duration) -> Result<ChildProcess, Error> {
        let mut peer = ChildProcess::start_with(self.bench.setup, WORKER, environment)?;
        let (fd, bytes) = (self.handle.export()?, self.handle.bytes());
        worker::request_within(&mut peer, limit, &WorkerCommand::Import { bytes }, &[fd.as_fd()])?;
        match worker::request_within(&mut peer, limit, &WorkerCommand::Check { value: VALUE }, &[])? {
            WorkerReply::Done => Ok(peer),
            WorkerReply::Ran(_) => Err(worker::unexpected_reply("answered another command")),
        }
    }
}

/// Starts something and retries while MPS recovers, for at most `limit`.
fn retry_during_recovery<T>(
    limit: Duration,
    mut start: impl FnMut(Duration) -> Result<T, Error>,
) -> Result<T, Error> {
    let first = Instant::now();
    loop {
        let left = limit.saturating_sub(first.elapsed());
        match start(left) {
            // The server does not notify when it accepts clients again.
            Err(error) if !left.is_zero() && error.to_string().contains(MPS_ERROR_PREFIX) => {
                std::thread::sleep(Duration::from_millis(50));
            }
            done => return done,
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("a kernel runs for seconds")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Retries until the outcomes are used up. Returns the number of tries and the last outcome.
    fn tried(limit: Duration, outcomes: &[Result<(), &str>]) -> (usize, Result<(), String>) {
        let mut tries = 0;
        let done = retry_during_recovery(limit, |_| {
            tries += 1;
            outcomes[(tries - 1).min(outcomes.len() - 1)].map_err(worker::unexpected_reply)
        });
        (tries, done.map_err(|error| error.to_string()))
    }

    #[test]
    fn recovering_server_is_retried_and_other_errors_are_final() {
        let recovering = Err("says: cuInit: CUDA_ERROR_MPS_SERVER_NOT_READY (not ready)");
        let minute = Duration::from_secs(60);
        assert_eq!(tried(minute, &[recovering, recovering, Ok(())]), (3, Ok(())));
        let (tries, done) = tried(minute, &[recovering, Err("ended"), Ok(())]);
        assert_eq!((tries, done.is_err()), (2, true), "{done:?}");
        let (tries, done) = tried(Duration::ZERO, &[recovering]);
        assert_eq!((tries, done.is_err()), (1, true), "{done:?}");
    }
}
