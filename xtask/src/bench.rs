//! `cargo xtask bench`: measurements of the product on this machine.
//!
//! Verdicts go to stdout, progress to stderr. What a signal interrupts leaves no process and no folder behind.

mod budgets;
mod machine;
mod operator;
mod policies;
mod report;
mod sharing;
mod statistics;
mod wake;

use anyhow::Result;
use clap::Subcommand;

use crate::workspace::Workspace;

/// Options of `cargo xtask bench`.
#[derive(Clone, Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    command: Commands,
}

#[derive(Clone, Debug, Subcommand)]
enum Commands {
    /// Hold the product to its budgets: value, limit and pass or fail of each, in one table.
    ///
    /// The exit status is 1 if one failed. Measure on a quiet machine (docs/benchmarks.md).
    Budgets(budgets::BudgetArgs),
    /// Compare the policies under load.
    Policies(policies::PolicyArgs),
    /// Compare rules by which three tenants share a GPU, under skewed and under alternating load.
    Neighbours(sharing::NeighbourArgs),
    /// Hold the operator to its budgets: memory, restart and rest with thousands of tenants on a real API server.
    ///
    /// Pods, devices and sidecars are made up. The exit status is 1 if a limit was not kept.
    Operator(operator::OperatorArgs),
    /// Measure the first token of a tenant that was hibernated, against its bound.
    Wake(wake::WakeArgs),
}

/// Runs one benchmark; `false` if a limit was not kept. The printed table names it.
pub fn run(workspace: &Workspace, args: &BenchArgs) -> Result<bool> {
    match &args.command {
        Commands::Budgets(args) => budgets::run(workspace, args),
        Commands::Policies(args) => policies::run(workspace, args),
        Commands::Neighbours(args) => sharing::run(workspace, args),
        Commands::Operator(args) => operator::run(workspace, args),
        Commands::Wake(args) => wake::run(workspace, args),
    }
}
