//! `cargo run -p sluice-benches -- budgets`: what the product may cost, held to the limits of its design.

mod examples;
mod idle;
mod page;
mod resident;
mod tenant;
pub(super) mod verdict;

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;
use serde_json::Value;

use self::examples::Example;
use self::verdict::{BudgetCheck, Verdicts};
use super::{machine, report};
use crate::child_process::Stop;
use crate::source_tree::SourceTree;
use crate::tenant::BenchEnv;

/// Options of `cargo run -p sluice-benches -- budgets`.
#[derive(Clone, Debug, clap::Args)]
pub struct BudgetArgs {
    /// Measure this budget; may be given more than once. Absent = all.
    #[arg(long, value_enum, value_name = "NAME")]
    only: Vec<Budget>,
    /// Write machine, command, values and what they came from to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Pairs of batches for `idle-elasticity`, spread over 24 lives of both tenants.
    #[arg(long, default_value_t = 192, value_parser = clap::value_parser!(u16).range(30..=1000))]
    pairs: u16,
}

/// A budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Budget {
    /// Decisions of one step for a model of 80 layers
    PolicySpeed,
    /// The same with KV partly in the host tier
    PlacedSpeed,
    /// One decision about remapping for a model of 80 layers
    DecisionSpeed,
    /// A plan for 16 requests of a model of 80 layers
    PlannerSpeed,
    /// Tokens that the simulator makes in a second
    SimSpeed,
    /// Round trip of a step over the link, between two processes
    LinkLatency,
    /// Copies into chunks against the machine's own memcpy
    CopySpeed,
    /// What the gateway adds to a token at 2,000 tokens a second
    GatewayLatency,
    /// 10,000 paced streams: lateness and memory
    GatewayStreams,
    /// Resident memory of a sidecar apart from weights, KV and tokenizer
    ResidentMemory,
    /// Elasticity switched on with nothing to do, against the same without
    IdleElasticity,
    /// Five viewers of the live page, under load
    PageCost,
}

impl Budget {
    fn name(self) -> &'static str {
        match self {
            Budget::PolicySpeed => "policy-speed",
            Budget::PlacedSpeed => "placed-speed",
            Budget::DecisionSpeed => "decision-speed",
            Budget::PlannerSpeed => "planner-speed",
            Budget::SimSpeed => "sim-speed",
            Budget::LinkLatency => "link-latency",
            Budget::CopySpeed => "copy-speed",
            Budget::GatewayLatency => "gateway-latency",
            Budget::GatewayStreams => "gateway-streams",
            Budget::ResidentMemory => "resident-memory",
            Budget::IdleElasticity => "idle-elasticity",
            Budget::PageCost => "page-cost",
        }
    }

    /// The example that measures it; `None` = it is measured here, on tenants.
    fn example(self) -> Option<Example> {
        let (package, name, json) = match self {
            Budget::PolicySpeed => ("sluice-policy", "policy_speed", true),
            Budget::PlacedSpeed => ("sluice-policy", "placed_speed", true),
            Budget::DecisionSpeed => ("sluice-policy", "decision_speed", true),
            Budget::PlannerSpeed => ("sluice-policy", "planner_speed", true),
            Budget::SimSpeed => ("sluice-sim", "sim_speed", true),
            Budget::LinkLatency => ("sluice-link", "link_latency", true),
            Budget::CopySpeed => ("sluice-memory", "copy_speed", true),
            Budget::GatewayLatency => ("sluice-agent", "gateway_latency", false),
            Budget::GatewayStreams => ("sluice-agent", "gateway_streams", false),
            Budget::ResidentMemory | Budget::IdleElasticity | Budget::PageCost => return None,
        };
        Some(Example { package, name, json })
    }
}

/// Measures, one budget after the other; `false` if a limit was not kept.
pub fn run(tree: &SourceTree, args: &BudgetArgs) -> Result<bool> {
    let stop = Stop::on_signals()?;
    let wanted = if args.only.is_empty() { Budget::value_variants() } else { &args.only };
    // Before the benchmarks start: the load shows how quiet the machine was.
    let machine = machine::describe();
    build(tree, wanted, &stop)?;
    let bench = Bench { tree, stop, pairs: args.pairs.into() };
    let mut verdicts = Verdicts::default();
    for budget in wanted {
        eprintln!("== {}", budget.name());
        let measured = bench.measure(*budget);
        bench.stop.check()?;
        let measured = measured.unwrap_or_else(|error| {
            eprintln!("sluice-benches: {}: {error:#}", budget.name());
            vec![BudgetCheck::missing(budget.name(), &format!("{error:#}"))]
        });
        verdicts.0.extend(measured.into_iter().map(|verdict| (budget.name(), verdict)));
    }
    let report = all(tree, machine, &verdicts);
    print!("{}", machine::heading(&report));
    print!("{verdicts}");
    report::write(args.json.as_deref(), &report)?;
    Ok(verdicts.passed())
}

/// Builds all that will be measured, so that no compiler runs between measurements.
fn build(tree: &SourceTree, wanted: &[Budget], stop: &Stop) -> Result<()> {
    let examples: Vec<_> = wanted.iter().filter_map(|budget| budget.example()).collect();
    if !examples.is_empty() {
        examples::build(tree, &examples, stop)?;
    }
    if wanted.iter().any(|budget| budget.example().is_none()) {
        crate::tenant::build(tree, stop)?;
    }
    Ok(())
}

struct Bench<'a> {
    tree: &'a SourceTree,
    stop: Stop,
    pairs: usize,
}

impl Bench<'_> {
    fn measure(&self, budget: Budget) -> Result<Vec<BudgetCheck>> {
        if let Some(example) = budget.example() {
            return examples::measure(self.tree, &example, &self.stop);
        }
        let model = if budget == Budget::IdleElasticity { idle::MODEL } else { resident::MODEL };
        let world = BenchEnv::new(self.tree, &self.stop, None, model)?;
        match budget {
            Budget::IdleElasticity => idle::measure(&world, self.pairs),
            Budget::PageCost => page::measure(&world),
            _ => resident::measure(&world),
        }
    }
}

fn all(tree: &SourceTree, machine: Value, verdicts: &Verdicts) -> Value {
    let mut report = machine::report(tree, machine);
    report["passed"] = verdicts.passed().into();
    report["budgets"] = verdicts.json();
    report
}

#[cfg(test)]
mod tests {
    use cargo_metadata::MetadataCommand;
    use clap::{Args, Command, FromArgMatches};

    use super::*;

    fn parse(words: &[&str]) -> Result<BudgetArgs, clap::Error> {
        let command = BudgetArgs::augment_args(Command::new("budgets"));
        let matches = command.try_get_matches_from([&["budgets"], words].concat())?;
        BudgetArgs::from_arg_matches(&matches)
    }

    #[test]
    fn an_unknown_budget_is_refused_with_the_list_of_all() {
        let error = parse(&["--only", "nonsense"]).unwrap_err().to_string();
        for budget in Budget::value_variants() {
            assert!(error.contains(budget.name()), "{error}");
        }
        let args = parse(&["--only", "copy-speed", "--only", "resident-memory"]).unwrap();
        assert_eq!(args.only, [Budget::CopySpeed, Budget::ResidentMemory]);
    }

    #[test]
    fn names_are_the_same_on_the_command_line_and_in_the_table() {
        for budget in Budget::value_variants() {
            let value = budget.to_possible_value().unwrap();
            assert_eq!(value.get_name(), budget.name());
        }
    }

    #[test]
    fn fewer_pairs_than_the_budget_names_are_refused() {
        assert!(parse(&["--pairs", "29"]).is_err());
        assert_eq!(parse(&["--pairs", "30"]).unwrap().pairs, 30);
    }

    #[test]
    fn every_named_example_is_in_the_tree() {
        let metadata = MetadataCommand::new().no_deps().exec().unwrap();
        let packages = metadata.workspace_packages();
        let is_there = |example: &Example| {
            let package = packages.iter().find(|package| package.name == example.package);
            let mut targets = package.iter().flat_map(|package| &package.targets);
            targets.any(|target| target.is_example() && target.name == example.name)
        };
        for example in Budget::value_variants().iter().filter_map(|budget| budget.example()) {
            assert!(is_there(&example), "{example:?}");
        }
    }
}
