//! The command `replay`.

use anyhow::{Context, Result};
use sluice_scheduler::journal::{self, Ending, JournalError};

use crate::args::ReplayArgs;
use crate::output::print;

/// Injects a journal's events and compares digests. Returns `false` at the first difference.
pub fn replay(args: &ReplayArgs) -> Result<bool> {
    let name = args.journal.display().to_string();
    let file = std::fs::File::open(&args.journal).with_context(|| name.clone())?;
    match journal::replay(std::io::BufReader::new(file)) {
        Ok(report) => {
            let (events, digest) = (report.events, report.digest);
            let agree =
                format!("{name}: {events} events, every digest matches, the last one is {digest:016x}");
            print(&(agree + &describe_ending(report.ending)))?;
            Ok(true)
        }
        Err(
            error @ (JournalError::Diverged { .. }
            | JournalError::OtherOutputs { .. }
            | JournalError::Panicked { .. }),
        ) => {
            print(&format!("{name}: {error}"))?;
            if let Some(line) = error_line(&error) {
                print(&format!("first difference: {}", describe_event(args, line)?))?;
            }
            Ok(false)
        }
        Err(error) => Err(error).context(name),
    }
}

fn describe_ending(ending: Ending) -> String {
    match ending {
        Ending::Whole => String::new(),
        Ending::NoDigest { line } => {
            format!("\nthe last line, {line}, was replayed, but its digest is incomplete")
        }
        Ending::Cut { line } => format!("\nthe last line, {line}, is incomplete and was not replayed"),
    }
}

fn error_line(error: &JournalError) -> Option<usize> {
    match error {
        JournalError::Diverged { line, .. }
        | JournalError::OtherOutputs { line, .. }
        | JournalError::Panicked { line, .. } => Some(*line),
        _ => None,
    }
}

/// Describes the event: its time and name, and the number of earlier events.
fn describe_event(args: &ReplayArgs, line: usize) -> Result<String> {
    let text = std::fs::read_to_string(&args.journal)?;
    let event = text.lines().nth(line - 1).unwrap_or_default();
    let mut words = event.split(' ');
    let (time, name) = (words.next().unwrap_or("?"), words.next().unwrap_or("?"));
    Ok(format!(
        "event {} (`{name}` at {time} ns), {} digests before it match",
        line - HEADER,
        line - HEADER - 1
    ))
}

/// Number of lines before the first event.
const HEADER: usize = 5;
