//! Drawings of a report, by the code that draws the simulator's figures.

use std::path::Path;

use anyhow::Context as _;
use sluice_kernels::cuda::Products;
use sluice_probe::statistics::Figure as Measured;
use sluice_sim::experiments::{Figure, Series};
use sluice_sim::figure;

use crate::measurements::{attention, models};
use crate::profile::Prediction;
use crate::report::BenchReport;
use crate::row::Row;

/// Draws `link.svg`, `attention.svg`, `remap.svg`, `models.svg` and `tenants.svg` into an existing folder. A drawing
/// without points is left out. Each title says what was measured where.
pub fn draw(report: &BenchReport, folder: &Path) -> anyhow::Result<()> {
    let row = |name: &str| report.rows.iter().find(|row| row.name == name);
    let drawings = [
        ("link.svg", row("link").map(link).into_iter().collect()),
        ("attention.svg", row("attention").map(attention_rates).into_iter().collect()),
        ("remap.svg", row("remap").map(remap).unwrap_or_default()),
        (
            "models.svg",
            row("models")
                .filter(|_| !report.predictions.is_empty())
                .map(|row| steps(row, &report.predictions))
                .into_iter()
                .collect(),
        ),
        (
            "tenants.svg",
            ["policies", "two-tenants"].iter().filter_map(|name| row(name)).flat_map(tenants).collect(),
        ),
    ];
    for (name, figures) in drawings {
        let mut figures: Vec<Figure> = figures;
        for figure in &mut figures {
            figure.title = format!("{}, {}", figure.title, place(report));
        }
        if figures.iter().any(|figure| figure.lines.iter().any(|line| !line.points.is_empty())) {
            let file = folder.join(name);
            figure::draw(&figures, &file).with_context(|| file.display().to_string())?;
        }
    }
    Ok(())
}

/// Returns the device and the day, and whether the figures say nothing about a GPU.
fn place(report: &BenchReport) -> String {
    let day = report.date.split('T').next().unwrap_or_default();
    let stand_in = if report.stand_in { " (a stand-in: no figure says anything about a GPU)" } else { "" };
    format!("{}{stand_in}, {day}", report.device.name)
}

/// Returns a size in KiB, or in MiB if it is a whole number of them.
fn size(kib: u64) -> String {
    if kib.is_multiple_of(1024) { format!("{} MiB", kib / 1024) } else { format!("{kib} KiB") }
}

/// Rates of copies by size.
fn link(row: &Row) -> Figure {
    let of = |prefix: &str| -> Vec<(u64, f64)> {
        let sizes = row.figures.iter().filter_map(|figure| {
            let kib = figure.name.strip_prefix(prefix)?.strip_suffix(" KiB")?.parse().ok()?;
            Some((kib, figure.median))
        });
        sizes.collect()
    };
    let names = of("to device, registered: ").iter().map(|(kib, _)| size(*kib)).collect();
    let line = |name: &str, prefix: &str| {
        let points = (1..).map(f64::from).zip(of(prefix)).map(|(at, (_, rate))| (at, rate));
        Series { name: name.into(), points: points.collect() }
    };
    Figure {
        title: "Copies between host and device".into(),
        x: "size".into(),
        y: "GB/s".into(),
        names,
        lines: vec![
            line("to device", "to device, registered: "),
            line("to host", "to host, registered: "),
            line("to device, both ways", "to device, both ways: "),
            line("to host, both ways", "to host, both ways: "),
        ],
    }
}

/// Rates of matrix products, by our kernel and by cuBLASLt, next to that of attention.
fn attention_rates(row: &Row) -> Figure {
    let kernels = [
        ("our product", attention::MATRIX),
        ("cuBLASLt", attention::CUBLASLT_MATRIX),
        ("attention", attention::PREFILL),
    ];
    let find = |name: &str| row.figures.iter().find(|figure| figure.name == name);
    let found: Vec<(&str, &Measured)> =
        kernels.iter().filter_map(|(kernel, name)| Some((*kernel, find(name)?))).collect();
    let (names, figures): (Vec<&str>, Vec<&Measured>) = found.into_iter().unzip();
    Figure {
        title: "Products of bf16 matrices, and attention of a prefill".into(),
        x: "kernel".into(),
        y: "TFLOP/s".into(),
        names: names.into_iter().map(str::to_owned).collect(),
        lines: spread(&figures),
    }
}

/// Times of each step by alpha, measured and expected.
fn remap(row: &Row) -> Vec<Figure> {
    let resident = row.figures.iter().filter_map(|figure| {
        let step = figure.name.strip_suffix(": alpha 0")?;
        Some((step, figure.median))
    });
    let lines = |step: &str, token_us: f64| {
        let of = |slots: u8, end: &str| {
            let moving = row.figures.iter().filter_map(move |figure| point(figure, step, slots, end));
            std::iter::once((0.0, token_us)).chain(moving).collect()
        };
        let pairs = [1, 2].map(|slots| {
            let name = |what: &str| format!("{what}, slots {slots}");
            [("measured", ""), ("expected", ": expected")]
                .map(|(what, end)| Series { name: name(what), points: of(slots, end) })
        });
        pairs.into_iter().flatten().collect()
    };
    let figure = |(step, token_us): (&str, f64)| Figure {
        title: format!("{step}, layers that give their memory"),
        x: "alpha".into(),
        y: "us".into(),
        names: Vec::new(),
        lines: lines(step, token_us),
    };
    resident.map(figure).collect()
}

/// Returns alpha and the time of `STEP: alpha A, slots N` with this end.
fn point(figure: &Measured, step: &str, slots: u8, end: &str) -> Option<(f64, f64)> {
    let rest = figure.name.strip_prefix(step)?.strip_prefix(": alpha ")?;
    let alpha = rest.strip_suffix(end)?.strip_suffix(&format!(", slots {slots}"))?;
    Some((alpha.parse().ok()?, figure.median))
}

/// Times of steps, measured and predicted by the simulator. With cuBLASLt there is no prediction.
fn steps(row: &Row, predictions: &[Prediction]) -> Figure {
    let line = |name: &str, of: &dyn Fn(&Prediction) -> Option<f64>| {
        let points = (1..).map(f64::from).zip(predictions.iter().map(of));
        Series { name: name.into(), points: points.filter_map(|(at, value)| Some((at, value?))).collect() }
    };
    let cublaslt = |prediction: &Prediction| {
        let name = models::step_figure(&prediction.step, Products::CublasLt);
        row.figures.iter().find(|figure| figure.name == name).map(|figure| figure.median)
    };
    Figure {
        title: "Steps of whole models".into(),
        x: "step".into(),
        y: "us".into(),
        names: predictions.iter().map(|prediction| prediction.step.replace(": ", "\n")).collect(),
        lines: vec![
            line("measured", &|prediction| Some(prediction.measured_us)),
            line("by the simulator", &|prediction| Some(prediction.predicted_us)),
            line("measured, cuBLASLt", &cublaslt),
        ],
    }
}

/// What clients of tenants saw under each policy: tokens per second, and times to the first token.
fn tenants(row: &Row) -> [Figure; 2] {
    let figure = |what: &str, unit: &str| {
        let suffix = format!(": {what}");
        let of = |figure: &&Measured| figure.unit == unit && figure.name.ends_with(&suffix);
        let found: Vec<&Measured> = row.figures.iter().filter(of).collect();
        Figure {
            title: format!("{}: {what}", row.name),
            x: "policy".into(),
            y: unit.into(),
            names: found.iter().map(|figure| figure.name.trim_end_matches(&suffix).to_owned()).collect(),
            lines: spread(&found),
        }
    };
    [figure("tokens/s", "tokens/s"), figure("time to first token, p50", "ms")]
}

/// Returns lines of the least, the median and the largest of each figure.
fn spread(figures: &[&Measured]) -> Vec<Series> {
    let line = |name: &str, value: fn(&Measured) -> f64| {
        let points = (1..).map(f64::from).zip(figures.iter().map(|figure| value(figure)));
        Series { name: name.into(), points: points.collect() }
    };
    vec![
        line("least", |figure| figure.min),
        line("median", |figure| figure.median),
        line("largest", |figure| figure.max),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_has_its_step_slots_and_end() {
        let figure = Measured::single("M: decode: alpha 3, slots 2: expected", "us", 7.0);
        assert_eq!(point(&figure, "M: decode", 2, ": expected"), Some((3.0, 7.0)));
        assert_eq!(point(&figure, "M: decode", 1, ": expected"), None);
        assert_eq!(point(&figure, "M: decode", 2, ""), None);
        assert_eq!(point(&figure, "M", 2, ": expected"), None);
    }
}
