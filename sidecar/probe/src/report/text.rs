//! The report as a table of at most [`WIDTH`] columns.

use std::fmt;

use super::{Answer, CheckResult, DeviceFacts, ProbeReport};
use crate::fitness::Fitness;
use crate::machine::Machine;
use crate::statistics::Figure;

/// Width of the text in columns.
const WIDTH: usize = 100;
/// Width of a figure's name in columns.
const NAME: usize = 47;

impl fmt::Display for ProbeReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        place(out, &self.device, &self.machine)?;
        writeln!(out, "{}, sluice-gpu-probe {} ({})", self.date, self.version, self.commit)?;
        self.rows.iter().try_for_each(|row| one(out, row))?;
        expectations(out, &self.fitness)
    }
}

/// Writes what was measured: the device and its machine.
pub fn place(out: &mut fmt::Formatter<'_>, device: &DeviceFacts, machine: &Machine) -> fmt::Result {
    let driver = device.driver.as_deref().unwrap_or("unknown");
    writeln!(out, "{} ({}, {})", device.name, device.uuid, device.pci)?;
    writeln!(
        out,
        "driver {driver}, CUDA {}, compute capability {}, {} MiB",
        device.cuda,
        device.compute_capability,
        device.memory_bytes >> 20
    )?;
    let sandbox = machine.sandbox.as_ref().map(|what| format!(", in {what}")).unwrap_or_default();
    let place = format!("{}, {} CPUs, Linux {}{sandbox}", machine.cpu, machine.cpus, machine.kernel);
    paragraph(out, "", &place)
}

fn expectations(out: &mut fmt::Formatter<'_>, fitness: &Fitness) -> fmt::Result {
    writeln!(out)?;
    if !fitness.models.is_empty() {
        writeln!(
            out,
            "Decoding alone, one layer: T_T copied over the link, T_c read on the device; layers that can go"
        )?;
        writeln!(out, "without a stall, with one slot and with two:")?;
        let [name, weights, copy, compute] = ["", "weights MiB", "T_T us", "T_c us"];
        writeln!(
            out,
            "  {name:14} {weights:>12} {copy:>10} {compute:>10} {:>8} {:>5} {:>5}",
            "r", "one", "two"
        )?;
    }
    for model in &fitness.models {
        let (copy, compute, r) = (number(model.copy_us), number(model.compute_us), number(model.r));
        let (name, weights) = (&model.model, model.weight_bytes >> 20);
        let (one, two) = (model.alpha_one_slot, model.alpha_two_slots);
        let suffix = if model.fits { "" } else { "  does not fit" };
        writeln!(out, "  {name:14} {weights:>12} {copy:>10} {compute:>10} {r:>8} {one:>5} {two:>5}{suffix}")?;
    }
    paragraph(out, "This machine is ", &fitness.sentence)
}

fn one(out: &mut fmt::Formatter<'_>, row: &CheckResult) -> fmt::Result {
    writeln!(out)?;
    paragraph(out, &format!("{} ", row.id), &row.question)?;
    let (word, reason) = match &row.answer {
        Answer::Yes => ("yes", ""),
        Answer::No { reason } => ("no: ", reason.as_str()),
        Answer::Unknown { reason } => ("unknown: ", reason.as_str()),
    };
    paragraph(out, "  -> ", &format!("{word}{reason}"))?;
    figures(out, &row.figures)?;
    row.notes.iter().try_for_each(|note| paragraph(out, "  * ", note))
}

/// Writes a line for each figure under a heading, or nothing without figures.
pub fn figures(out: &mut fmt::Formatter<'_>, figures: &[Figure]) -> fmt::Result {
    if !figures.is_empty() {
        let head = ["median", "min", "max"];
        writeln!(out, "  {:NAME$} {:>11} {:>11} {:>11}  unit, samples", "", head[0], head[1], head[2])?;
    }
    figures.iter().try_for_each(|figure| line(out, figure))
}

fn line(out: &mut fmt::Formatter<'_>, figure: &Figure) -> fmt::Result {
    let Figure { name, unit, median, min, max, samples } = figure;
    let (median, min, max) = (number(*median), number(*min), number(*max));
    let mut name = name.as_str();
    if name.chars().count() > NAME {
        writeln!(out, "  {name}")?;
        name = "";
    }
    writeln!(out, "  {name:NAME$} {median:>11} {min:>11} {max:>11}  {unit}, {samples}")
}

/// Formats a number with about four digits, and with all digits before the point.
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 1000.0 || value == value.trunc() => 0,
        size if size >= 100.0 => 1,
        size if size >= 10.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

/// Writes `text` after `head`, wrapped between words and indented by the width of `head`.
pub fn paragraph(out: &mut fmt::Formatter<'_>, head: &str, text: &str) -> fmt::Result {
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
