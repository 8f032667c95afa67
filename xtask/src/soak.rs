//! `cargo xtask soak`: tenants of one GPU under random load, kills, stops, naps, directives and slow links, for as
//! long as wished.
//!
//! The soak itself is a test (`e2e/tests/soak.rs`), which runs shortly among all others; this builds what it needs
//! and gives it a length, numbers of tenants and a seed.

use std::process::Command;

use anyhow::Result;
use cargo_metadata::camino::Utf8Path;

use crate::workspace::Workspace;
use crate::{process, test_runner};

/// The test.
const TEST: &str = "soak::tenants_under_random_load_and_faults_answer_as_unshared";

/// The sidecar of tests, whose loans can be short.
const SHORT_LOANS: &str = "faulty-sidecar";

/// Numbers of tenants.
const TENANTS: [u8; 3] = [2, 3, 8];

/// Options of `cargo xtask soak`.
#[derive(Clone, Debug, clap::Args)]
pub struct SoakArgs {
    /// Length of the load for each number of tenants, seconds.
    #[arg(long, default_value_t = 180)]
    seconds: u64,
    /// Numbers of tenants on the GPU, one run each.
    #[arg(long, value_delimiter = ',', default_values_t = TENANTS, value_parser = clap::value_parser!(u8).range(2..=64))]
    tenants: Vec<u8>,
    /// Everything random follows from it. Default: another one each time; it is printed first.
    #[arg(long)]
    seed: Option<u64>,
    /// Copy journals and logs of a run that failed to this folder.
    #[arg(long, value_name = "DIR")]
    keep: Option<String>,
}

impl SoakArgs {
    /// The usual numbers of tenants, `seconds` of load for each, and another seed each time.
    pub fn of_seconds(seconds: u64) -> SoakArgs {
        SoakArgs { seconds, tenants: TENANTS.to_vec(), seed: None, keep: None }
    }
}

/// Builds and runs it; `true` if nothing was found.
pub fn run(workspace: &Workspace, args: &SoakArgs) -> Result<bool> {
    let binaries = ["build", "--workspace", "--bins", "--example", SHORT_LOANS, "--locked"];
    let build = process::cargo(&workspace.root, &binaries);
    Ok(process::passes(build)? && process::passes(test(&workspace.root, &workspace.target, args)?)?)
}

fn test(root: &Utf8Path, target: &Utf8Path, args: &SoakArgs) -> Result<Command> {
    let words =
        ["test", "--locked", "-p", "sluice-e2e", "--test", "processes", "--", "--exact", "--nocapture", TEST];
    let mut command = process::cargo(root, &words);
    let tenants: Vec<_> = args.tenants.iter().map(u8::to_string).collect();
    command
        .env(
            "SLUICE_BIN_DIR",
            test_runner::binaries(target, std::env::var("CARGO_BUILD_TARGET").ok().as_deref()),
        )
        .env("SLUICE_SOAK_SECONDS", args.seconds.to_string())
        .env("SLUICE_SOAK_TENANTS", tenants.join(","));
    if let Some(seed) = args.seed {
        command.env("SLUICE_SOAK_SEED", seed.to_string());
    }
    if let Some(keep) = &args.keep {
        // The test runs in the folder of its crate.
        command.env("SLUICE_SOAK_KEEP", std::path::absolute(keep)?);
    }
    Ok(command)
}

#[cfg(test)]
mod tests {
    use clap::{Args, FromArgMatches};

    use super::*;

    fn parsed(words: &[&str]) -> Result<SoakArgs, clap::Error> {
        let command = SoakArgs::augment_args(clap::Command::new("soak").no_binary_name(true));
        SoakArgs::from_arg_matches(&command.try_get_matches_from(words)?)
    }

    /// Value of a variable that the test is given.
    fn given(command: &Command, name: &str) -> Option<String> {
        let found = command.get_envs().find(|(key, _)| *key == name)?;
        Some(found.1?.to_string_lossy().into_owned())
    }

    #[test]
    fn command_line_is_passed_to_test() {
        let args = parsed(&["--seconds", "9", "--tenants", "2,8", "--seed", "5"]).expect("all are options");
        let command = test("/w".into(), "/t".into(), &args).expect("nothing to fail");
        let names = ["SLUICE_SOAK_SECONDS", "SLUICE_SOAK_TENANTS", "SLUICE_SOAK_SEED", "SLUICE_BIN_DIR"];
        let values = names.map(|name| given(&command, name));
        assert_eq!(values, ["9", "2,8", "5", "/t/debug"].map(|value| Some(value.to_owned())));
    }

    #[test]
    fn single_tenant_disables_trading() {
        assert!(parsed(&["--tenants", "1"]).is_err());
    }

    #[test]
    fn the_test_exists() {
        let name = TEST.rsplit("::").next().expect("a path");
        let source = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../e2e/tests/soak.rs");
        let text = std::fs::read_to_string(&source).expect("it is readable");
        assert!(text.contains(&format!("async fn {name}()")), "{source} has no {name}");
    }
}
