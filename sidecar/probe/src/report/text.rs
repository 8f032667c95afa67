//! The report as a table of at most [`WIDTH`] columns.

use std::fmt;

use super::{Answer, Report, Row};
use crate::statistics::Figure;

/// Columns of the text.
const WIDTH: usize = 100;
/// Columns of a figure's name.
const NAME: usize = 48;

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (device, machine) = (&self.device, &self.machine);
        let driver = device.driver.as_deref().unwrap_or("unknown");
        writeln!(out, "{} ({}, {})", device.name, device.uuid, device.pci)?;
        writeln!(
            out,
            "driver {driver}, CUDA {}, compute capability {}, {} MiB",
            device.cuda,
            device.compute_capability,
            device.memory_bytes >> 20
        )?;
        paragraph(out, "", &format!("{}, {} CPUs, Linux {}", machine.cpu, machine.cpus, machine.kernel))?;
        writeln!(out, "{}, sluice-gpu-probe {} ({})", self.date, self.version, self.commit)?;
        self.rows.iter().try_for_each(|row| one(out, row))
    }
}

fn one(out: &mut fmt::Formatter<'_>, row: &Row) -> fmt::Result {
    writeln!(out)?;
    paragraph(out, &format!("{} ", row.id), &row.question)?;
    let (word, reason) = match &row.answer {
        Answer::Yes => ("yes", ""),
        Answer::No { reason } => ("no: ", reason.as_str()),
        Answer::Unknown { reason } => ("unknown: ", reason.as_str()),
    };
    paragraph(out, "  -> ", &format!("{word}{reason}"))?;
    if !row.figures.is_empty() {
        let head = ["median", "min", "max"];
        writeln!(out, "  {:NAME$} {:>11} {:>11} {:>11}  unit, samples", "", head[0], head[1], head[2])?;
    }
    row.figures.iter().try_for_each(|figure| line(out, figure))?;
    row.notes.iter().try_for_each(|note| paragraph(out, "  * ", note))
}

fn line(out: &mut fmt::Formatter<'_>, figure: &Figure) -> fmt::Result {
    let Figure { name, unit, median, min, max, samples } = figure;
    let (median, min, max) = (number(*median), number(*min), number(*max));
    writeln!(out, "  {name:NAME$} {median:>11} {min:>11} {max:>11}  {unit}, {samples}")
}

/// Four digits, and all of those before the point.
pub(super) fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 1000.0 || value == value.trunc() => 0,
        size if size >= 100.0 => 1,
        size if size >= 10.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

/// `text` after `head`, broken between words and indented under itself.
fn paragraph(out: &mut fmt::Formatter<'_>, head: &str, text: &str) -> fmt::Result {
    let mut line = head.to_owned();
    for word in text.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH && line.trim().len() > head.trim().len() {
            writeln!(out, "{}", line.trim_end())?;
            line = " ".repeat(head.len());
        }
        line.push_str(word);
        line.push(' ');
    }
    writeln!(out, "{}", line.trim_end())
}
