//! `cargo xtask fuzz`: the fuzz targets in `fuzz`, by cargo-fuzz and a nightly compiler.
//!
//! To add a target, add a row to [`TARGETS`] and a binary to `fuzz/Cargo.toml`. A test of the crate that owns the
//! function calls it with each file of its corpus.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::camino::{Utf8Path, Utf8PathBuf};
use clap::Args;

use crate::cargo_tool::{CargoTool, run_or_skip};

const CARGO_FUZZ: CargoTool = CargoTool {
    name: "cargo-fuzz",
    version: "0.13.2",
    digest: "5acfd01930e49823e58c30dd8012d3338a620377d7c7d4cc140ca4b2169400e2",
    features: &[],
};

/// The toolchain of rustup that builds the targets: the sanitizer needs it.
const NIGHTLY: &str = "nightly";

/// Each target, and the committed files that it begins with.
const TARGETS: [(&str, &str); 5] = [
    ("body", "sidecar/agent/tests/corpus/body"),
    ("link", "sidecar/link/tests/corpus"),
    ("safetensors", "sidecar/agent/tests/corpus/safetensors"),
    ("sse", "sidecar/agent/tests/corpus/sse"),
    ("yaml", "crds/types/tests/corpus"),
];

/// Options of `cargo xtask fuzz`.
#[derive(Args)]
pub struct FuzzArgs {
    /// The targets: body, link, safetensors, sse, yaml. Without any, all of them.
    targets: Vec<String>,
    /// How long each one runs.
    #[arg(long, default_value_t = 120)]
    seconds: u32,
}

/// Runs the chosen targets, also after one has failed; `true` if none did.
pub fn run(root: &Utf8Path, args: &FuzzArgs) -> Result<bool> {
    let chosen = chosen(&args.targets)?;
    with(root, &provide(root)?, &chosen, args.seconds)
}

/// Runs all targets as a part of the nightly run. Where cargo-fuzz or its compiler cannot be had, it prints that and
/// passes, and in CI (`CI=true`) it fails.
pub fn part(root: &Utf8Path, seconds: u32) -> Result<bool> {
    run_or_skip("fuzz targets", provide(root), |program| with(root, program, &TARGETS, seconds))
}

/// The program cargo-fuzz, where rustup has a nightly compiler for it.
fn provide(root: &Utf8Path) -> Result<Utf8PathBuf> {
    let compiler = ["run", NIGHTLY, "rustc", "--version"];
    let answer = Command::new("rustup").current_dir(root).args(compiler).stdin(Stdio::null()).output();
    let found = answer.context("rustup does not start")?.status.success();
    ensure!(found, "rustup has no nightly compiler: rustup toolchain install {NIGHTLY}");
    CARGO_FUZZ.find()
}

fn with(root: &Utf8Path, program: &Utf8Path, targets: &[(&str, &str)], seconds: u32) -> Result<bool> {
    let mut passed = true;
    for (name, seeds) in targets {
        if !fuzz(root, program, name, seeds, seconds)? {
            println!("fuzz: {name} failed; once it is mended, add the input to {seeds}");
            passed = false;
        }
    }
    Ok(passed)
}

fn chosen(names: &[String]) -> Result<Vec<(&'static str, &'static str)>> {
    if names.is_empty() {
        return Ok(TARGETS.to_vec());
    }
    let find = |name: &String| TARGETS.into_iter().find(|(known, _)| known == name);
    names.iter().map(|name| find(name).with_context(|| format!("there is no target `{name}`"))).collect()
}

/// What the fuzzer finds on its way goes to `fuzz/corpus`, which git ignores.
fn fuzz(root: &Utf8Path, program: &Utf8Path, name: &str, seeds: &str, seconds: u32) -> Result<bool> {
    let found = root.join("fuzz/corpus").join(name);
    std::fs::create_dir_all(&found).with_context(|| format!("creating {found}"))?;
    let limits = [format!("-max_total_time={seconds}"), "-timeout=10".to_owned()];
    println!("$ cargo fuzz run {name} {found} {seeds} -- {}", limits.join(" "));
    let mut command = Command::new(program);
    command.current_dir(root).args(["run", name, found.as_str(), seeds, "--"]).args(limits);
    // `CARGO` is that of `rust-toolchain.toml`.
    command.env("RUSTUP_TOOLCHAIN", NIGHTLY).env_remove("CARGO").stdin(Stdio::null());
    let status = command.status().with_context(|| format!("{program} does not start"))?;
    if status.code().is_none() {
        bail!("{name}: {status}");
    }
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use cargo_metadata::camino::Utf8Path;

    use super::{TARGETS, chosen};

    #[test]
    fn every_target_has_a_binary_and_a_corpus_and_every_binary_is_a_target() {
        let root = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let manifest = std::fs::read_to_string(root.join("fuzz/Cargo.toml")).unwrap();
        for (name, seeds) in TARGETS {
            assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "{name}");
            assert!(root.join(format!("fuzz/fuzz_targets/{name}.rs")).is_file(), "{name}");
            assert!(root.join(seeds).read_dir_utf8().unwrap().count() >= 10, "{seeds}");
        }
        assert_eq!(manifest.matches("[[bin]]").count(), TARGETS.len());
    }

    #[test]
    fn targets_are_all_or_those_that_are_named() {
        assert_eq!(chosen(&[]).unwrap(), TARGETS);
        assert_eq!(chosen(&["sse".to_owned()]).unwrap(), [("sse", "sidecar/agent/tests/corpus/sse")]);
        let error = chosen(&["see".to_owned()]).unwrap_err();
        assert_eq!(error.to_string(), "there is no target `see`");
    }
}
