//! The event queue, written down.
//!
//! A journal is text: a header that holds all of the configuration, then a line for each event with its time, the digest of
//! the state after it and the digest of the commands and notices that it led to. Replay injects the events into a fresh
//! core with no ports at all and compares digests, so an hour on a real GPU becomes a test for ever.
//!
//! ```text
//! sluice-journal 15
//! config <words>
//! params <words>
//! geometry <words>
//! start <time ns>
//! <time ns> <event> <words> = <digest of the state> <digest of the outputs>
//! ```
//! Version 14 has no digests of outputs.
//!
//! Only the last line may be cut short, where the recording ended: an event without its digest is the one that brought
//! the core down, or the process ended before it was handled.
//!
//! Words are unsigned integers in decimal; lists are preceded by their length, floats are their bits, texts are bytes.

mod events;
mod peers;
mod setup;
mod text_codec;

use std::io::{BufRead, Write};

use sluice_policy::digest::Digest;
use sluice_policy::ids::Nanos;
use sluice_policy::memory_manager::MemoryManager;
use sluice_policy::params::Params;

use crate::config::Config;
use crate::event::Event;
use crate::scheduler::Scheduler;
use text_codec::Reader;

/// First line of every journal.
const MAGIC: &str = "sluice-journal 15";
/// First line of journals without digests of outputs.
const MAGIC_14: &str = "sluice-journal 14";

/// Everything that may be set about a tenant's scheduler and policy, as a journal's header holds it: whatever a replay has to
/// know, and no size of a model.
pub fn settings(config: &Config, params: &Params) -> String {
    format!("{} {}", setup::config_words(config), setup::params_words(params))
}

/// Why a journal could not be replayed.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// It could not be read.
    #[error("line {line}: {source}")]
    Read {
        /// Line, from 1.
        line: usize,
        /// The reader's words.
        source: std::io::Error,
    },
    /// A line is not what a journal holds there.
    #[error("line {line}: {problem}")]
    Malformed {
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// The event cannot follow those before it: a line is missing, doubled or damaged.
    #[error("line {line}: this event cannot follow those before it: {problem}")]
    Impossible {
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// The configuration is refused today.
    #[error("the journal's configuration is refused: {0}")]
    Refused(String),
    /// The same events lead elsewhere.
    #[error(
        "line {line}: after this event the state's digest is {found:016x}, the journal says {expected:016x}"
    )]
    Diverged {
        /// Line, from 1.
        line: usize,
        /// Now.
        found: u64,
        /// Then.
        expected: u64,
    },
    /// The same events lead to the same state, and to other commands or notices.
    #[error(
        "line {line}: the digest of this event's commands and notices is {found:016x}, the journal says {expected:016x}"
    )]
    OtherOutputs {
        /// Line, from 1.
        line: usize,
        /// Now.
        found: u64,
        /// Then.
        expected: u64,
    },
    /// The recording ended in this event, which brings the core down now as well.
    #[error("line {line}: the recording ends here: this event brings the core down: {problem}")]
    Panicked {
        /// Line, from 1.
        line: usize,
        /// The broken invariant.
        problem: String,
    },
}

/// What a replay found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayReport {
    /// Events replayed.
    pub events: u64,
    /// Digest of the state after the last one.
    pub digest: u64,
    /// Digest of all commands and notices: equal where all decisions are.
    pub outputs: u64,
    /// How the journal ends.
    pub ending: Ending,
}

/// How a journal ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With a whole line.
    Whole,
    /// With an event whose digest is missing or cut short; it was replayed.
    NoDigest {
        /// Line, from 1.
        line: usize,
    },
    /// Within an event, which could not be replayed.
    Cut {
        /// Line, from 1.
        line: usize,
    },
}

/// Writes a journal. A writer that fails ends the recording, never the serving; the writer tells of it.
pub struct Recorder {
    out: Box<dyn Write + Send>,
    failed: bool,
}

impl core::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Recorder").field("failed", &self.failed).finish_non_exhaustive()
    }
}

impl Recorder {
    /// Records to `out`.
    pub fn new(out: Box<dyn Write + Send>) -> Self {
        Recorder { out, failed: false }
    }

    pub(crate) fn start(&mut self, now: Nanos, core: &Scheduler) {
        let manager = core.manager();
        let config = setup::config_words(core.config());
        let params = setup::params_words(manager.params());
        let geometry = setup::geometry_words(manager.geometry());
        self.line(format_args!(
            "{MAGIC}\nconfig {config}\nparams {params}\ngeometry {geometry}\nstart {}",
            now.0
        ));
    }

    /// An event, before the core sees it: one that brings the core down is the journal's last line.
    pub(crate) fn event(&mut self, now: Nanos, event: &Event) {
        let (name, words) = events::encode(event);
        self.write(format_args!("{} {name} {words} = ", now.0));
    }

    /// The state after it, and what it led to. Commands and notices were not taken yet.
    pub(crate) fn outcome(&mut self, core: &Scheduler) {
        self.line(format_args!("{} {}", core.digest(), core.outputs_digest()));
    }

    fn line(&mut self, line: core::fmt::Arguments<'_>) {
        self.write(format_args!("{line}\n"));
    }

    fn write(&mut self, text: core::fmt::Arguments<'_>) {
        if !self.failed {
            self.failed = self.out.write_fmt(text).is_err();
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // A journal is evidence, not state: a failed flush at the very end has nobody left to tell.
        let _ = self.out.flush();
    }
}

/// What an event led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Digests {
    state: u64,
    outputs: u64,
}

/// Runs a journal again and compares every digest. A last line that was cut short is replayed as far as it goes.
///
/// # Errors
/// The first line that cannot be read, is malformed, cannot follow those before it, or leads to another state than it did
/// when it was written; or the last one, if the recording ended there and the core comes down there again.
pub fn replay(input: impl BufRead) -> Result<ReplayReport, JournalError> {
    replay_with(input, |_, _| ())
}

/// The same, and calls `look` with the time and the core at the start and after every event.
///
/// # Errors
/// As [`replay`].
pub fn replay_with(
    input: impl BufRead,
    mut look: impl FnMut(Nanos, &Scheduler),
) -> Result<ReplayReport, JournalError> {
    let mut lines = Lines { input, line: 0, open_end: false, outputs: true };
    let (mut core, start) = header(&mut lines)?;
    core.start(start);
    core.take_commands();
    look(start, &core);
    let mut report = ReplayReport { events: 0, digest: core.digest(), outputs: 0, ending: Ending::Whole };
    let mut outputs = Digest::new(0);
    let mut clock = start;
    while let Some(text) = lines.next()? {
        let line = lines.line;
        let Some((body, digest)) = text.rsplit_once(" = ") else {
            return if lines.open_end {
                Ok(ReplayReport { ending: Ending::Cut { line }, ..report })
            } else {
                lines.locate(Err("no digest".into()))
            };
        };
        let (now, event) = lines.locate(parse_event(body))?;
        if let Some(problem) = check_event(&core, clock, now, &event) {
            return Err(JournalError::Impossible { line, problem });
        }
        clock = now;
        let found = match digest {
            "" if lines.open_end => replay_event(line, || handle(&mut core, now, event))?,
            _ => handle(&mut core, now, event),
        };
        look(now, &core);
        outputs.word(found.outputs);
        report.events += 1;
        (report.digest, report.outputs) = (found.state, outputs.value());
        report.ending = lines.compare(found, digest)?;
    }
    Ok(report)
}

fn handle(core: &mut Scheduler, now: Nanos, event: Event) -> Digests {
    core.handle(now, event);
    let digests = Digests { state: core.digest(), outputs: core.outputs_digest() };
    core.take_commands();
    core.take_outputs();
    digests
}

/// Runs the event that a recording ended in: its panic is what the replay is for, so it is told with its line.
fn replay_event<T>(line: usize, run: impl FnOnce() -> T) -> Result<T, JournalError> {
    // Nobody looks at the core after a panic.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        JournalError::Panicked { line, problem: text.unwrap_or("a panic without words").into() }
    })
}

fn check_event(core: &Scheduler, clock: Nanos, now: Nanos, event: &Event) -> Option<String> {
    let backwards = (now < clock).then(|| format!("it happens at {} ns, after {} ns", now.0, clock.0));
    backwards.or_else(|| core.check_event(event))
}

fn header<R: BufRead>(lines: &mut Lines<R>) -> Result<(Scheduler, Nanos), JournalError> {
    let magic = lines.next()?.unwrap_or_default();
    lines.outputs = magic != MAGIC_14;
    if lines.outputs && magic != MAGIC {
        return lines.locate(Err(format!("expected `{MAGIC}`, found `{magic}`")));
    }
    let config: Config = lines.section("config", setup::config)?;
    let params = lines.section("params", setup::params)?;
    let geometry = lines.section("geometry", setup::geometry)?;
    let start = lines.section("start", |r| r.u64())?;
    let manager =
        MemoryManager::new(params, geometry).map_err(|refused| JournalError::Refused(refused.to_string()))?;
    Ok((Scheduler::new(config, manager), Nanos(start)))
}

fn parse_event(body: &str) -> Result<(Nanos, Event), String> {
    let mut fields = body.splitn(3, ' ');
    let time = fields.next().unwrap_or_default();
    let time = time.parse().map_err(|_| format!("`{time}` is no time"))?;
    let name = fields.next().unwrap_or_default();
    let mut reader = Reader::new(fields.next().unwrap_or_default());
    let event = events::decode(name, &mut reader)?;
    reader.end()?;
    Ok((Nanos(time), event))
}

struct Lines<R> {
    input: R,
    line: usize,
    /// The line that was read last has no end: the recording was cut there, or an editor left it so.
    open_end: bool,
    /// Lines have digests of outputs.
    outputs: bool,
}

impl<R: BufRead> Lines<R> {
    fn next(&mut self) -> Result<Option<String>, JournalError> {
        let mut text = String::new();
        self.line += 1;
        let read = self.input.read_line(&mut text);
        let read = read.map_err(|source| JournalError::Read { line: self.line, source })?;
        self.open_end = !text.ends_with('\n');
        text.truncate(text.trim_end_matches(['\n', '\r']).len());
        Ok((read > 0).then_some(text))
    }

    /// Whether the line's digests are those of now. A line without an end may hold their beginning only.
    fn compare(&self, now: Digests, text: &str) -> Result<Ending, JournalError> {
        let line = self.line;
        let words = match self.outputs {
            true => format!("{} {}", now.state, now.outputs),
            false => now.state.to_string(),
        };
        if words == text {
            return Ok(Ending::Whole);
        }
        if self.open_end && words.starts_with(text) {
            return Ok(Ending::NoDigest { line });
        }
        let (state, outputs) = text.split_once(' ').unwrap_or((text, ""));
        let digest = |text: &str| self.locate(text.parse().map_err(|_| format!("`{text}` is no digest")));
        match (digest(state)?, now.state) {
            (expected, found) if expected != found => Err(JournalError::Diverged { line, found, expected }),
            _ => Err(JournalError::OtherOutputs { line, found: now.outputs, expected: digest(outputs)? }),
        }
    }

    fn locate<T>(&self, result: Result<T, String>) -> Result<T, JournalError> {
        result.map_err(|problem| JournalError::Malformed { line: self.line, problem })
    }

    fn section<T>(
        &mut self,
        name: &str,
        read: impl Fn(&mut Reader<'_>) -> Result<T, String>,
    ) -> Result<T, JournalError> {
        let text = self.next()?.unwrap_or_default();
        let parsed = match text.split_once(' ') {
            Some((found, words)) if found == name => {
                let mut reader = Reader::new(words);
                read(&mut reader).and_then(|value| reader.end().map(|()| value))
            }
            _ => Err(format!("expected `{name} …`, found `{text}`")),
        };
        self.locate(parsed)
    }
}

#[cfg(test)]
mod tests;
