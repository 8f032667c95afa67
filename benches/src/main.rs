//! `cargo run -p sluice-benches`: measurements of the product on this machine.
//!
//! Verdicts go to stdout, progress to stderr. What a signal interrupts leaves no process and no folder behind.

mod budgets;
mod child_process;
mod client;
mod machine;
mod operator;
mod policies;
mod policy_comparison;
mod report;
mod sharing;
mod sharing_bench;
mod source_tree;
mod statistics;
mod tenant;
mod wake;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::child_process::Interrupted;

use crate::source_tree::SourceTree;

/// Measure Sluice on this machine: the budgets, the policies, tenants that share a GPU, the operator, waking.
#[derive(Parser)]
#[command(name = "sluice-benches", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Commands,
}

#[derive(Subcommand)]
enum Commands {
    /// Hold the product to its budgets: value, limit and pass or fail of each, in one table.
    ///
    /// The exit status is 1 if one failed. Measure on a quiet machine (docs/benchmarks.md).
    Budgets(budgets::BudgetArgs),
    /// Compare the policies under load.
    Policies(policies::PolicyArgs),
    /// Compare rules by which three tenants share a GPU, under skewed and under alternating load.
    Sharing(sharing::SharingArgs),
    /// Hold the operator to its budgets: memory, restart and rest with thousands of tenants on a real API server.
    ///
    /// Pods, devices and sidecars are made up. The exit status is 1 if a limit was not kept.
    Operator(operator::OperatorArgs),
    /// Measure the first token of a tenant that was hibernated, against its bound.
    Wake(wake::WakeArgs),
}

fn main() -> ExitCode {
    match run(&Cli::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("sluice-benches: {error:#}");
            Interrupted::status_of(&error).map_or(ExitCode::FAILURE, ExitCode::from)
        }
    }
}

/// Runs one benchmark; `false` if a limit was not kept. The printed table names it.
fn run(command: &Commands) -> Result<bool> {
    let tree = SourceTree::open()?;
    match command {
        Commands::Budgets(args) => budgets::run(&tree, args),
        Commands::Policies(args) => policies::run(&tree, args),
        Commands::Sharing(args) => sharing::run(&tree, args),
        Commands::Operator(args) => operator::run(&tree, args),
        Commands::Wake(args) => wake::run(&tree, args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Cli;

    #[test]
    fn the_command_line_definition_is_consistent() {
        Cli::command().debug_assert();
    }
}
