//! `cargo xtask kernels`: CUDA sources to committed PTX by NVRTC, which needs neither a GPU nor a driver.
//!
//! Machine code is made as well: PTX alone lets through what the assembler refuses, and the assembler says what each
//! kernel of the engine needs. That table is committed as `kernels/cuda/resources.json`. The machine code itself
//! (`NAME.sm_90.cubin` next to the PTX) is for disassemblers: git ignores it, and the product loads the PTX.
//!
//! To add a source, add a row to [`PROBE`] or [`ENGINE`].

mod find;
mod nvrtc;
mod resources;

use std::fs;

use anyhow::{Context, Result};
use cargo_metadata::camino::Utf8Path;

use find::{Found, VERSION};
use nvrtc::{Nvrtc, Source};
use resources::Table;

/// The probe's sources. A source's PTX is in the same folder.
const PROBE: &[&str] = &["sidecar/probe/cuda/probe.cu"];

/// The engine's sources. Their PTX has line information, for the interpreter's messages and for profilers.
const ENGINE: &[&str] = &[
    "kernels/cuda/attention_bf16.cu",
    "kernels/cuda/attention_f16.cu",
    "kernels/cuda/attention_f32.cu",
    "kernels/cuda/attention_merge.cu",
    "kernels/cuda/elementwise.cu",
    "kernels/cuda/embedding.cu",
    "kernels/cuda/gemm.cu",
    "kernels/cuda/gemm_f32.cu",
    "kernels/cuda/memory.cu",
    "kernels/cuda/norm.cu",
    "kernels/cuda/rope.cu",
    "kernels/cuda/sampling.cu",
];

/// The committed table of what the engine's kernels need.
const RESOURCES: &str = "kernels/cuda/resources.json";

/// The oldest architecture of the product. A driver compiles its PTX for every later one.
const PTX: &str = "compute_80";

/// Architectures of the machine code. Never one that ends in `a`, whose code runs on no other.
const MACHINE: [(&str, i32); 3] = [("sm_80", 80), ("sm_90", 90), ("sm_100", 100)];

/// Compiles every source; `check` compares the committed files instead of writing them. `false` if one differs or does
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
    let settle = |path: &Utf8Path, new: &[u8]| match (check, found.pinned) {
        (true, true) => compare(path, new),
        (true, false) => {
            println!("skipped: {path} is not compared, it is what NVRTC {VERSION} gives");
            Ok(())
        }
        (false, true) => fs::write(path, new).with_context(|| format!("writing {path}")),
        (false, false) => anyhow::bail!("the committed files are what NVRTC {VERSION} gives"),
    };
    let mut passed = true;
    let mut report = |name: &str, result: Result<()>| {
        if let Err(error) = result {
            println!("{name}: {error:#}");
            passed = false;
        }
    };
    let keep = |path: &Utf8Path, code: &[u8]| match check {
        true => Ok(()),
        false => fs::write(path, code).with_context(|| format!("writing {path}")),
    };
    for source in PROBE {
        report(source, compile(&nvrtc, root, source, &[], settle, keep).map(drop));
    }
    let mut table = Table::default();
    for source in ENGINE {
        let compiled = compile(&nvrtc, root, source, &["-lineinfo"], settle, keep);
        report(source, compiled.and_then(|assembled| table.add(&assembled.ptx, &assembled.logs)));
    }
    report(RESOURCES, settle(&root.join(RESOURCES), table.json().as_bytes()));
    Ok(passed)
}

/// What the assembler said of one source.
struct Assembled {
    /// The source's PTX.
    ptx: String,
    /// Per architecture, its log.
    logs: Vec<(&'static str, String)>,
}

/// Compiles one source for all architectures that this NVRTC knows. Hands its PTX and the PTX's path to `settle`, and
/// each machine code with its path to `keep`.
fn compile(
    nvrtc: &Nvrtc,
    root: &Utf8Path,
    source: &str,
    options: &[&str],
    settle: impl FnOnce(&Utf8Path, &[u8]) -> Result<()>,
    keep: impl Fn(&Utf8Path, &[u8]) -> Result<()>,
) -> Result<Assembled> {
    let path = root.join(source);
    let text = read(&path)?;
    let mut logs = Vec::new();
    for (architecture, number) in MACHINE {
        if nvrtc.knows(number)? {
            // Without the options of the PTX: with line information, NVRTC 12.0 overflows its stack for sm_90.
            let made = nvrtc.compile(&text, architecture, &["--ptxas-options=-v"])?;
            println!("{source}: {architecture}, {} bytes", made.code.len());
            keep(&path.with_extension(format!("{architecture}.cubin")), &made.code)?;
            logs.push((architecture, made.log));
        } else {
            println!("skipped: this NVRTC does not know {architecture}");
        }
    }
    let ptx = String::from_utf8(nvrtc.compile(&text, PTX, options)?.code).context("PTX is text")?;
    let ptx = without_folders(&ptx);
    settle(&path.with_extension("ptx"), ptx.as_bytes())?;
    Ok(Assembled { ptx, logs })
}

/// PTX whose line information names files without their folder, which NVRTC takes from the current one.
fn without_folders(ptx: &str) -> String {
    let line = |line: &str| match line.split_once('"') {
        Some((start, path)) if line.trim_start().starts_with(".file") => {
            format!("{start}\"{}\n", path.rsplit('/').next().unwrap_or(path))
        }
        _ => format!("{line}\n"),
    };
    ptx.lines().map(line).collect()
}

/// A source with the headers (`*.cuh`) of its folder.
fn read(path: &Utf8Path) -> Result<Source> {
    let text = |path: &Utf8Path| fs::read_to_string(path).with_context(|| format!("reading {path}"));
    let name = |path: &Utf8Path| path.file_name().map(ToOwned::to_owned).context("a source has a name");
    let folder = path.parent().context("a source lies in a folder")?;
    let mut headers = Vec::new();
    for entry in folder.read_dir_utf8().with_context(|| format!("reading {folder}"))? {
        let header = entry?;
        if header.path().extension() == Some("cuh") {
            headers.push((name(header.path())?, text(header.path())?));
        }
    }
    headers.sort();
    Ok(Source { name: name(path)?, text: text(path)?, headers })
}

/// An error if the file is not `new`.
fn compare(path: &Utf8Path, new: &[u8]) -> Result<()> {
    let committed = fs::read(path).with_context(|| format!("reading {path}"))?;
    anyhow::ensure!(
        committed == new,
        "{path} differs from what its sources give: run `cargo xtask kernels` and commit the result"
    );
    Ok(())
}

#[cfg(test)]
mod tests;
