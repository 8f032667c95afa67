//! The limits: what the design allows, and what the kernels aim at.

use serde::{Deserialize, Serialize};

use crate::measurements::attention;
use crate::row::{Row, median};

/// A limit of one figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// What is limited.
    pub what: &'static str,
    /// Name of the measurement.
    pub measurement: &'static str,
    /// The limited value.
    pub value: Value,
    /// Unit of value and bound.
    pub unit: &'static str,
    /// The bound.
    pub bound: Bound,
    /// Where the limit is stated.
    pub source: Source,
}

/// How a value follows from figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// The median of this figure, times a factor.
    Median(&'static str, f64),
    /// The median of the first figure in permille of the median of the second.
    Share(&'static str, &'static str),
    /// Nothing here measures it, for this reason.
    Missing(&'static str),
}

/// The bound of a value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The value is at most this.
    AtMost(f64),
    /// The value is at least this.
    AtLeast(f64),
}

/// Where a limit is stated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The budgets of the design.
    Design,
    /// A target of the kernels: an estimate before the first GPU.
    Target,
}

/// Whether a limit is met.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "lowercase", deny_unknown_fields)]
pub enum Verdict {
    /// It is.
    Met,
    /// It is not.
    Missed,
    /// It was not judged.
    Open {
        /// Why not.
        reason: String,
    },
}

/// A limit with its value and verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Judged {
    /// What is limited.
    pub what: String,
    /// The measured value, if there is one.
    pub value: Option<f64>,
    /// Unit of value and bound.
    pub unit: String,
    /// The bound.
    pub bound: Bound,
    /// Where the limit is stated.
    pub source: Source,
    /// The verdict.
    pub verdict: Verdict,
}

const fn design(what: &'static str, measurement: &'static str, value: Value, bound: Bound) -> Limit {
    Limit { what, measurement, value, unit: "permille", bound, source: Source::Design }
}

const fn target(what: &'static str, value: Value, unit: &'static str, bound: Bound) -> Limit {
    Limit { what, measurement: "attention", value, unit, bound, source: Source::Target }
}

/// All limits that concern a GPU.
pub const LIMITS: [Limit; 12] = [
    Limit {
        unit: "ms",
        ..design(
            "grow by 100 x 2 MiB from the own pool",
            "memory",
            Value::Median("grow by 100 x 2 MiB, access set once", 0.001),
            Bound::AtMost(10.0),
        )
    },
    design(
        "copies of 16 MiB to the device, of the link's peak",
        "link",
        Value::Share("to device, registered: 16384 KiB", "to device, registered: peak"),
        Bound::AtLeast(900.0),
    ),
    design(
        "copies of 64 MiB to the device, of the link's peak",
        "link",
        Value::Share("to device, registered: 65536 KiB", "to device, registered: peak"),
        Bound::AtLeast(900.0),
    ),
    design(
        "copies of 16 MiB to the host, of the link's peak",
        "link",
        Value::Share("to host, registered: 16384 KiB", "to host, registered: peak"),
        Bound::AtLeast(900.0),
    ),
    design(
        "copies of 64 MiB to the host, of the link's peak",
        "link",
        Value::Share("to host, registered: 65536 KiB", "to host, registered: peak"),
        Bound::AtLeast(900.0),
    ),
    design(
        "elasticity that is on but idle, of the time of a step",
        "",
        Value::Missing("needs pairs of runs of the whole product"),
        Bound::AtMost(10.0),
    ),
    target(
        "attention of a prefill, first",
        Value::Median(attention::PREFILL, 1.0),
        "TFLOP/s",
        Bound::AtLeast(150.0),
    ),
    target(
        "attention of a prefill, later",
        Value::Median(attention::PREFILL, 1.0),
        "TFLOP/s",
        Bound::AtLeast(250.0),
    ),
    target(
        "attention of a decode, of the copy bandwidth, first",
        Value::Median(attention::DECODE_SHARE, 1.0),
        "permille",
        Bound::AtLeast(600.0),
    ),
    target(
        "attention of a decode, of the copy bandwidth, later",
        Value::Median(attention::DECODE_SHARE, 1.0),
        "permille",
        Bound::AtLeast(750.0),
    ),
    target(
        "RMSNorm, of the copy bandwidth",
        Value::Median(attention::NORM_SHARE, 1.0),
        "permille",
        Bound::AtLeast(800.0),
    ),
    target(
        "RoPE and the write of K and V, of the copy bandwidth",
        Value::Median(attention::ROPE_SHARE, 1.0),
        "permille",
        Bound::AtLeast(800.0),
    ),
];

/// Judges all limits. The stand-in for the driver has no speed, so no limit is judged there.
pub fn judge(rows: &[Row], stand_in: bool) -> Vec<Judged> {
    LIMITS.iter().map(|limit| one(limit, rows, stand_in)).collect()
}

fn one(limit: &Limit, rows: &[Row], stand_in: bool) -> Judged {
    let measured = value(limit, rows);
    let verdict = match &measured {
        Err(reason) => Verdict::Open { reason: reason.clone() },
        Ok(_) if stand_in => Verdict::Open { reason: "the stand-in for the driver has no speed".into() },
        Ok(value) if limit.bound.holds(*value) => Verdict::Met,
        Ok(_) => Verdict::Missed,
    };
    Judged {
        what: limit.what.into(),
        value: measured.ok(),
        unit: limit.unit.into(),
        bound: limit.bound,
        source: limit.source,
        verdict,
    }
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Bound::AtMost(bound) => value <= bound,
            Bound::AtLeast(bound) => value >= bound,
        }
    }
}

fn value(limit: &Limit, rows: &[Row]) -> Result<f64, String> {
    let figure =
        |name: &str| median(rows, limit.measurement, name).ok_or_else(|| "it was not measured".into());
    match limit.value {
        Value::Median(name, factor) => figure(name).map(|median: f64| median * factor),
        Value::Share(part, whole) => Ok(figure(part)? / figure(whole)? * 1000.0),
        Value::Missing(reason) => Err(reason.into()),
    }
}

#[cfg(test)]
mod tests {
    use sluice_probe::statistics::Figure;

    use super::*;
    use crate::row::Outcome;

    fn row(name: &str, figures: Vec<Figure>) -> Row {
        let (text, notes) = (String::new(), Vec::new());
        Row { name: name.into(), text, outcome: Outcome::Measured, figures, notes, seconds: 0.0 }
    }

    fn verdict(judged: &[Judged], what: &str) -> Verdict {
        judged
            .iter()
            .find(|limit| limit.what.starts_with(what))
            .expect("there is such a limit")
            .verdict
            .clone()
    }

    #[test]
    fn growing_may_take_ten_milliseconds() {
        let grown = |us: f64| {
            let figure = Figure::single("grow by 100 x 2 MiB, access set once", "us", us);
            verdict(&judge(&[row("memory", vec![figure])], false), "grow")
        };
        assert_eq!(grown(9_999.0), Verdict::Met);
        assert_eq!(grown(10_001.0), Verdict::Missed);
    }

    #[test]
    fn copies_of_16_mib_have_to_reach_nine_tenths_of_the_peak() {
        let of = |rate: f64| {
            let figures = vec![
                Figure::single("to device, registered: peak", "GB/s", 50.0),
                Figure::single("to device, registered: 16384 KiB", "GB/s", rate),
            ];
            verdict(&judge(&[row("link", figures)], false), "copies of 16 MiB to the device")
        };
        assert_eq!((of(45.1), of(44.9)), (Verdict::Met, Verdict::Missed));
    }

    #[test]
    fn a_stand_in_meets_and_misses_nothing() {
        let figure = Figure::single(attention::DECODE_SHARE, "permille", 999.0);
        let rows = [row("attention", vec![figure])];
        assert_eq!(verdict(&judge(&rows, false), "attention of a decode"), Verdict::Met);
        let judged = judge(&rows, true);
        assert!(judged.iter().all(|limit| matches!(limit.verdict, Verdict::Open { .. })), "{judged:?}");
        let decode = judged.iter().find(|limit| limit.what.starts_with("attention of a decode"));
        assert_eq!(decode.and_then(|limit| limit.value), Some(999.0), "the value is there all the same");
    }
}
