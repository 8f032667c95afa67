//! `cargo xtask nightly`: what takes too long, or fails too seldom, for every change.

use std::process::Command;
use std::time::Instant;

use anyhow::Result;
use cargo_metadata::camino::Utf8Path;
use clap::{Args, ValueEnum};

use crate::gpu_pack::{self, GpuPackArgs};
use crate::soak::{self, SoakArgs};
use crate::workspace::Workspace;
use crate::{deny, fuzz, process, test_runner};

/// A part of the nightly run, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Licences, bans and sources of dependencies, and advisories: new ones come without a change of the tree.
    Advisories,
    /// Digests of all decisions in 500 seeds of the soak against the committed ones.
    Decisions,
    /// The soak in virtual time with `--seeds` seeds.
    Seeds,
    /// 3000 random groups of tenants that lend and borrow, and 3000 tenants whose engines crash.
    Tenants,
    /// Every mutant of the CUDA kernels against the kernels' tests, and the longest of those tests.
    Mutants,
    /// SmolLM2 by every CUDA kernel, interpreted, against the CPU engine; fetches the model.
    Smollm2,
    /// The pack for a machine with a GPU: built, and run over the stand-in for a driver.
    GpuPack,
    /// The invariance of steps by CUDA kernels in every format, interpreted.
    Splits,
    /// The tests of memory decisions with tenants on a GPU, interpreted.
    GpuTenants,
    /// The fuzz targets, `--fuzz-seconds` each.
    Fuzz,
    /// Real tenants of one GPU under random load, kills and slow links, `--seconds` for each number of tenants.
    Soak,
    /// The end-to-end tests that are too long for every change: those marked `#[ignore]`.
    EndToEnd,
    /// The product's budgets; measure on a quiet machine.
    Budgets,
}

/// Options of `cargo xtask nightly`.
#[derive(Args)]
pub struct NightlyArgs {
    /// Run these parts alone, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART")]
    only: Vec<Part>,
    /// Seeds of the part `seeds`.
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// How long each target of the part `fuzz` runs, seconds.
    #[arg(long, default_value_t = 600)]
    fuzz_seconds: u32,
    /// Length of the load of the part `soak` for each number of tenants, seconds.
    #[arg(long, default_value_t = 180)]
    seconds: u64,
}

/// Runs all parts, also after one has failed, and names those that did; `true` if none did.
pub fn run(workspace: &Workspace, args: &NightlyArgs) -> Result<bool> {
    let parts = if args.only.is_empty() { Part::value_variants() } else { &args.only };
    let mut failed = Vec::new();
    for part in parts {
        let (name, start) = (part.name(), Instant::now());
        println!("== {name}");
        let passed = part.run(workspace, args).unwrap_or_else(|error| {
            eprintln!("xtask: {name}: {error:#}");
            false
        });
        let verdict = if passed { "passed" } else { "FAILED" };
        println!("== {name} {verdict} after {:.1} s", start.elapsed().as_secs_f64());
        failed.extend((!passed).then_some(name));
    }
    failed.iter().for_each(|name| println!("FAILED: {name}; again: cargo xtask nightly --only {name}"));
    Ok(failed.is_empty())
}

impl Part {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    fn run(self, workspace: &Workspace, args: &NightlyArgs) -> Result<bool> {
        let root = &workspace.root;
        match self {
            Part::Advisories => deny::check(root),
            Part::Decisions => DECISIONS.pass(root),
            Part::Seeds => process::passes(seeds(root, args.seeds)),
            Part::Tenants => {
                let groups = process::passes(with(root, &GROUPS, ("PROPTEST_CASES", "3000")))?;
                Ok(process::passes(with(root, &CRASHES, ("SLUICE_TENANTS", "3000")))? && groups)
            }
            Part::Mutants => MUTANTS.pass(root),
            Part::Smollm2 => Ok(process::passes(fetch_smollm2(root))? && SMOLLM2.pass(root)?),
            Part::GpuPack => gpu_pack::run(workspace, &GpuPackArgs::over_the_standin()).map(|()| true),
            Part::Splits => SPLITS.pass(root),
            Part::GpuTenants => {
                Ok(process::passes(process::cargo(root, &ENGINE))? && GPU_TENANTS.pass(root)?)
            }
            Part::Fuzz => fuzz::part(root, args.fuzz_seconds),
            Part::Soak => soak::run(workspace, &SoakArgs::of_seconds(args.seconds)),
            Part::EndToEnd => test_runner::run_ignored(workspace),
            Part::Budgets => process::passes(process::cargo(root, &BUDGETS)),
        }
    }
}

/// Ignored tests that a part runs by their names.
struct IgnoredTests {
    package: &'static str,
    /// The test target.
    target: &'static str,
    profile: &'static str,
    /// Modules and function of each.
    names: &'static [&'static str],
}

impl IgnoredTests {
    fn pass(&self, root: &Utf8Path) -> Result<bool> {
        let mut command = process::cargo(root, &["test", "--locked", "--profile", self.profile]);
        command.args(["-p", self.package, "--test", self.target, "--", "--ignored"]).args(self.names);
        process::passes(command)
    }
}

const DECISIONS: IgnoredTests = IgnoredTests {
    package: "sluice-sim",
    target: "main",
    profile: "release",
    names: &["decisions::decisions_of_many_seeds_match_committed_digests"],
};
const MUTANTS: IgnoredTests = of_kernels(&[
    "cuda::mutants::every_mutant_is_caught_unless_it_is_listed",
    "cuda::long_context::a_layer_of_wide_heads_at_the_last_position_passes_every_check",
]);
const SMOLLM2: IgnoredTests =
    of_kernels(&["cuda::smollm2::smollm2_answers_all_questions_as_the_cpu_does_by_every_kernel"]);
const SPLITS: IgnoredTests =
    of_kernels(&["cuda::split_steps::every_format_has_the_same_bits_under_every_split_of_the_work"]);
/// The programs that the test below starts.
const ENGINE: [&str; 5] = ["build", "--locked", "-p", "sluice-kernels", "--bins"];
const GPU_TENANTS: IgnoredTests = IgnoredTests {
    package: "sluice-agent",
    target: "system",
    profile: "test",
    names: &["gpu::more_tests_of_the_host_hold_on_a_gpu_with_graphs_and_without"],
};

const fn of_kernels(names: &'static [&'static str]) -> IgnoredTests {
    IgnoredTests { package: "sluice-kernels", target: "main", profile: "release", names }
}

const GROUPS: [&str; 8] =
    ["test", "--locked", "--release", "-p", "sluice-policy", "--test", "main", "multi_tenant"];
const CRASHES: [&str; 8] =
    ["test", "--locked", "--release", "-p", "sluice-sim", "--test", "main", "engine_crashes"];
const BUDGETS: [&str; 6] = ["run", "--locked", "-p", "sluice-benches", "--", "budgets"];

/// Writes the model if it is absent.
fn fetch_smollm2(root: &Utf8Path) -> Command {
    let mut command = Command::new(root.join("scripts/fetch-smollm2.py"));
    command.arg("--out").arg(root.join(".cache/models/smollm2"));
    command
}

fn seeds(root: &Utf8Path, seeds: u64) -> Command {
    let words = ["run", "--locked", "--release", "-p", "sluice-sim", "--", "soak", "--seeds"];
    let mut command = process::cargo(root, &words);
    command.arg(seeds.to_string());
    command
}

fn with(root: &Utf8Path, words: &[&str], (name, value): (&str, &str)) -> Command {
    let mut command = process::cargo(root, words);
    command.env(name, value);
    command
}

#[cfg(test)]
mod tests {
    use cargo_metadata::camino::Utf8Path;

    use super::*;

    fn source(path: &str) -> String {
        let file = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
        std::fs::read_to_string(&file).expect("it is readable")
    }

    /// `cargo test` passes where no test has the name.
    #[test]
    fn named_tests_exist() {
        let folders = [
            (DECISIONS, "sidecar/sim/tests"),
            (MUTANTS, "kernels/tests"),
            (SMOLLM2, "kernels/tests"),
            (SPLITS, "kernels/tests"),
            (GPU_TENANTS, "sidecar/agent/tests/system"),
        ];
        for (tests, folder) in folders {
            for name in tests.names {
                let (modules, function) = name.rsplit_once("::").expect("a path");
                let source = source(&format!("{folder}/{}.rs", modules.replace("::", "/")));
                assert!(source.contains(&format!("fn {function}()")), "{name}");
            }
        }
        assert!(source("sidecar/sim/tests/main.rs").contains("mod engine_crashes;"));
        assert!(source("sidecar/sim/tests/engine_crashes.rs").contains("SLUICE_TENANTS"));
        assert!(source("sidecar/policy/tests/main.rs").contains("mod multi_tenant;"));
    }

    #[test]
    fn every_part_has_a_name_and_chosen_ones_are_parsed() {
        let command = NightlyArgs::augment_args(clap::Command::new("nightly").no_binary_name(true));
        let parsed = |words: &[&str]| {
            let matches = command.clone().try_get_matches_from(words)?;
            <NightlyArgs as clap::FromArgMatches>::from_arg_matches(&matches)
        };
        let all: Vec<String> = Part::value_variants().iter().map(|part| part.name()).collect();
        assert!(all.iter().all(|name| !name.is_empty()), "{all:?}");
        let args = parsed(&["--only", &all.join(",")]).expect("all are parts");
        assert_eq!(args.only, Part::value_variants());
        assert!(parsed(&["--only", "nonsense"]).is_err());
    }
}
