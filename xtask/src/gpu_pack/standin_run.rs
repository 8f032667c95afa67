//! Runs a pack as the machine with the GPU does, over the stand-in for a driver: all parts, from start to end.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use cargo_metadata::camino::{Utf8Path, Utf8PathBuf};

use crate::process;
use crate::workspace::Workspace;

/// The library that stands for the driver and for cuBLASLt.
const LIBRARY: &str = "libsluice_cuda_standin.so";
/// Device memory, bytes, of which only what is written takes memory.
const DEVICE_BYTES: u64 = 16 << 30;
/// Time of a step and of a part, in times of those of a GPU.
const SLOWER: u32 = 4;
/// The script's time of a part.
const PART_SECONDS: u32 = 530;
/// The exit status of a part that waits for its next start.
const AGAIN: i32 = 75;
/// Starts of a part.
const MOST_STARTS: usize = 4;
/// Files that a run leaves.
const MOST_FILES: usize = 8;

/// Runs all parts of `pack`; their results replace those of an earlier run in `results`.
///
/// # Errors
/// If a part fails, or leaves too many files.
pub fn run(workspace: &Workspace, profile: &str, pack: &Utf8Path, results: &Utf8Path) -> Result<()> {
    let library = build(workspace, profile)?;
    if results.exists() {
        fs::remove_dir_all(results).with_context(|| format!("removing {results}"))?;
    }
    let machine = tempfile::tempdir().context("making a folder")?;
    let folder = |name: &str| -> Result<Utf8PathBuf> {
        let path = Utf8PathBuf::try_from(machine.path().join(name))?;
        fs::create_dir(&path).with_context(|| format!("making {path}"))?;
        Ok(path)
    };
    let (libraries, pool) = (folder("lib64")?, folder("pool")?);
    for name in ["libcuda.so.1", "libcublasLt.so.12"] {
        symlink(&library, libraries.join(name)).with_context(|| format!("making {name}"))?;
    }
    for part in ["1", "2", "3"] {
        let mut starts = 0;
        loop {
            starts += 1;
            let mut command = Command::new(pack.join("run"));
            command.args([part, results.as_str()]).env("LD_LIBRARY_PATH", &libraries);
            command.env("CUDA_HOME", machine.path()).env("SLUICE_STANDIN_POOL", &pool);
            command.env("SLUICE_STANDIN_BYTES", DEVICE_BYTES.to_string());
            // The probe never reads this product: one row of tiles takes enough time.
            command.env("SLUICE_STANDIN_BLOCKS", "sluice_product=8");
            command.env("SLUICE_GPU_PACK_QUICK", "1").env("SLUICE_GPU_PACK_SLOWER", SLOWER.to_string());
            command.env("SLUICE_GPU_PACK_SECONDS", (SLOWER * PART_SECONDS).to_string());
            let status = command.status().with_context(|| format!("cannot start {pack}/run"))?;
            if status.success() {
                break;
            }
            let goes_on = status.code() == Some(AGAIN) && starts < MOST_STARTS;
            ensure!(goes_on, "part {part} of the pack failed at start {starts}: {status}; see {results}");
        }
    }
    let state = results.join("state.tsv");
    let text = fs::read_to_string(&state).with_context(|| format!("reading {state}"))?;
    ensure!(
        text.lines().any(|line| line.starts_with("cublaslt\tok\t")),
        "cuBLASLt was not tested; see {state}"
    );
    let files = fs::read_dir(results).with_context(|| format!("reading {results}"))?.count();
    ensure!(files <= MOST_FILES, "the parts left {files} files in {results}, more than {MOST_FILES}");
    println!("all parts passed over the stand-in for a driver; results: {results}");
    Ok(())
}

/// Builds the stand-in. Returns its path.
fn build(workspace: &Workspace, profile: &str) -> Result<Utf8PathBuf> {
    let mut command = process::cargo(&workspace.root, &["build", "--locked", "-p", "sluice-cuda-standin"]);
    command.args(["--profile", profile]);
    let artifacts = process::artifacts(command)?.context("the build failed")?;
    let mut files = artifacts.into_iter().flat_map(|artifact| artifact.filenames);
    files
        .find(|file| file.file_name() == Some(LIBRARY))
        .with_context(|| format!("cargo did not build {LIBRARY}"))
}
