//! `cargo xtask kernels`: CUDA sources to committed PTX by NVRTC, which needs neither a GPU nor a driver.
//!
//! To add a source, add a row to [`SOURCES`].

mod find;
mod nvrtc;

use std::fs;

use anyhow::{Context, Result};
use cargo_metadata::camino::Utf8Path;

use find::{Found, VERSION};
use nvrtc::Nvrtc;

/// Every CUDA source; its PTX is in the same folder.
const SOURCES: [&str; 1] = ["sidecar/probe/cuda/probe.cu"];

/// The oldest architecture of the product. A driver compiles its PTX for every later one.
const PTX: &str = "compute_80";

/// Machine code is made as well, and thrown away: PTX alone lets through what the assembler refuses.
const MACHINE: [(&str, i32); 3] = [("sm_80", 80), ("sm_90a", 90), ("sm_100", 100)];

/// Compiles every source; `check` compares the committed PTX instead of writing it. `false` if one differs or does
/// not compile.
pub fn run(root: &Utf8Path, check: bool) -> Result<bool> {
    with(root, check, &find::find()?)
}

/// Runs the check as a stage of `cargo xtask test`: without NVRTC it prints that and passes.
pub fn stage(root: &Utf8Path) -> Result<bool> {
    match find::find() {
        Ok(found) => with(root, true, &found),
        Err(error) => {
            println!("skipped: no NVRTC, so no CUDA source was compiled: {error:#}");
            println!("  (pip downloads it for python3, or SLUICE_NVRTC names the folder of libnvrtc.so)");
            Ok(true)
        }
    }
}

fn with(root: &Utf8Path, check: bool, found: &Found) -> Result<bool> {
    let nvrtc = Nvrtc::load(&found.folder)?;
    let (major, minor) = nvrtc.version()?;
    println!("NVRTC {major}.{minor} in {}", found.folder);
    let mut passed = true;
    for source in SOURCES {
        let result = compile(&nvrtc, root, source, |path, ptx| match (check, found.pinned) {
            (true, true) => compare(path, ptx),
            (true, false) => {
                println!("skipped: {path} is not compared, its PTX is that of NVRTC {VERSION}");
                Ok(())
            }
            (false, true) => fs::write(path, ptx).with_context(|| format!("writing {path}")),
            (false, false) => anyhow::bail!("the committed PTX is that of NVRTC {VERSION}"),
        });
        if let Err(error) = result {
            println!("{source}: {error:#}");
            passed = false;
        }
    }
    Ok(passed)
}

/// Compiles one source for all architectures that this NVRTC knows and hands its PTX and the PTX's path to `settle`.
fn compile(
    nvrtc: &Nvrtc,
    root: &Utf8Path,
    source: &str,
    settle: impl FnOnce(&Utf8Path, &[u8]) -> Result<()>,
) -> Result<()> {
    let path = root.join(source);
    let name = path.file_name().context("a source has a name")?;
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    for (architecture, number) in MACHINE {
        if nvrtc.knows(number)? {
            let size = nvrtc.compile(name, &text, architecture)?.len();
            println!("{source}: {architecture}, {size} bytes");
        } else {
            println!("skipped: this NVRTC does not know {architecture}");
        }
    }
    settle(&path.with_extension("ptx"), &nvrtc.compile(name, &text, PTX)?)
}

/// An error if the file is not `ptx`.
fn compare(path: &Utf8Path, ptx: &[u8]) -> Result<()> {
    let committed = fs::read(path).with_context(|| format!("reading {path}"))?;
    anyhow::ensure!(
        committed == ptx,
        "{path} differs from the PTX of its source: run `cargo xtask kernels` and commit the result"
    );
    Ok(())
}

#[cfg(test)]
mod tests;
