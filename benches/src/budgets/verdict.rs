//! A measured value against its limit, and the table of them.

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// One line of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct BudgetCheck {
    /// What was measured.
    pub name: String,
    /// The value; `None` = not measured, with the reason in `detail`.
    pub value: Option<f64>,
    /// Of value and limit.
    pub unit: String,
    /// The limit.
    pub limit: f64,
    /// The value must not be below the limit, instead of not above it.
    pub at_least: bool,
    /// Whether the limit was kept.
    pub passed: bool,
    /// Of a lower bound that keeps the limit: the upper bound that does not, so that nothing is shown.
    pub not_shown: Option<f64>,
    /// What else was measured, for the file.
    pub detail: Value,
}

impl BudgetCheck {
    /// A value that must not exceed its limit. NaN exceeds it.
    pub fn at_most(name: &str, value: f64, unit: &str, limit: f64) -> BudgetCheck {
        let (name, unit) = (name.to_owned(), unit.to_owned());
        let passed = value <= limit;
        let (at_least, not_shown, detail) = (false, None, Value::Null);
        BudgetCheck { name, value: Some(value), unit, limit, at_least, passed, not_shown, detail }
    }

    /// What was to be measured and was not.
    pub fn missing(name: &str, error: &str) -> BudgetCheck {
        BudgetCheck {
            value: None,
            passed: false,
            detail: error.into(),
            ..BudgetCheck::at_most(name, 0.0, "", 0.0)
        }
    }

    /// The same with what else was measured.
    pub fn with(self, detail: Value) -> BudgetCheck {
        BudgetCheck { detail, ..self }
    }

    /// The same for a value that is the lower bound of an interval up to `high`: it may pass because the interval is
    /// wide, which the verdict then says. Whether it passed stays as it is.
    pub fn of_interval(self, high: f64) -> BudgetCheck {
        let shown = high <= self.limit;
        BudgetCheck { not_shown: (self.passed && !shown).then_some(high), ..self }
    }

    fn word(&self) -> String {
        match (self.passed, self.not_shown) {
            (false, _) => "FAIL".into(),
            (true, None) => "pass".into(),
            (true, Some(high)) => format!("pass (not shown: upper bound {} {})", number(high), self.unit),
        }
    }

    fn json(&self, budget: &str) -> Value {
        json!({
            "budget": budget, "name": self.name, "value": self.value, "unit": self.unit, "limit": self.limit,
            "at_least": self.at_least, "passed": self.passed, "verdict": self.word(),
            "detail": self.detail,
        })
    }

    fn cells(&self, budget: &str) -> [String; 5] {
        let bound = if self.at_least { ">=" } else { "<=" };
        let (value, limit) = match self.value {
            Some(value) => (
                format!("{} {}", number(value), self.unit),
                format!("{bound} {} {}", number(self.limit), self.unit),
            ),
            None => ("not measured".into(), String::new()),
        };
        [budget.into(), self.name.clone(), value, limit, self.word()]
    }

    /// Reads a line that an example prints. With `--json`, an object with `name`, `value`, `unit`, `limit`,
    /// `passed` and perhaps `at_least`; else text as in `latency, p99   12.5 us  limit 200 us  PASS` or `latency:
    /// 12.5 us (limit 200) PASS`; what follows is a note. `None` for any other line.
    pub fn read(line: &str) -> Result<Option<BudgetCheck>> {
        if line.starts_with('{') {
            return BudgetCheck::read_json(line)
                .map(Some)
                .with_context(|| format!("an example printed {line}"));
        }
        Ok(BudgetCheck::read_text(line))
    }

    fn read_json(line: &str) -> Result<BudgetCheck> {
        let object: Value = serde_json::from_str(line)?;
        let text = |key: &str| object[key].as_str().map(str::to_owned).with_context(|| format!("no `{key}`"));
        let number = |key: &str| object[key].as_f64().with_context(|| format!("no `{key}`"));
        Ok(BudgetCheck {
            name: text("name")?,
            // What did not come about is null, and fails.
            value: if object.get("value") == Some(&Value::Null) { None } else { Some(number("value")?) },
            unit: text("unit")?,
            limit: number("limit")?,
            at_least: object["at_least"].as_bool().unwrap_or(false),
            passed: object["passed"].as_bool().context("no `passed`")?,
            not_shown: None,
            detail: object["detail"].clone(),
        })
    }

    fn read_text(line: &str) -> Option<BudgetCheck> {
        let plain = line.replace(['(', ')'], " ");
        let words: Vec<_> = plain.split_whitespace().collect();
        let at = words.iter().position(|word| *word == "limit").filter(|at| *at >= 3)?;
        let limit = words.get(at + 1)?.parse().ok()?;
        // The limit's unit may stand between them.
        let verdict_at = (at + 2..at + 4).find(|at| matches!(words.get(*at), Some(&"PASS" | &"FAIL")))?;
        let (unit, value) = (words[at - 1], words[at - 2].parse().ok()?);
        let name = words[..at - 2].join(" ");
        let note = words[verdict_at + 1..].join(" ");
        let detail = if note.is_empty() { Value::Null } else { note.into() };
        let passed = words[verdict_at] == "PASS";
        let verdict = BudgetCheck::at_most(name.trim_end_matches(':'), value, unit, limit).with(detail);
        Some(BudgetCheck { passed, ..verdict })
    }
}

/// Four significant digits, whole numbers in full.
fn number(value: f64) -> String {
    if value.fract() == 0.0 {
        return format!("{value:.0}");
    }
    let digits = 3 - value.abs().log10().floor() as i32;
    format!("{value:.*}", digits.clamp(0, 6) as usize)
}

/// Verdicts by the name of their budget, in the order in which they were measured.
#[derive(Clone, Debug, Default)]
pub struct Verdicts(pub Vec<(&'static str, BudgetCheck)>);

impl Verdicts {
    /// Whether all limits were kept.
    pub fn passed(&self) -> bool {
        self.0.iter().all(|(_, verdict)| verdict.passed)
    }

    /// For the file.
    pub fn json(&self) -> Value {
        self.0.iter().map(|(budget, verdict)| verdict.json(budget)).collect()
    }
}

impl std::fmt::Display for Verdicts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let head = ["budget", "measurement", "value", "limit", "verdict"].map(str::to_owned);
        let rows = self.0.iter().map(|(budget, verdict)| verdict.cells(budget));
        let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let [budget, name, value, limit] = [0, 1, 2, 3].map(width);
        for [a, b, c, d, e] in &rows {
            writeln!(f, "{a:<budget$}  {b:<name$}  {c:>value$}  {d:>limit$}  {e}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_examples_json_line_is_a_verdict() {
        let line = r#"{"name":"16 decodes, p50","value":41.5,"unit":"us","limit":50,"passed":true,"detail":{"p99":70}}"#;
        let read = BudgetCheck::read(line).unwrap().unwrap();
        let expected = BudgetCheck::at_most("16 decodes, p50", 41.5, "us", 50.0).with(json!({"p99": 70}));
        assert_eq!(read, expected);
        let least =
            r#"{"name":"fill","value":950,"unit":"permille","limit":900,"at_least":true,"passed":true}"#;
        assert!(BudgetCheck::read(least).unwrap().unwrap().at_least);
        let never = r#"{"name":"restart","value":null,"unit":"s","limit":60,"passed":false}"#;
        assert_eq!(BudgetCheck::read(never).unwrap().unwrap().value, None);
    }

    #[test]
    fn a_json_line_that_lacks_something_is_an_error_and_not_skipped() {
        let error = BudgetCheck::read(r#"{"name":"x","value":1,"unit":"us","passed":true}"#).unwrap_err();
        assert!(format!("{error:#}").contains("no `limit`"), "{error:#}");
        assert!(BudgetCheck::read("{").is_err());
    }

    #[test]
    fn an_examples_text_line_is_a_verdict_and_other_lines_are_none() {
        let line = "added latency per token, p99           61.20 us   limit   200.00 us   PASS";
        let expected = BudgetCheck::at_most("added latency per token, p99", 61.2, "us", 200.0);
        assert_eq!(BudgetCheck::read(line).unwrap(), Some(expected.clone()));
        let short = "added latency per token, p99: 61.2 us (limit 200) PASS";
        assert_eq!(BudgetCheck::read(short).unwrap(), Some(expected.clone()));
        let noted =
            BudgetCheck::read("added latency per token, p99 61.2 us limit 200 us PASS  (bare: 3.1 us)")
                .unwrap();
        assert_eq!(noted, Some(expected.with("bare: 3.1 us".into())));
        let failed =
            BudgetCheck::read("memory per stream  40.00 KiB  limit 32.00 KiB  FAIL").unwrap().unwrap();
        assert!(!failed.passed && failed.value == Some(40.0));
        for other in ["", "p50 1.0 us, p99 2.0 us", "PASS", "limit 3 us PASS", "a x us limit 3 us PASS"] {
            assert_eq!(BudgetCheck::read(other).unwrap(), None, "{other}");
        }
    }

    #[test]
    fn a_limit_includes_itself_and_nan_keeps_none() {
        assert!(BudgetCheck::at_most("x", 1.0, "%", 1.0).passed);
        assert!(!BudgetCheck::at_most("x", 1.01, "%", 1.0).passed);
        assert!(!BudgetCheck::at_most("x", f64::NAN, "%", 1.0).passed);
    }

    #[test]
    fn one_failure_or_one_missing_value_fails_the_table() {
        let good = BudgetCheck::at_most("x", 1.0, "us", 2.0);
        let mut verdicts = Verdicts(vec![("a", good)]);
        assert!(verdicts.passed());
        verdicts.0.push(("b", BudgetCheck::missing("y", "why")));
        assert!(!verdicts.passed());
        let table = verdicts.to_string();
        let lines: Vec<_> = table.lines().collect();
        assert!(
            lines[1].contains("1 us") && lines[1].contains("<= 2 us") && lines[1].ends_with("pass"),
            "{table}"
        );
        assert!(lines[2].contains("not measured") && lines[2].ends_with("FAIL"), "{table}");
        assert_eq!(verdicts.json()[1]["detail"], "why");
    }

    #[test]
    fn a_lower_bound_that_passes_below_an_upper_one_that_does_not_says_so_and_still_passes() {
        let word = |low, high| {
            let verdict = BudgetCheck::at_most("x", low, "%", 1.0).of_interval(high);
            let json = verdict.json("a");
            assert_eq!(json["passed"], low <= 1.0, "the exit status is that of the lower bound");
            let verdicts = Verdicts(vec![("a", verdict)]);
            assert!(verdicts.to_string().trim_end().ends_with(json["verdict"].as_str().unwrap()));
            json["verdict"].as_str().unwrap().to_owned()
        };
        assert_eq!(word(0.2, 0.9), "pass");
        assert_eq!(word(-1.5, 3.1), "pass (not shown: upper bound 3.100 %)");
        assert_eq!(word(-1.5, f64::NAN), "pass (not shown: upper bound NaN %)");
        assert_eq!(word(1.5, 3.1), "FAIL");
    }

    #[test]
    fn numbers_have_four_digits() {
        assert_eq!(
            [12.345, 1234.5, 0.012_341, 64.0, -0.5].map(number),
            ["12.35", "1234", "0.01234", "64", "-0.5000"]
        );
    }
}
