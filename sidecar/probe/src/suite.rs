//! Runs checks, each in a child process of its own with a time limit, and the child processes themselves.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::Error;
use crate::bench::{Bench, ProbeOptions};
use crate::checks::{self, Check, CheckId, Role};
use crate::child_process::{ChildProcess, ParentPipe};
use crate::report::{Answer, CheckResult};
use crate::results::{CheckEvent, Findings};

/// Prefix of the roles that run a check.
const CHECK_ROLE_PREFIX: &str = "row/";

/// The checks of a program, and the roles of the processes that they start.
#[derive(Clone, Copy, Debug)]
pub struct Suite {
    /// All checks, by number.
    pub checks: &'static [Check],
    /// Roles of child processes, by name.
    pub roles: &'static [&'static [(&'static str, Role)]],
}

/// The time of a whole run.
#[derive(Clone, Copy, Debug)]
pub struct RunTime {
    limit: Duration,
    deadline: Instant,
}

impl RunTime {
    /// A run that starts now.
    pub fn start(limit: Duration) -> RunTime {
        RunTime { limit, deadline: Instant::now() + limit }
    }
}

impl Suite {
    /// Returns the check with this number.
    ///
    /// # Panics
    /// If there is none.
    pub fn by_id(&self, id: CheckId) -> &'static Check {
        let found = self.checks.iter().find(|question| question.id == id);
        found.unwrap_or_else(|| panic!("there is a question {id}"))
    }

    /// Returns the number of the check that `word` names or numbers.
    ///
    /// # Errors
    /// The list of all checks, called `what`.
    pub fn parse_id(&self, what: &str, word: &str) -> Result<CheckId, String> {
        let found = self.checks.iter().find(|check| check.name == word || check.id.to_string() == word);
        found.map(|question| question.id).ok_or_else(|| {
            let names: Vec<String> =
                self.checks.iter().map(|check| format!("{} {}", check.id, check.name)).collect();
            format!("the {what} are: {}", names.join(", "))
        })
    }

    /// Returns a line for each check.
    pub fn list(&self) -> String {
        let line = |question: &Check| {
            let Check { id, name, text, mib, quick_mib, .. } = question;
            format!("{id} {name:10} at most {mib:5} MiB, {quick_mib:4} with --quick  {text}\n")
        };
        self.checks.iter().map(line).collect()
    }

    /// Runs one check. Returns a result even if its process crashes.
    pub fn result(&self, setup: ProbeOptions, question: &Check, time: RunTime) -> CheckResult {
        let start = Instant::now();
        eprintln!("{} {}: {}", question.id, question.name, question.text);
        let limit = question.limit.min(time.deadline.saturating_duration_since(start));
        let mut row = CheckResult {
            id: question.id,
            name: question.name.into(),
            question: question.text.into(),
            answer: Answer::Yes,
            figures: Vec::new(),
            notes: Vec::new(),
            seconds: 0.0,
        };
        let answer = match limit.is_zero() {
            true => Err(Error::Timeout { what: "the questions before it".into(), limit: time.limit }),
            false => run_in_child(setup, limit, &mut row),
        };
        row.answer = answer.unwrap_or_else(|error| Answer::unknown(&error));
        row.seconds = start.elapsed().as_secs_f64();
        row
    }

    /// Runs a child process of the program.
    pub fn child(&self, role: &str, setup: ProbeOptions) -> Result<ExitCode, Error> {
        let parent = ParentPipe::open()?;
        let asks = role.strip_prefix(CHECK_ROLE_PREFIX).and_then(|id| self.parse_id("questions", id).ok());
        if let Some(id) = asks {
            return run_check(setup, self.by_id(id), &parent).map(|()| ExitCode::SUCCESS);
        }
        let known = self.roles.iter().copied().flatten().find(|(name, _)| *name == role);
        let (_, part) =
            known.unwrap_or_else(|| panic!("a program starts itself in known roles, not as {role}"));
        let done = part(setup, &parent);
        done.inspect_err(|error| parent.fail(error)).map(|()| ExitCode::SUCCESS)
    }
}

/// Runs a check in a child process and returns its answer. Findings are added to `row` as they arrive, so they are kept
/// if the process crashes.
fn run_in_child(setup: ProbeOptions, limit: Duration, row: &mut CheckResult) -> Result<Answer, Error> {
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
