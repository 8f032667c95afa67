//! The report as a table of at most 100 columns.

use std::fmt;

use sluice_probe::report::text::{figures, number, paragraph, place};

use super::BenchReport;
use crate::limits::{Bound, Judged, Source, Verdict};
use crate::profile::Prediction;
use crate::row::{Outcome, Row};

impl fmt::Display for BenchReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        place(out, &self.device, &self.machine)?;
        writeln!(out, "{}, sluice-gpu-bench {} ({})", self.date, self.version, self.commit)?;
        if self.stand_in {
            let words = "The driver is the stand-in over host memory: no figure says anything about a GPU.";
            writeln!(out, "{words}")?;
        }
        self.rows.iter().try_for_each(|row| one(out, row))?;
        limits(out, &self.limits)?;
        predictions(out, &self.predictions)
    }
}

fn one(out: &mut fmt::Formatter<'_>, row: &Row) -> fmt::Result {
    writeln!(out)?;
    paragraph(out, &format!("{}: ", row.name), &row.text)?;
    match &row.outcome {
        Outcome::Measured => {}
        Outcome::Failed { reason } => paragraph(out, "  -> ", &format!("failed: {reason}"))?,
    }
    figures(out, &row.figures)?;
    row.notes.iter().try_for_each(|note| paragraph(out, "  * ", note))
}

fn predictions(out: &mut fmt::Formatter<'_>, predictions: &[Prediction]) -> fmt::Result {
    if predictions.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nSteps by the simulator's cost model on the measured machine, and as measured:")?;
    writeln!(out, "  {:50} {:>12} {:>12} {:>9}", "", "predicted us", "measured us", "ratio")?;
    predictions.iter().try_for_each(|Prediction { step, predicted_us, measured_us }| {
        let ratio = number(measured_us / predicted_us);
        let [predicted, measured] = [predicted_us, measured_us].map(|us| number(*us));
        writeln!(out, "  {step:50} {predicted:>12} {measured:>12} {ratio:>9}")
    })
}

fn limits(out: &mut fmt::Formatter<'_>, limits: &[Judged]) -> fmt::Result {
    writeln!(out, "\nLimits of the design, and targets of the kernels (*):")?;
    limits.iter().try_for_each(|limit| {
        let mark = if limit.source == Source::Target { "*" } else { " " };
        let (word, bound) = match limit.bound {
            Bound::AtMost(bound) => ("<=", bound),
            Bound::AtLeast(bound) => (">=", bound),
        };
        let value = limit.value.map_or_else(|| "-".into(), number);
        let (verdict, reason) = match &limit.verdict {
            Verdict::Met => ("met", String::new()),
            Verdict::Missed => ("missed", String::new()),
            Verdict::Open { reason } => ("open", format!(": {reason}")),
        };
        let Judged { what, unit, .. } = limit;
        writeln!(out, "{mark} {what:53} {value:>9} {word} {:>5} {unit:9} {verdict}{reason}", number(bound))
    })
}
