//! A run: each chosen check in its own process, then the report.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use sluice_memory::cuda::{self, Device, Driver};

use crate::Error;
use crate::args::{Part, ProbeArgs};
use crate::bench::{Bench, ProbeOptions};
use crate::checks::{self, Check};
use crate::child_process::{ChildProcess, ParentPipe};
use crate::fitness;
use crate::machine::{self, Machine};
use crate::report::{Answer, CheckResult, DeviceFacts, ProbeReport, SCHEMA};
use crate::results::{CheckEvent, Findings};

/// A check has no answer.
const UNANSWERED: u8 = 1;
/// No driver is usable.
const NO_DRIVER: u8 = 3;
/// The device does not exist.
const NO_DEVICE: u8 = 4;
/// Time limits of a run, so that it ends within one minute or 8 minutes.
const QUICK: Duration = Duration::from_secs(54);
const FULL: Duration = Duration::from_secs(450);
/// Prefix of the roles that run a check.
const CHECK_ROLE_PREFIX: &str = "row/";

/// Runs the program.
pub fn main(args: &ProbeArgs) -> ExitCode {
    if let Some(Part::Child { role, device, quick }) = &args.part {
        return exit_code(child(role, ProbeOptions { ordinal: *device, quick: *quick }).map_err(Into::into));
    }
    if args.list {
        return exit_code(print(&list()).map(|()| ExitCode::SUCCESS));
    }
    exit_code(probe(args).and_then(|report| publish(args, &report)))
}

/// Prints an error in one line and returns its exit code.
fn exit_code(outcome: anyhow::Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        eprintln!("sluice-gpu-probe: {error:#}");
        let cuda = error.downcast_ref::<cuda::Error>().or_else(|| error.downcast_ref().and_then(Error::cuda));
        ExitCode::from(match cuda {
            Some(error) if error.is_no_driver() => NO_DRIVER,
            Some(error) if error.is_no_device() => NO_DEVICE,
            _ => UNANSWERED,
        })
    })
}

fn list() -> String {
    let line = |question: &Check| {
        let Check { id, name, text, mib, quick_mib, .. } = question;
        format!("{id} {name:10} at most {mib:5} MiB, {quick_mib:4} with --quick  {text}\n")
    };
    checks::ALL.iter().map(line).collect()
}

/// Writes `text` to stdout. A closed reader, such as `head`, is not an error.
fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("standard output"),
    }
}

fn probe(args: &ProbeArgs) -> anyhow::Result<ProbeReport> {
    let (date, setup) = (machine::now(), args.setup());
    let device = facts(Device::open(Driver::open()?, args.device)?)?;
    eprintln!("{}, CUDA {}", device.name, device.cuda);
    let deadline = Instant::now() + setup.pick(QUICK, FULL);
    let mut rows: Vec<CheckResult> =
        selected_checks(args).into_iter().map(|question| check_result(setup, question, deadline)).collect();
    rows.sort_by_key(|row| row.id);
    Ok(ProbeReport {
        schema: SCHEMA,
        date,
        command: file_names(std::env::args()),
        version: env!("CARGO_PKG_VERSION").into(),
        commit: env!("SLUICE_COMMIT").into(),
        quick: args.quick,
        fitness: fitness::judge(&device, &rows),
        device,
        machine: Machine::current(),
        rows,
    })
}

/// Returns the command line with file names instead of whole paths, which would expose the machine's folders.
fn file_names(arguments: impl Iterator<Item = String>) -> Vec<String> {
    let short = |word: &str| Path::new(word).file_name().map(|name| name.to_string_lossy().into_owned());
    let named = |word: String| match word.split_once('=') {
        Some((option, path)) if option.starts_with("--") => {
            format!("{option}={}", short(path).unwrap_or_else(|| path.into()))
        }
        _ => short(&word).unwrap_or(word),
    };
    arguments.map(named).collect()
}

/// Returns the chosen checks, those that decide fitness first, because a slow device may exceed the time limit.
fn selected_checks(args: &ProbeArgs) -> Vec<&'static Check> {
    let wanted = |question: &&Check| args.only.is_empty() || args.only.contains(&question.id);
    let mut chosen: Vec<_> = checks::ALL.iter().filter(wanted).collect();
    chosen.sort_by_key(|question| (!fitness::DECIDE.contains(&question.name), question.id));
    chosen
}

fn facts(device: Device) -> Result<DeviceFacts, Error> {
    Ok(DeviceFacts {
        name: device.name()?,
        uuid: device.uuid()?,
        pci: device.pci()?,
        compute_capability: device.compute_capability()?,
        multiprocessors: device.multiprocessors()?,
        memory_bytes: device.total_bytes()?,
        driver: machine::driver_version(),
        cuda: device.driver().cuda_version(),
    })
}

/// Runs one check. Returns a result even if its process crashes.
fn check_result(setup: ProbeOptions, question: &Check, deadline: Instant) -> CheckResult {
    let start = Instant::now();
    eprintln!("{} {}: {}", question.id, question.name, question.text);
    let limit = question.limit.min(deadline.saturating_duration_since(start));
    let mut row = CheckResult {
        id: question.id,
        name: question.name.into(),
        question: question.text.into(),
        answer: Answer::Yes,
        figures: Vec::new(),
        notes: Vec::new(),
        seconds: 0.0,
    };
    let answer = run_in_child(setup, limit, &mut row);
    row.answer = answer.unwrap_or_else(|error| Answer::unknown(&error));
    row.seconds = start.elapsed().as_secs_f64();
    row
}

/// Runs a check in a child process and returns its answer. Findings are added to `row` as they arrive, so they are kept
/// if the process crashes.
fn run_in_child(setup: ProbeOptions, limit: Duration, row: &mut CheckResult) -> Result<Answer, Error> {
    if limit.is_zero() {
        return Err(Error::Timeout {
            what: "the questions before it".into(),
            limit: setup.pick(QUICK, FULL),
        });
    }
    let until = Instant::now() + limit;
    let peer = ChildProcess::start(setup, &format!("{CHECK_ROLE_PREFIX}{}", row.id))?;
    let pid = peer.pid();
    let answer = collect_results(peer, (until, limit), row);
    checks::clean_up(pid);
    answer
}

/// Receives the process's messages until its answer, then waits for its exit.
fn collect_results(
    mut peer: ChildProcess,
    (until, limit): (Instant, Duration),
    row: &mut CheckResult,
) -> Result<Answer, Error> {
    let answer = loop {
        match next_event(&mut peer, until).map_err(|error| timeout_or(error, until, limit))? {
            CheckEvent::Figure(figure) => row.figures.push(figure),
            CheckEvent::Note(note) => row.notes.push(note),
            CheckEvent::Answer(answer) => break answer,
        }
    };
    // Waiting for the exit frees its memory before the next check measures free memory. An error here does not change
    // the results.
    if let Err(error) = peer.stop() {
        eprintln!("  {error}");
    }
    Ok(answer)
}

fn next_event(peer: &mut ChildProcess, until: Instant) -> Result<CheckEvent, Error> {
    peer.recv_within(until.saturating_duration_since(Instant::now())).map(|(said, _)| said)
}

/// Reports an error after the deadline as a timeout with the check's whole limit, not with the limit of the last wait.
fn timeout_or(error: Error, until: Instant, limit: Duration) -> Error {
    let late = Instant::now() >= until;
    if late { Error::Timeout { what: "the question".into(), limit } } else { error }
}

/// Runs a child process of the probe.
fn child(role: &str, setup: ProbeOptions) -> Result<ExitCode, Error> {
    let parent = ParentPipe::open()?;
    let asks = role.strip_prefix(CHECK_ROLE_PREFIX).and_then(|id| checks::parse_id(id).ok());
    if let Some(id) = asks {
        return run_check(setup, checks::by_id(id), &parent).map(|()| ExitCode::SUCCESS);
    }
    let known = checks::ROLES.iter().find(|(name, _)| *name == role);
    let (_, part) = known.unwrap_or_else(|| panic!("the probe starts itself in known roles, not as {role}"));
    let done = part(setup, &parent);
    done.inspect_err(|error| parent.fail(error)).map(|()| ExitCode::SUCCESS)
}

/// Runs a check and sends its answer before the context is dropped, which may hang after a device fault.
fn run_check(setup: ProbeOptions, question: &Check, parent: &ParentPipe) -> Result<(), Error> {
    let bench = Bench::open(setup);
    let answer = bench.as_ref().map_err(Answer::unknown).and_then(|bench| {
        let needed = bench.need(setup.pick(question.quick_mib, question.mib));
        let asked = needed.and_then(|()| (question.ask)(bench, &mut Findings::new(parent)));
        asked.map_err(|error| Answer::unknown(&error))
    });
    parent.send(&CheckEvent::Answer(answer.unwrap_or_else(|unknown| unknown)), &[])
}

/// Writes the report to the requested places. The text is written first, so it is not lost if the file cannot be
/// written.
fn publish(args: &ProbeArgs, report: &ProbeReport) -> anyhow::Result<ExitCode> {
    let stdout = Path::new("-");
    match args.json.as_deref() {
        Some(path) if path == stdout => print(&report.json())?,
        _ => print(&report.to_string())?,
    }
    if let Some(path) = args.json.as_deref().filter(|path| *path != stdout) {
        std::fs::write(path, report.json()).with_context(|| path.display().to_string())?;
    }
    Ok(if report.is_complete() { ExitCode::SUCCESS } else { ExitCode::from(UNANSWERED) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_contains_file_names_without_directories() {
        let given =
            ["/opt/bin/sluice-gpu-probe", "--only", "1,2", "--json", "out/a.json", "--json=/x/b.json"];
        let kept = ["sluice-gpu-probe", "--only", "1,2", "--json", "a.json", "--json=b.json"];
        assert_eq!(file_names(given.map(str::to_owned).into_iter()), kept);
    }
}
