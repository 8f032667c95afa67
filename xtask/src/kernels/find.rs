//! Where NVIDIA's compiler and assembler come from: folders that the user names, or wheels of PyPI, each downloaded once
//! into the cache folder.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::camino::Utf8PathBuf;

use crate::cache::{self, variable};

/// A library, and the wheel that has it.
pub struct Wheel {
    /// Name of its folder in the cache.
    name: &'static str,
    /// Name of the wheel.
    package: &'static str,
    /// The pinned version.
    version: &'static str,
    /// Folder of the library in the wheel.
    library: &'static str,
    /// The variable that names a folder with the library, instead of the wheel.
    variable: &'static str,
}

/// NVRTC, which makes PTX. The oldest of CUDA 12: PTX of a newer compiler is refused by older drivers.
pub const NVRTC: Wheel = Wheel {
    name: "nvrtc",
    package: "nvidia-cuda-nvrtc-cu12",
    version: "12.0.140",
    library: "nvidia/cuda_nvrtc/lib",
    variable: "SLUICE_NVRTC",
};

/// nvJitLink, which assembles PTX as a driver does. The newest of CUDA 12; that of 12.0 overflows its stack where the
/// PTX has line information and the device is an sm_90.
pub const NVJITLINK: Wheel = Wheel {
    name: "nvjitlink",
    package: "nvidia-nvjitlink-cu12",
    version: "12.9.86",
    library: "nvidia/nvjitlink/lib",
    variable: "SLUICE_NVJITLINK",
};

/// Folder of a library, and whether it is of the pinned version, so that what it gives can be compared.
pub struct Found {
    /// The folder.
    pub folder: Utf8PathBuf,
    /// Whether it is of the wheel of the pinned version.
    pub pinned: bool,
}

impl Wheel {
    /// Finds the library, downloading the wheel if necessary.
    ///
    /// # Errors
    /// There is none, and pip cannot download it: the message names the package, the variable and the reason.
    pub fn find(&self) -> Result<Found> {
        if let Some(folder) = variable(self.variable) {
            return Ok(Found { folder: folder.into(), pinned: false });
        }
        let home =
            cache::folder()?.join(format!("{}-{}-{}", self.name, self.version, std::env::consts::ARCH));
        let folder = home.join(self.library);
        if !folder.is_dir() {
            self.download(&home).with_context(|| {
                format!(
                    "python3 with pip must download {} once, or {} names the folder of the library",
                    self.requirement(),
                    self.variable
                )
            })?;
        }
        ensure!(folder.is_dir(), "the wheel {} has no folder {}", self.requirement(), self.library);
        Ok(Found { folder, pinned: true })
    }

    /// Name and version of the wheel.
    pub fn requirement(&self) -> String {
        format!("{}=={}", self.package, self.version)
    }

    /// Downloads and unpacks the wheel next to `home`, then moves it there in one rename.
    fn download(&self, home: &Utf8PathBuf) -> Result<()> {
        let draft = Utf8PathBuf::from(format!("{home}.{}", std::process::id()));
        // One more try, and no more: without a network the answer should not take minutes.
        let pip = ["-m", "pip", "download", "--quiet", "--retries", "1", "--no-deps", "--dest"];
        let result = python(&[&pip[..], &[draft.as_str(), &self.requirement()]].concat())
            .and_then(|()| unpack(&draft))
            .and_then(|()| match fs::rename(&draft, home) {
                // Another run was faster.
                Err(_) if home.is_dir() => Ok(()),
                other => other.context("renaming the unpacked wheel"),
            });
        let _ = fs::remove_dir_all(&draft);
        result
    }
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
