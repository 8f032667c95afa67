//! The command that holds an operator to its budgets, at a size that a test can wait for.
// Helpers outside test functions unwrap too.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use sluice_e2e::cluster::Binaries;

/// What it measures, and whether each limit was kept; `None` without an API server to measure on.
fn measure(flags: &[&str]) -> Option<(bool, Vec<(String, bool)>)> {
    Binaries::find()?;
    let bench = Path::new(env!("CARGO_BIN_EXE_sluice-operator-budgets"));
    let given = std::env::var_os("SLUICE_BIN_DIR").filter(|folder| !folder.is_empty());
    let folder = given.map_or_else(|| bench.parent().unwrap().to_owned(), PathBuf::from);
    let operator = folder.join("sluice-operator");
    assert!(operator.is_file(), "{} is not built: `cargo build --workspace --bins`", operator.display());
    let small =
        ["--tenants", "20", "--gpus", "4", "--pools", "2", "--rest-seconds", "10", "--poll-seconds", "2"];
    let hasty = ["--status-seconds", "2", "--patience-seconds", "10"];
    let output =
        Command::new(bench).arg("--operator").arg(operator).args(small).args(hasty).args(flags).output();
    let output = output.unwrap();
    let (text, log) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr).into_owned());
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let verdicts =
        lines.filter_map(|line| Some((line["name"].as_str()?.to_owned(), line["passed"].as_bool()?)));
    let verdicts: Vec<_> = verdicts.collect();
    assert!(!verdicts.is_empty(), "{text}\n{log}");
    eprintln!("{text}\n{log}");
    Some((output.status.success(), verdicts))
}

#[test]
#[ignore = "cargo xtask nightly: a measurement"]
fn an_operator_of_few_tenants_keeps_every_budget() {
    let Some((passed, verdicts)) = measure(&[]) else { return };
    assert!(passed && verdicts.len() == 6 && verdicts.iter().all(|(_, passed)| *passed), "{verdicts:?}");
}

#[test]
#[ignore = "cargo xtask nightly: a measurement"]
fn an_operator_that_reads_no_sidecar_does_not() {
    let Some((passed, verdicts)) = measure(&["--no-polling"]) else { return };
    let failed: Vec<_> =
        verdicts.iter().filter(|(_, passed)| !passed).map(|(name, _)| name.as_str()).collect();
    assert_eq!((passed, failed), (false, vec!["restart to all observed", "least reads of a GPU at rest"]));
}
