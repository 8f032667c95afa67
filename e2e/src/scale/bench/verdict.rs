//! Values with limits, in the format of `cargo run -p sluice-benches`.

use serde_json::{Value, json};

/// A value with its limit.
#[derive(Clone, Debug)]
pub struct LimitCheck {
    /// Name of the value.
    pub name: &'static str,
    /// The value; `None` = not reached.
    pub value: Option<f64>,
    unit: &'static str,
    limit: f64,
    at_least: bool,
    detail: Value,
}

impl LimitCheck {
    /// Returns the verdict on a value that must not exceed its limit; `None` exceeds it.
    pub fn of(name: &'static str, value: Option<f64>, unit: &'static str, limit: f64) -> LimitCheck {
        LimitCheck { name, value, unit, limit, at_least: false, detail: Value::Null }
    }

    /// Returns the verdict on a value that must not exceed its limit.
    pub fn at_most(name: &'static str, value: f64, unit: &'static str, limit: f64) -> LimitCheck {
        LimitCheck::of(name, Some(value), unit, limit)
    }

    /// Returns the verdict on a value that must reach its limit.
    pub fn at_least(name: &'static str, value: f64, unit: &'static str, limit: f64) -> LimitCheck {
        LimitCheck { at_least: true, ..LimitCheck::at_most(name, value, unit, limit) }
    }

    /// Returns the same verdict with details.
    pub fn with(self, detail: Value) -> LimitCheck {
        LimitCheck { detail, ..self }
    }

    /// Whether the value is within its limit.
    pub fn passed(&self) -> bool {
        self.value.is_some_and(|value| if self.at_least { value >= self.limit } else { value <= self.limit })
    }

    /// Returns one line of the report.
    pub fn json(&self) -> Value {
        json!({"name": self.name, "value": self.value, "unit": self.unit, "limit": self.limit,
            "at_least": self.at_least, "passed": self.passed(), "detail": self.detail})
    }
}
