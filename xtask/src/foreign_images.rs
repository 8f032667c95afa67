//! The stage `arm64` of `cargo xtask test`: the images of the other platform than this machine's. A GH200 is arm64.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use cargo_metadata::camino::Utf8Path;
use tempfile::TempDir;

use crate::cache::variable;
use crate::debian::{self, Need};
use crate::image::{self, IMAGES, Image};
use crate::platform::Platform;
use crate::process;
use crate::workspace::Workspace;

const EMULATION: [Need; 1] = [Need::new(&["/usr/bin/qemu-aarch64"], "qemu-user")];

/// Bytes of a page of an arm64 kernel for servers.
const LARGE_PAGE_BYTES: u32 = 64 << 10;

/// Tests that run under the emulator: the link, and the interpreter of the kernels.
const EMULATED: [&str; 8] = ["test", "--locked", "-p", "sluice-link", "-p", "sluice-ptx", "--lib", "--tests"];

/// Tests that run there with pages of 64 KiB too, as the kernel of a GH200 has them: the control page, the tables, chunks
/// and their mappings, the ledger. Tests that start processes are left out, because those would need the emulator.
const WITH_LARGE_PAGES: [&str; 19] = [
    "test",
    "--locked",
    "-p",
    "sluice-link",
    "-p",
    "sluice-memory",
    "--test",
    "main",
    "--",
    "control::",
    "tables::",
    "handshake::",
    "pool::",
    "mapping::",
    "conformance::a_",
    "conformance::fill",
    "gpu_ledger::arithmetic",
    "gpu_ledger::fence",
    // The emulator's own mappings are among those that it reads.
    "--skip=drop_unmaps_reservation",
];

/// Builds the images for arm64, starts each program of them under an emulator, and runs the tests of the link and of the
/// interpreter of PTX there, those of shared memory with pages of 64 KiB too. Without the compiler or the emulator it
/// says what is skipped.
pub fn stage(workspace: &Workspace) -> Result<bool> {
    let platform = Platform::Arm64;
    if !platform.is_foreign() {
        println!("skipped: this machine is arm64, so the other stages build and test for it");
        return Ok(true);
    }
    let ci = variable("CI").as_deref() == Some("true");
    if let Err(error) = platform.provide_compiler(&workspace.root, ci) {
        println!("skipped: nothing was built for arm64: {error:#}");
        return Ok(true);
    }
    let programs = IMAGES.iter().flat_map(|image| ["--bin", image.binary]);
    let build: Vec<_> = ["build", "--locked", "--workspace"].into_iter().chain(programs).collect();
    if !process::passes(cargo(workspace, platform, &build))? {
        return Ok(false);
    }
    let images = image::of_tests(&workspace.target.join(platform.target()).join("debug"), platform)?;
    if let Err(error) = debian::provide(&EMULATION, "a test for arm64", ci) {
        println!("skipped: nothing ran for arm64: {error:#}");
        return Ok(true);
    }
    IMAGES.iter().try_for_each(|image| starts(&images, image, platform))?;
    if !process::passes(cargo(workspace, platform, &EMULATED))? {
        return Ok(false);
    }
    let mut large_pages = cargo(workspace, platform, &WITH_LARGE_PAGES);
    platform.set_page_bytes(&mut large_pages, LARGE_PAGE_BYTES);
    process::passes(large_pages)
}

fn cargo(workspace: &Workspace, platform: Platform, words: &[&str]) -> Command {
    let (task, rest) = words.split_first().expect("a task of cargo");
    // Before the words, which may end in those of a test program.
    let mut command = process::cargo(&workspace.root, &[task, "--target", platform.target()]);
    command.args(rest);
    platform.set_environment(&mut command);
    command
}

/// Starts the program of an image, with the loader and the libraries of the image alone.
fn starts(images: &Utf8Path, image: &Image, platform: Platform) -> Result<()> {
    let archive = images.join(format!("{}-{}.tar", image.name, env!("CARGO_PKG_VERSION")));
    let root = unpacked(&archive)?;
    let program = root.path().join("usr/bin").join(image.binary);
    let mut command = Command::new(platform.emulator());
    command.arg("-L").arg(root.path()).arg(program).arg("--version").stdin(Stdio::null());
    let output = command.output().context("cannot start the emulator")?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() || !said.contains(env!("CARGO_PKG_VERSION")) {
        bail!("{} of {archive} does not start: {output:?}", image.binary);
    }
    println!("{archive}: {}", said.trim());
    Ok(())
}

fn unpacked(archive: &Utf8Path) -> Result<TempDir> {
    let root = tempfile::tempdir().context("a folder for temporary files")?;
    let bytes = std::fs::read(archive).with_context(|| format!("reading {archive}"))?;
    for layer in image::unpack::layers(&bytes)? {
        tar::Archive::new(layer.as_slice()).unpack(root.path()).context("unpacking a layer")?;
    }
    Ok(root)
}
