//! The tree of dependencies against `deny.toml`, by cargo-deny.
//!
//! Licences, bans and sources need the crates registry alone. Advisories need the database of RustSec, which lies on
//! another host: where that cannot be reached, they are skipped, and this says so.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::camino::{Utf8Path, Utf8PathBuf};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::cargo_tool::{CargoTool, run_or_skip};
use crate::process;

/// What `deny.toml` is written for.
const CARGO_DENY: CargoTool = CargoTool {
    name: "cargo-deny",
    version: "0.20.2",
    digest: "e528dfcbe739af7ce37a77d3d6df1b29dd6887b1c701d888820c0f16b864f737",
    features: &[],
};

/// For the download of the database: a network that swallows packets must not cost more.
const FETCH_LIMIT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Holds the tree to `deny.toml`; `false` if cargo-deny printed findings. Where neither cargo-deny nor the crates can
/// be had, it prints that and passes, and in CI (`CI=true`) it fails.
pub fn check(root: &Utf8Path) -> Result<bool> {
    let what = "licences, bans, sources and advisories of dependencies";
    run_or_skip(what, provide(root), |program| with(root, program))
}

/// The program, with every crate of the lock file in cargo's cache: cargo-deny reads them all.
fn provide(root: &Utf8Path) -> Result<Utf8PathBuf> {
    let fetched = process::passes(process::cargo(root, &["fetch", "--quiet", "--locked"]))?;
    ensure!(fetched, "cargo could not fetch the crates of Cargo.lock (see above)");
    CARGO_DENY.find()
}

fn with(root: &Utf8Path, program: &Utf8Path) -> Result<bool> {
    let tree = passes(root, program, &["check", "bans", "licenses", "sources"])?;
    let advisories = match fetch_advisories(root, program) {
        Ok(()) => passes(root, program, &["--offline", "check", "advisories"])?,
        Err(error) => {
            println!("skipped: advisories of dependencies: the database cannot be had: {error:#}");
            true
        }
    };
    Ok(tree && advisories)
}

/// Runs cargo-deny with its output shown as it comes; `false` if it has findings.
fn passes(root: &Utf8Path, program: &Utf8Path, arguments: &[&str]) -> Result<bool> {
    println!("$ cargo-deny {}", arguments.join(" "));
    let status = command(root, program, arguments).status();
    Ok(status.with_context(|| format!("cannot start {program}"))?.success())
}

/// Downloads the database, or what is new in it.
fn fetch_advisories(root: &Utf8Path, program: &Utf8Path) -> Result<()> {
    let mut command = command(root, program, &["fetch", "db"]);
    // Git asks for no password: the answer is then "skipped".
    command.env("GIT_TERMINAL_PROMPT", "0").process_group(0);
    let mut child = command.spawn().with_context(|| format!("cannot start {program}"))?;
    let start = Instant::now();
    while start.elapsed() < FETCH_LIMIT {
        if let Some(status) = child.try_wait()? {
            ensure!(status.success(), "cargo-deny could not fetch it (see above)");
            return Ok(());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    // Its group, because it starts git. It may have ended just now.
    let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    child.wait()?;
    bail!("no answer in {} s", FETCH_LIMIT.as_secs())
}

fn command(root: &Utf8Path, program: &Utf8Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    // Two versions of one crate are a warning in `deny.toml`: here they would hide what is refused.
    command.current_dir(root).args(["--log-level", "error", "--locked"]).args(arguments).stdin(Stdio::null());
    command
}
