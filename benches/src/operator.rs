//! `cargo run -p sluice-benches -- operator`: an operator with thousands of tenants against the budgets of its design.
//!
//! `sluice-operator-budgets` of `e2e` measures; this builds both in release and prints the table.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::budgets::verdict::{BudgetCheck, Verdicts};
use super::{machine, report};
use crate::child_process::{Scratch, Stop, capture};
use crate::source_tree::SourceTree;

const BUDGET: &str = "operator";
const MEASURES: &str = "sluice-operator-budgets";

/// Options of `cargo run -p sluice-benches -- operator`.
#[derive(Clone, Debug, clap::Args)]
pub struct OperatorArgs {
    /// Tenants, each of one slot.
    #[arg(long, default_value_t = 5000)]
    tenants: u32,
    /// GPUs that they share.
    #[arg(long, default_value_t = 1000)]
    gpus: u32,
    /// Pools, each with its tenants in a namespace of its own.
    #[arg(long, default_value_t = 10)]
    pools: u32,
    /// How long the operator is watched at rest, seconds.
    #[arg(long, default_value_t = 600)]
    rest_seconds: u32,
    /// Time between two readings of a GPU, seconds. Default: the operator's own.
    #[arg(long)]
    poll_seconds: Option<u32>,
    /// Switch reading off: the table must fail.
    #[arg(long)]
    no_polling: bool,
    /// Keep the operator's logs in this folder.
    #[arg(long, value_name = "FOLDER")]
    logs: Option<PathBuf>,
    /// Write machine, command, values and what they came from to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl OperatorArgs {
    fn flags(&self) -> Vec<String> {
        let numbers = [
            ("--tenants", Some(self.tenants)),
            ("--gpus", Some(self.gpus)),
            ("--pools", Some(self.pools)),
            ("--rest-seconds", Some(self.rest_seconds)),
            ("--poll-seconds", self.poll_seconds),
        ];
        let numbers =
            numbers.into_iter().filter_map(|(flag, number)| Some([flag.to_owned(), number?.to_string()]));
        let off = self.no_polling.then(|| "--no-polling".to_owned());
        let logs = self.logs.iter().flat_map(|folder| ["--logs".to_owned(), folder.display().to_string()]);
        numbers.flatten().chain(off).chain(logs).collect()
    }
}

/// Measures; `false` if a limit was not kept.
pub fn run(tree: &SourceTree, args: &OperatorArgs) -> Result<bool> {
    let stop = Stop::on_signals()?;
    let machine = machine::describe();
    let kubernetes = tree.cargo_output(&["xtask", "kube", "--tier", "api", "--print"], &stop)?;
    build(tree, &stop)?;
    let release = tree.target.join("release");
    let mut command = Command::new(release.join(MEASURES));
    // What it writes to the folder for temporary files goes even if it is cut short.
    let scratch = Scratch::new()?;
    command.env("TMPDIR", scratch.path());
    command.env("SLUICE_KUBE_BIN", kubernetes.trim()).arg("--operator").arg(release.join("sluice-operator"));
    let (status, text) = capture(command.args(args.flags()), &stop)?;
    let (verdicts, notes) = read(&text)?;
    ensure!(!verdicts.0.is_empty(), "no measurement: it ended with {status}");
    let mut whole = machine::report(tree, machine);
    (whole["passed"], whole["budgets"], whole["notes"]) = (verdicts.passed().into(), verdicts.json(), notes);
    print!("{}{verdicts}", machine::heading(&whole));
    println!("\n{}", printed_result(&whole["notes"]));
    report::write(args.json.as_deref(), &whole)?;
    ensure!(status.success() || !verdicts.passed(), "it ended with {status}");
    Ok(verdicts.passed())
}

fn build(tree: &SourceTree, stop: &Stop) -> Result<()> {
    let packages = ["build", "--release", "--locked", "-p", "sluice-operator", "-p", "sluice-e2e", "--bins"];
    tree.cargo(&packages, stop)
}

/// Verdicts, and what has no limit.
fn read(text: &str) -> Result<(Verdicts, Value)> {
    let (mut verdicts, mut notes) = (Verdicts::default(), Value::Null);
    for line in text.lines() {
        let object: Value = serde_json::from_str(line).with_context(|| format!("it printed {line}"))?;
        match object.get("note") {
            Some(note) => notes = note.clone(),
            None => verdicts.0.extend(BudgetCheck::read(line)?.map(|verdict| (BUDGET, verdict))),
        }
    }
    Ok((verdicts, notes))
}

/// What has no limit, in words.
fn printed_result(notes: &Value) -> String {
    let first = &notes["first_creation"];
    let (seconds, writes) = (first["seconds"].as_f64().unwrap_or(f64::NAN), &first["writes"]);
    format!("first creation (reported): {seconds:.0} s, {writes} writes of the operator\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_is_a_table_and_notes() {
        let text = concat!(
            r#"{"name":"restart","value":null,"unit":"s","limit":60,"at_least":false,"passed":false,"detail":null}"#,
            "\n",
            r#"{"note":{"first_creation":{"seconds":12.3,"writes":7}}}"#,
        );
        let (verdicts, notes) = read(text).expect("it is read");
        assert!(!verdicts.passed() && verdicts.to_string().contains("FAIL"));
        assert_eq!(printed_result(&notes), "first creation (reported): 12 s, 7 writes of the operator\n");
        assert!(read("nonsense").is_err());
    }

    #[test]
    fn all_sizes_are_passed_on() {
        let args = OperatorArgs {
            tenants: 5,
            gpus: 1,
            pools: 1,
            rest_seconds: 9,
            poll_seconds: Some(2),
            no_polling: true,
            logs: None,
            json: None,
        };
        let flags = args.flags().join(" ");
        let expected = "--tenants 5 --gpus 1 --pools 1 --rest-seconds 9 --poll-seconds 2 --no-polling";
        assert_eq!(flags, expected);
    }
}
