//! `cargo xtask gpu-pack`: what a machine needs that has a GPU, its driver and nothing else: programs, tests and a model
//! in an archive, and the script that unpacks and runs them.

mod standin_run;

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::Artifact;
use cargo_metadata::camino::{Utf8Path, Utf8PathBuf};
use clap::Args;

use crate::cache::variable;
use crate::process;
use crate::test_runner::shared_folder;
use crate::workspace::Workspace;

/// Largest size of the pack and the tracked files together, bytes.
const LARGEST_BYTES: u64 = 60 << 20;
/// Programs that users have too.
const PROGRAMS: [&str; 4] = ["sluice-gpu-probe", "sluice-gpu-bench", "sluice-sidecar", "sluice-engine"];
/// Packages whose tests run on a GPU, with the names of their test targets and of the programs in the pack.
const TESTS: [(&str, &str, &str); 3] = [
    ("sluice-kernels", "main", "kernels-tests"),
    ("sluice-memory", "main", "memory-tests"),
    ("sluice-agent", "system", "agent-tests"),
];
/// The model whose golden tokens a tenant must generate.
const MODEL: &str = "models/stories260k";
/// The script that runs the parts. It is in the pack as `run`.
const SCRIPT: &str = "scripts/gpu-pack.sh";
/// Everything else, which the script unpacks.
const ARCHIVE: &str = "programs.tar.gz";

/// Options of `cargo xtask gpu-pack`.
#[derive(Args)]
pub struct GpuPackArgs {
    /// Folder that is made; it must not exist, or be an earlier pack [default: target/gpu-pack].
    #[arg(long, value_name = "FOLDER")]
    out: Option<Utf8PathBuf>,
    /// Profile of cargo.
    #[arg(long, default_value = "release")]
    profile: String,
    /// Run the pack here afterwards, over a stand-in for the driver, which takes some minutes.
    #[arg(long)]
    standin: bool,
}

/// Builds the pack, and with `--standin` runs it. Its folder replaces an earlier pack.
pub fn run(workspace: &Workspace, args: &GpuPackArgs) -> Result<()> {
    let out = args.out.clone().unwrap_or_else(|| workspace.target.join("gpu-pack"));
    let model = shared_model(&workspace.root)?;
    ensure!(!out.exists() || out.join("run").is_file(), "{out} exists and is no pack");
    let built = build(workspace, &args.profile)?;
    if out.exists() {
        fs::remove_dir_all(&out).with_context(|| format!("removing {out}"))?;
    }
    let stage = out.join("programs");
    fs::create_dir_all(stage.join("shared").join("models")).with_context(|| format!("making {stage}"))?;
    for (from, name) in &built {
        strip(from, &stage.join(name))?;
    }
    copy_folder(&model, &stage.join("shared").join(MODEL))?;
    fs::copy(workspace.root.join(SCRIPT), out.join("run")).with_context(|| format!("copying {SCRIPT}"))?;
    archive(&stage, &out.join(ARCHIVE))?;
    print_sizes(&stage);
    fs::remove_dir_all(&stage).with_context(|| format!("removing {stage}"))?;
    check_size(workspace, &out)?;
    println!("on the machine with the GPU: {}/run 1 RESULTS, then 2 and 3", out.file_name().unwrap_or("."));
    match args.standin {
        true => standin_run::run(workspace, &args.profile, &out, &workspace.target.join("gpu-pack-results")),
        false => Ok(()),
    }
}

impl GpuPackArgs {
    /// The pack that is run over the stand-in for a driver.
    pub fn over_the_standin() -> GpuPackArgs {
        GpuPackArgs { out: None, profile: "release".to_owned(), standin: true }
    }
}

fn shared_model(root: &Utf8Path) -> Result<Utf8PathBuf> {
    let shared = shared_folder(root, variable("SLUICE_SHARED").as_deref())?;
    let model = shared.map(|shared| shared.join(MODEL)).filter(|model| model.is_dir());
    model.with_context(|| format!("{MODEL} is missing: set SLUICE_SHARED to the folder that holds it"))
}

/// Names of all programs in the pack.
fn names() -> impl Iterator<Item = &'static str> {
    PROGRAMS.into_iter().chain(TESTS.iter().map(|(.., name)| *name))
}

/// Builds programs and tests. Returns where they are, with their names in the pack.
fn build(workspace: &Workspace, profile: &str) -> Result<Vec<(Utf8PathBuf, &'static str)>> {
    let cargo = |words: &[&str]| {
        let mut command = process::cargo(&workspace.root, words);
        command.args(["--locked", "--profile", profile]);
        command
    };
    let mut programs = cargo(&["build", "--workspace"]);
    programs.args(PROGRAMS.iter().flat_map(|name| ["--bin", name]));
    let mut built = executables(programs)?;
    for (package, target, name) in TESTS {
        let made = executables(cargo(&["test", "--no-run", "-p", package, "--test", target]))?;
        built
            .extend(made.into_iter().filter(|(_, of)| of == target).map(|(path, _)| (path, name.to_owned())));
    }
    let found = |name: &'static str| {
        let place = built.iter().find(|(_, built)| built == name);
        place.map(|(path, _)| (path.clone(), name)).with_context(|| format!("cargo did not build {name}"))
    };
    names().map(found).collect()
}

/// Runs a build. Returns each executable with the name of its target.
fn executables(build: Command) -> Result<Vec<(Utf8PathBuf, String)>> {
    let artifacts = process::artifacts(build)?.context("the build failed")?;
    let executable = |artifact: Artifact| Some((artifact.executable?, artifact.target.name));
    Ok(artifacts.into_iter().filter_map(executable).collect())
}

/// Copies a program without what only a debugger reads.
fn strip(from: &Utf8Path, to: &Utf8Path) -> Result<()> {
    let status = Command::new("strip").arg("-o").args([to, from]).status();
    let status = status.context("cannot start strip (on Debian: apt-get install binutils)")?;
    ensure!(status.success(), "strip of {from} failed");
    Ok(())
}

fn copy_folder(from: &Utf8Path, to: &Utf8Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("making {to}"))?;
    for entry in from.read_dir_utf8().with_context(|| format!("reading {from}"))? {
        let entry = entry?;
        let place = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(entry.path(), &place)?;
        } else {
            fs::copy(entry.path(), &place).with_context(|| format!("copying {}", entry.path()))?;
        }
    }
    Ok(())
}

/// Packs a folder's files.
fn archive(folder: &Utf8Path, file: &Utf8Path) -> Result<()> {
    let status = Command::new("tar").args(["-czf", file.as_str(), "-C", folder.as_str(), "."]).status();
    ensure!(status.context("cannot start tar")?.success(), "tar of {folder} failed");
    Ok(())
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn file_bytes(path: Utf8PathBuf) -> u64 {
    path.metadata().map_or(0, |file| file.len())
}

/// Prints the sizes of the programs, the largest first.
fn print_sizes(folder: &Utf8Path) {
    let mut names: Vec<(u64, &str)> = names().map(|name| (file_bytes(folder.join(name)), name)).collect();
    names.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    names.iter().for_each(|(bytes, name)| println!("{name:<18} {:6.1} MiB", mib(*bytes)));
}

/// Refuses a pack that is too large to send with the repository.
fn check_size(workspace: &Workspace, out: &Utf8Path) -> Result<()> {
    let tracked: u64 = workspace.files.iter().map(|name| file_bytes(workspace.root.join(name))).sum();
    let pack: u64 = ["run", ARCHIVE].map(|name| file_bytes(out.join(name))).iter().sum();
    println!("{out}: {:.1} MiB, and {:.1} MiB of tracked files", mib(pack), mib(tracked));
    if pack + tracked > LARGEST_BYTES {
        bail!("{:.1} MiB are more than {:.0} MiB", mib(pack + tracked), mib(LARGEST_BYTES));
    }
    Ok(())
}
