//! The output of a benchmark: verdicts as lines, and a file for programs.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// What must hold, as a sentence with the figures, and whether it does.
pub type Verdict = (String, bool);

/// One line each; whether all hold.
pub fn print(verdicts: &[Verdict]) -> bool {
    for (text, holds) in verdicts {
        println!("{}  {text}", if *holds { "PASS" } else { "FAIL" });
    }
    verdicts.iter().all(|(_, holds)| *holds)
}

/// For the file.
pub fn to_json(verdicts: &[Verdict]) -> Value {
    verdicts.iter().map(|(text, pass)| json!({"verdict": text, "pass": pass})).collect()
}

/// Writes `report` to `file`, if one was named.
///
/// # Errors
/// The file cannot be written.
pub fn write(file: Option<&Path>, report: &Value) -> Result<()> {
    let Some(file) = file else { return Ok(()) };
    let text = serde_json::to_string_pretty(report)? + "\n";
    std::fs::write(file, text).with_context(|| file.display().to_string())
}
