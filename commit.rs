//! Build script of every package with a binary: puts the commit into it. It is `SLUICE_COMMIT` from the environment, else,
//! in a release build, what git says, else `unknown`.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=SLUICE_COMMIT");
    let given = std::env::var("SLUICE_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(from_git).unwrap_or_else(|| "unknown".into());
    println!("cargo::rustc-env=SLUICE_COMMIT={commit}");
}

fn from_git() -> Option<String> {
    // Who develops commits often, and would compile every package again after each.
    std::env::var("PROFILE").ok().filter(|profile| profile == "release")?;
    // Every commit and every checkout appends to this file. Without it the commit could grow stale unseen.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    println!("cargo::rerun-if-changed={log}");
    git(&["rev-parse", "--short=12", "HEAD"])
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}
