//! Records the event queue as text and replays it.
//!
//! A journal has a header with the complete configuration. One line per event follows: its time, its words, the digest
//! of the state after it and the digest of the commands and outputs that it caused. Replay feeds the events to a fresh
//! scheduler without ports and compares digests, so a recording from a real GPU becomes a deterministic test.
//!
//! ```text
//! sluice-journal 16
//! config <words>
//! params <words>
//! geometry <words>
//! start <time ns>
//! <time ns> <event> <words> = <digest of the state> <digest of the outputs>
//! ```
//! Version 15 has other names for five events ([`events::current_name`]). Version 14 has no digests of outputs either.
//!
//! Only the last line may be truncated, where the recording ended. If its digest is missing, the event crashed the
//! scheduler, or the process ended before the scheduler handled it.
//!
//! Words are unsigned decimal integers. Lists and texts start with their length; floats are written as bits, texts as
//! bytes.

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
const MAGIC: &str = "sluice-journal 16";
/// First line of a version 15 journal, whose events have their former names.
const MAGIC_15: &str = "sluice-journal 15";
/// First line of a version 14 journal, which has no output digests either.
const MAGIC_14: &str = "sluice-journal 14";

/// Returns all scheduler and policy settings as a journal header encodes them, without the model's sizes.
pub fn settings(config: &Config, params: &Params) -> String {
    format!("{} {}", setup::config_words(config), setup::params_words(params))
}

/// Why a replay failed.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The journal could not be read.
    #[error("line {line}: {source}")]
    Read {
        /// Line, from 1.
        line: usize,
        /// The I/O error.
        source: std::io::Error,
    },
    /// A line is malformed.
    #[error("line {line}: {problem}")]
    Malformed {
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// The event cannot follow the previous ones: a line is missing, duplicated or damaged.
    #[error("line {line}: this event cannot follow the previous events: {problem}")]
    Impossible {
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// The current code rejects the journal's configuration.
    #[error("the journal's configuration is refused: {0}")]
    Refused(String),
    /// The same events lead to another state.
    #[error(
        "line {line}: after this event the digest of the state is {found:016x}, but the journal has {expected:016x}"
    )]
    Diverged {
        /// Line, from 1.
        line: usize,
        /// Digest now.
        found: u64,
        /// Recorded digest.
        expected: u64,
    },
    /// The same events lead to the same state, but to other commands or outputs.
    #[error(
        "line {line}: the digest of the commands and notices of this event is {found:016x}, but the journal \
         has {expected:016x}"
    )]
    OtherOutputs {
        /// Line, from 1.
        line: usize,
        /// Digest now.
        found: u64,
        /// Recorded digest.
        expected: u64,
    },
    /// The recording ended in this event, and the replay of the event panics.
    #[error("line {line}: the recording ends here, because the scheduler panics at this event: {problem}")]
    Panicked {
        /// Line, from 1.
        line: usize,
        /// The panic message: the broken invariant.
        problem: String,
    },
}

/// Result of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayReport {
    /// Events replayed.
    pub events: u64,
    /// Digest of the state after the last one.
    pub digest: u64,
    /// Digest of all commands and outputs; equal digests mean equal decisions.
    pub outputs: u64,
    /// How the journal ends.
    pub ending: Ending,
}

/// How a journal ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With a complete line.
    Whole,
    /// With an event whose digest is missing or truncated. The event was replayed.
    NoDigest {
        /// Line, from 1.
        line: usize,
    },
    /// With a truncated event, which was not replayed.
    Cut {
        /// Line, from 1.
        line: usize,
    },
}

/// Writes a journal. A write error ends the recording and never affects serving; the writer itself reports it.
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
    /// Returns a recorder that writes to `out`.
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

    /// Writes an event before the scheduler handles it, so that an event that crashes the scheduler is the last line.
    pub(crate) fn event(&mut self, now: Nanos, event: &Event) {
        let (name, words) = events::encode(event);
        self.write(format_args!("{} {name} {words} = ", now.0));
    }

    /// Writes the digests of the state and of the outputs. Call it before the commands and outputs are taken.
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
        // Serving does not depend on the journal, and `drop` has no caller to return the error to.
        let _ = self.out.flush();
    }
}

/// State and output digests after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Digests {
    state: u64,
    outputs: u64,
}

/// Replays a journal and compares every digest. A truncated last line is replayed as far as possible.
///
/// # Errors
/// Reports the first line that cannot be read, is malformed, cannot follow the previous lines, or leads to another
/// state or output than recorded; or the last line, if the recording ended there and its event panics.
pub fn replay(input: impl BufRead) -> Result<ReplayReport, JournalError> {
    replay_with(input, |_, _| ())
}

/// Replays a journal like [`replay`] and calls `look` with the time and the scheduler at the start and after every
/// event.
///
/// # Errors
/// As [`replay`].
pub fn replay_with(
    input: impl BufRead,
    mut look: impl FnMut(Nanos, &Scheduler),
) -> Result<ReplayReport, JournalError> {
    let mut lines = Lines { input, line: 0, open_end: false, outputs: true, former_names: false };
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
        let (now, event) = lines.locate(parse_event(body, lines.former_names))?;
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

/// Replays the recording's last event, which has no digest. Returns its panic as an error with the line.
fn replay_event<T>(line: usize, run: impl FnOnce() -> T) -> Result<T, JournalError> {
    // The scheduler is not used after a panic.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        JournalError::Panicked { line, problem: text.unwrap_or("a panic without a message").into() }
    })
}

fn check_event(core: &Scheduler, clock: Nanos, now: Nanos, event: &Event) -> Option<String> {
    let backwards = (now < clock)
        .then(|| format!("its time is {} ns, but the previous event is at {} ns", now.0, clock.0));
    backwards.or_else(|| core.check_event(event))
}

fn header<R: BufRead>(lines: &mut Lines<R>) -> Result<(Scheduler, Nanos), JournalError> {
    let magic = lines.next()?.unwrap_or_default();
    if ![MAGIC, MAGIC_15, MAGIC_14].contains(&magic.as_str()) {
        return lines.locate(Err(format!("expected `{MAGIC}`, found `{magic}`")));
    }
    (lines.outputs, lines.former_names) = (magic != MAGIC_14, magic != MAGIC);
    let config: Config = lines.section("config", setup::config)?;
    let params = lines.section("params", setup::params)?;
    let geometry = lines.section("geometry", setup::geometry)?;
    let start = lines.section("start", |r| r.u64())?;
    let manager =
        MemoryManager::new(params, geometry).map_err(|refused| JournalError::Refused(refused.to_string()))?;
    Ok((Scheduler::new(config, manager), Nanos(start)))
}

fn parse_event(body: &str, former_names: bool) -> Result<(Nanos, Event), String> {
    let mut fields = body.splitn(3, ' ');
    let time = fields.next().unwrap_or_default();
    let time = time.parse().map_err(|_| format!("`{time}` is not a time"))?;
    let name = fields.next().unwrap_or_default();
    let name = if former_names { events::current_name(name) } else { name };
    let mut reader = Reader::new(fields.next().unwrap_or_default());
    let event = events::decode(name, &mut reader)?;
    reader.end()?;
    Ok((Nanos(time), event))
}

struct Lines<R> {
    input: R,
    line: usize,
    /// Whether the last line read has no line end: the recording was cut there, or an editor removed it.
    open_end: bool,
    /// Whether event lines have output digests.
    outputs: bool,
    /// Whether events have the names that they had up to version 15.
    former_names: bool,
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

    /// Compares the line's digests with the current ones. An unterminated line may hold only a prefix of them.
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
        let digest = |text: &str| self.locate(text.parse().map_err(|_| format!("`{text}` is not a digest")));
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
