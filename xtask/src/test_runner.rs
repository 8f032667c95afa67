//! `cargo xtask test`: everything that a change must pass, in stages.

mod programs;
mod times;

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use cargo_metadata::camino::{Utf8Path, Utf8PathBuf};

use self::programs::{all_pass, quick_pass};
use crate::cache::variable;
use crate::platform::Platform;
use crate::workspace::Workspace;
use crate::{check, debian, foreign_images, image, kernels, kube, process};

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Rules of the tree, tests of crates, and tests on an API server: minutes.
    Quick,
    /// Everything that a change must pass.
    Full,
}

/// Builds the binaries that tests start.
const BINARIES: [&str; 4] = ["build", "--locked", "--workspace", "--bins"];

/// Builds those that the quick tests start, with the features of the whole workspace.
#[rustfmt::skip]
const QUICK_BINARIES: [&str; 15] = [
    "build", "--locked", "--workspace", "--bin", "sluice", "--bin", "sluice-sidecar", "--bin", "sluice-engine",
    "--bin", "sluice-model-gen", "--bin", "sluice-operator", "--bin", "sluice-devices",
];

/// Builds what the end-to-end tests start.
const END_TO_END_BINARIES: [&str; 5] = ["build", "--locked", "--workspace", "--bins", "--examples"];

/// The end-to-end tests that are too long for every change.
#[rustfmt::skip]
const IGNORED: [&str; 15] = [
    "-p", "sluice-e2e", "-p", "sluice-gpu-bench", "--no-fail-fast", "--test", "node", "--test", "processes", "--test",
    "scale", "--test", "main", "--", "--ignored",
];

/// Runs check, build and tests until one fails; `true` if all passed.
pub fn run(workspace: &Workspace, scope: Scope) -> Result<bool> {
    let root = &workspace.root;
    let shared = shared_folder(root, std::env::var("SLUICE_SHARED").ok().as_deref())?;
    announce(shared.as_deref());
    let full = scope == Scope::Full;
    let build = || process::passes(process::cargo(root, if full { &BINARIES[..] } else { &QUICK_BINARIES }));
    let cross = std::env::var("CARGO_BUILD_TARGET").ok();
    let (mut kubernetes, mut images, mut browser) = (None, None, false);
    let get_kubernetes = || {
        kubernetes = kube::stage(root, !full)?;
        Ok(true)
    };
    let find_browser = || {
        browser = has_browser();
        Ok(true)
    };
    let make_images = || {
        images = Some(image::of_tests(&binaries(&workspace.target, cross.as_deref()), Platform::host())?);
        Ok(true)
    };
    let passed = stage("check", || check::check(workspace, false, !full))?
        && (!full || stage("kernels", || kernels::stage(root))?)
        && stage("kubernetes", get_kubernetes)?
        && (!full || stage("browser", find_browser)?)
        && stage("build", build)?
        && (!full || stage("images", make_images)?)
        && (!full || stage("arm64", || foreign_images::stage(workspace))?)
        && stage("tests", || {
            let given = TestInputs {
                shared: shared.as_deref(),
                kubernetes: kubernetes.as_deref(),
                images: images.as_deref(),
            };
            let command = |words: &[&str]| tests(workspace, &given, words);
            if full { all_pass(|| command(&["--workspace"])) } else { quick_pass(command) }
        })?;
    if kubernetes.is_none() {
        println!("== no Kubernetes: tests on an API server and on a node were skipped");
    }
    if full && !browser {
        println!("== no Chromium: tests in a browser were skipped");
    }
    if !full {
        println!(
            "== quick: clippy and the tests of images, a node, processes, the page and CUDA were skipped"
        );
    }
    Ok(passed)
}

/// Builds and runs the end-to-end tests that are marked `#[ignore]`; `true` if all passed.
pub fn run_ignored(workspace: &Workspace) -> Result<bool> {
    let root = &workspace.root;
    if !process::passes(process::cargo(root, &END_TO_END_BINARIES))? {
        return Ok(false);
    }
    let cross = std::env::var("CARGO_BUILD_TARGET").ok();
    let shared = shared_folder(root, std::env::var("SLUICE_SHARED").ok().as_deref())?;
    let (kubernetes, images) = (
        kube::stage(root, false)?,
        image::of_tests(&binaries(&workspace.target, cross.as_deref()), Platform::host())?,
    );
    let given =
        TestInputs { shared: shared.as_deref(), kubernetes: kubernetes.as_deref(), images: Some(&images) };
    process::passes(tests(workspace, &given, &IGNORED))
}

/// Whether tests have a browser. In CI (`CI=true`) it is installed where that can be done.
fn has_browser() -> bool {
    if variable("SLUICE_CHROMIUM").is_some() {
        return true;
    }
    let ci = variable("CI").as_deref() == Some("true");
    let had = debian::provide(&debian::BROWSER, "the page", ci);
    let skipped = had.inspect_err(|error| println!("skipped: tests in a browser: {error:#}"));
    skipped.is_ok()
}

/// The folder with models and data that are not in the repository: `given`, or `../shared` where there is one.
pub fn shared_folder(root: &Utf8Path, given: Option<&str>) -> Result<Option<Utf8PathBuf>> {
    let Some(given) = given.filter(|given| !given.is_empty()) else {
        let beside = root.parent().map(|parent| parent.join("shared"));
        return Ok(beside.filter(|folder| folder.is_dir()));
    };
    // Tests run in the folders of their crates, so a relative path must be made absolute here.
    let folder =
        Utf8Path::new(given).canonicalize_utf8().with_context(|| format!("SLUICE_SHARED={given}"))?;
    ensure!(folder.is_dir(), "SLUICE_SHARED={given} is not a folder");
    Ok(Some(folder))
}

fn announce(shared: Option<&Utf8Path>) {
    match shared {
        Some(folder) => println!("shared models and data: {folder}"),
        None => println!("no shared models and data (SLUICE_SHARED): tests that need them are skipped"),
    }
}

/// Folders that tests find through the environment, if they are there.
struct TestInputs<'a> {
    shared: Option<&'a Utf8Path>,
    kubernetes: Option<&'a Utf8Path>,
    images: Option<&'a Utf8Path>,
}

/// `cargo test` of the packages and targets that `words` name.
fn tests(workspace: &Workspace, given: &TestInputs<'_>, words: &[&str]) -> Command {
    let mut command = process::cargo(&workspace.root, &["test", "--locked"]);
    command.args(words);
    let cross = std::env::var("CARGO_BUILD_TARGET").ok();
    command.env("SLUICE_BIN_DIR", binaries(&workspace.target, cross.as_deref()));
    let folders =
        [("SLUICE_SHARED", given.shared), (kube::FOLDER, given.kubernetes), ("SLUICE_IMAGES", given.images)];
    for (name, folder) in folders {
        match folder {
            Some(folder) => command.env(name, folder),
            None => command.env_remove(name),
        };
    }
    command
}

/// Where cargo puts the binaries of a debug build, for the platform `cross` if one is named.
pub fn binaries(target: &Utf8Path, cross: Option<&str>) -> Utf8PathBuf {
    target.join(cross.unwrap_or("")).join("debug")
}

/// Runs one stage and prints its result and duration.
fn stage(name: &str, work: impl FnOnce() -> Result<bool>) -> Result<bool> {
    println!("== {name}");
    let start = Instant::now();
    let passed = work()?;
    let verdict = if passed { "passed" } else { "FAILED" };
    println!("== {name} {verdict} after {:.1} s", start.elapsed().as_secs_f64());
    Ok(passed)
}

#[cfg(test)]
mod tests {
    use cargo_metadata::camino::Utf8Path;

    use super::{binaries, shared_folder};

    /// The folder of this crate, which has no sibling `shared`.
    fn root() -> &'static Utf8Path {
        Utf8Path::new(env!("CARGO_MANIFEST_DIR"))
    }

    #[test]
    fn a_given_folder_is_made_absolute() {
        let folder = shared_folder(root(), Some("src")).expect("it exists").expect("it was given");
        assert!(folder.is_absolute() && folder.ends_with("xtask/src"));
    }

    #[test]
    fn a_given_folder_that_does_not_exist_is_an_error_and_never_skipped() {
        let error = shared_folder(root(), Some("missing")).expect_err("there is none");
        assert_eq!(error.to_string(), "SLUICE_SHARED=missing");
        assert!(shared_folder(root(), Some("Cargo.toml")).is_err());
    }

    #[test]
    fn a_named_platform_has_a_folder_of_its_own() {
        assert_eq!(binaries("/t".into(), None), "/t/debug");
        assert_eq!(
            binaries("/t".into(), Some("aarch64-unknown-linux-gnu")),
            "/t/aarch64-unknown-linux-gnu/debug"
        );
    }

    #[test]
    fn without_a_folder_beside_the_workspace_there_is_none() {
        assert_eq!(shared_folder(root(), None).expect("no error"), None);
        assert_eq!(shared_folder(root(), Some("")).expect("no error"), None);
    }
}
