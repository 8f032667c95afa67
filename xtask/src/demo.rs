//! `cargo xtask demo`: builds what `sluice demo` needs, and nothing more, and runs it.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};

use crate::process;
use crate::test_runner::binaries;
use crate::workspace::Workspace;

/// Debug builds: what computes is optimised there too, so a fresh build need not be one of release.
/// Without default features `sluice` has no client of a cluster. A demo tokenises and plans next to nothing.
#[rustfmt::skip]
pub const BUILD: [&str; 21] = [
    "build", "--locked", "--no-default-features", "--package", "sluice-cli", "--package", "sluice-agent", "--package",
    "sluice-kernels", "--bin", "sluice", "--bin", "sluice-sidecar", "--bin", "sluice-engine", "--bin", "sluice-model-gen",
    "--config", "profile.dev.package.tokenizers.opt-level=0", "--config", "profile.dev.package.sluice-plan.opt-level=0",
];

/// Arguments of `cargo xtask demo`.
#[derive(Clone, Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct DemoArgs {
    /// Those of `sluice demo`; --help lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARG")]
    args: Vec<String>,
}

/// Becomes `sluice demo`. Returns only if something cannot be built, which cargo has reported, or started.
pub fn run(workspace: &Workspace, args: &DemoArgs) -> Result<bool> {
    if !process::passes(process::cargo(&workspace.root, &BUILD))? {
        return Ok(false);
    }
    let target = std::env::var("CARGO_BUILD_TARGET").ok();
    let folder = binaries(&workspace.target, target.as_deref());
    let program = folder.join("sluice");
    let error = Command::new(&program).arg("demo").args(&args.args).env("SLUICE_BIN_DIR", &folder).exec();
    Err(error).with_context(|| program.to_string())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::DemoArgs;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        demo: DemoArgs,
    }

    #[test]
    fn all_arguments_are_those_of_the_demo() {
        let given = ["--quick", "--model", "m", "--help"];
        let cli = Cli::try_parse_from(std::iter::once("demo").chain(given)).unwrap();
        assert_eq!(cli.demo.args, given);
    }
}
