//! Budgets that an example of their crate measures.

use std::process::Command;

use anyhow::{Result, ensure};
use cargo_metadata::camino::Utf8Path;

use super::verdict::BudgetCheck;
use crate::child_process::{Scratch, Stop, capture};
use crate::source_tree::SourceTree;

/// An example that prints verdicts.
#[derive(Clone, Copy, Debug)]
pub struct Example {
    /// Its package.
    pub package: &'static str,
    /// Its name.
    pub name: &'static str,
    /// Whether it knows `--json`; else it prints text.
    pub json: bool,
}

/// Builds examples, all before the first one is run.
pub fn build(tree: &SourceTree, examples: &[Example], stop: &Stop) -> Result<()> {
    let mut build = vec!["build", "--release", "--locked"];
    build.extend(examples.iter().flat_map(|example| ["-p", example.package, "--example", example.name]));
    tree.cargo(&build, stop)
}

/// Runs one example. It fails by its verdicts; an example that prints none has not measured.
pub fn measure(tree: &SourceTree, example: &Example, stop: &Stop) -> Result<Vec<BudgetCheck>> {
    // What it writes to the folder for temporary files goes even if it is cut short.
    let scratch = Scratch::new()?;
    let mut command = command(&tree.target, example);
    command.env("TMPDIR", scratch.path());
    eprintln!("running {}", example.name);
    let (status, text) = capture(&mut command, stop)?;
    text.lines().for_each(|line| eprintln!("  {line}"));
    let verdicts = text.lines().map(BudgetCheck::read).filter_map(Result::transpose);
    let verdicts: Vec<_> = verdicts.collect::<Result<_>>()?;
    ensure!(!verdicts.is_empty(), "the example {} printed no verdict and ended with {status}", example.name);
    let failed = verdicts.iter().any(|verdict| !verdict.passed);
    ensure!(status.success() || failed, "the example {} ended with {status}", example.name);
    Ok(verdicts)
}

fn command(target: &Utf8Path, example: &Example) -> Command {
    let mut command = Command::new(target.join("release/examples").join(example.name));
    command.args(example.json.then_some("--json"));
    command
}
