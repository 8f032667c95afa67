//! `cargo xtask kernels`: CUDA sources to committed PTX by NVRTC, which needs neither a GPU nor a driver.
//!
//! nvJitLink assembles the committed PTX for each architecture, as a driver does: PTX alone lets through what the
//! assembler refuses, and the assembler says what each kernel of the engine needs. That table is committed as
//! `kernels/cuda/resources.json`. The machine code itself (`NAME.sm_90.cubin` next to the PTX) is for disassemblers:
//! git ignores it, and the product loads the PTX.
//!
//! To add a source, add a row to [`PROBE`] or [`ENGINE`].

mod find;
mod library;
mod nvjitlink;
mod nvrtc;
mod resources;

use std::fs;

use anyhow::{Context, Result};
use cargo_metadata::camino::{Utf8Path, Utf8PathBuf};

use find::{Found, NVJITLINK, NVRTC, Wheel};
use nvjitlink::NvJitLink;
use nvrtc::{Nvrtc, Source};
use resources::Table;

use crate::cargo_tool::run_or_skip;

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
const MACHINE: [&str; 3] = ["sm_80", "sm_90", "sm_100"];

/// Compiles every source; `check` compares the committed files instead of writing them. `false` if one differs or does
/// not compile.
pub fn run(root: &Utf8Path, check: bool) -> Result<bool> {
    with(root, check, &find()?)
}

/// Runs the check as a stage of `cargo xtask test`. Without compiler and assembler it prints that and passes, and in CI
/// (`CI=true`) it fails.
pub fn stage(root: &Utf8Path) -> Result<bool> {
    run_or_skip("the compilation of the CUDA sources", find(), |found| with(root, true, found))
}

/// Folders of compiler and assembler.
struct Tools {
    nvrtc: Found,
    nvjitlink: Found,
}

fn find() -> Result<Tools> {
    Ok(Tools { nvrtc: NVRTC.find()?, nvjitlink: NVJITLINK.find()? })
}

/// Whether files are written or compared.
#[derive(Clone, Copy)]
struct Output {
    check: bool,
}

impl Output {
    /// Compares or writes a committed file that is what `wheel` gives.
    fn settle(self, path: &Utf8Path, new: &[u8], wheel: &Wheel, pinned: bool) -> Result<()> {
        match (self.check, pinned) {
            (true, true) => compare(path, new),
            (true, false) => {
                println!("skipped: {path} is not compared, it is what {} gives", wheel.requirement());
                Ok(())
            }
            (false, true) => fs::write(path, new).with_context(|| format!("writing {path}")),
            (false, false) => anyhow::bail!("{path} is what {} gives", wheel.requirement()),
        }
    }

    /// Writes a file that is not committed, unless files are compared.
    fn keep(self, path: &Utf8Path, code: &[u8]) -> Result<()> {
        if self.check { Ok(()) } else { fs::write(path, code).with_context(|| format!("writing {path}")) }
    }
}

fn with(root: &Utf8Path, check: bool, tools: &Tools) -> Result<bool> {
    let nvrtc = Nvrtc::load(&tools.nvrtc.folder)?;
    let assembler = NvJitLink::load(&tools.nvjitlink.folder)?;
    let (major, minor) = nvrtc.version()?;
    println!("NVRTC {major}.{minor} in {}, nvJitLink in {}", tools.nvrtc.folder, tools.nvjitlink.folder);
    let output = Output { check };
    let made = |source: &str, options: &[&str]| {
        let settle = |path: &Utf8Path, ptx: &[u8]| output.settle(path, ptx, &NVRTC, tools.nvrtc.pinned);
        let path = compile(&nvrtc, root, source, options, settle)?;
        assemble(&assembler, &path, |path, code| output.keep(path, code))
    };
    let mut passed = true;
    let mut report = |name: &str, result: Result<()>| {
        if let Err(error) = result {
            println!("{name}: {error:#}");
            passed = false;
        }
    };
    for source in PROBE {
        report(source, made(source, &[]).map(drop));
    }
    let mut table = Table::default();
    for source in ENGINE {
        let assembled = made(source, &["-lineinfo"]);
        report(source, assembled.and_then(|assembled| table.add(&assembled.ptx, &assembled.logs)));
    }
    let table = table.json();
    let settled = output.settle(&root.join(RESOURCES), table.as_bytes(), &NVJITLINK, tools.nvjitlink.pinned);
    report(RESOURCES, settled);
    Ok(passed)
}

/// Compiles one source, and hands its PTX and the PTX's path to `settle`. Returns the path.
fn compile(
    nvrtc: &Nvrtc,
    root: &Utf8Path,
    source: &str,
    options: &[&str],
    settle: impl FnOnce(&Utf8Path, &[u8]) -> Result<()>,
) -> Result<Utf8PathBuf> {
    let path = root.join(source);
    let ptx = without_folders(&nvrtc.compile(&read(&path)?, PTX, options)?);
    let path = path.with_extension("ptx");
    settle(&path, ptx.as_bytes())?;
    Ok(path)
}

/// What the assembler said of one file of PTX.
struct Assembled {
    /// The PTX.
    ptx: String,
    /// Per architecture, its log.
    logs: Vec<(&'static str, String)>,
}

/// Assembles a committed file of PTX for all architectures, and hands each machine code with its path to `keep`.
fn assemble(
    assembler: &NvJitLink,
    path: &Utf8Path,
    keep: impl Fn(&Utf8Path, &[u8]) -> Result<()>,
) -> Result<Assembled> {
    let ptx = fs::read_to_string(path).with_context(|| format!("reading {path}"))?;
    let mut logs = Vec::new();
    for architecture in MACHINE {
        let code = assembler.assemble(&ptx, architecture)?;
        println!("{path}: {architecture}, {} bytes", code.bytes.len());
        keep(&path.with_extension(format!("{architecture}.cubin")), &code.bytes)?;
        logs.push((architecture, code.log));
    }
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
