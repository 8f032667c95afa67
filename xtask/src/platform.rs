//! Platforms of the images, and the tools that build for another one than this machine's.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use cargo_metadata::camino::{Utf8Path, Utf8PathBuf};
use clap::ValueEnum;

use crate::debian::{self, Need};

/// A platform of the images, by the name that OCI has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Platform {
    /// x86-64.
    Amd64,
    /// AArch64: a GH200.
    Arm64,
}

/// The cross compiler for arm64, by Debian's names.
const ARM64_COMPILER: [Need; 2] = [
    Need::new(&["/usr/bin/aarch64-linux-gnu-gcc"], "gcc-aarch64-linux-gnu"),
    Need::new(&["/usr/aarch64-linux-gnu/lib/libc.so"], "libc6-dev-arm64-cross"),
];

/// The cross compiler for amd64.
const AMD64_COMPILER: [Need; 2] = [
    Need::new(&["/usr/bin/x86_64-linux-gnu-gcc"], "gcc-x86-64-linux-gnu"),
    Need::new(&["/usr/x86_64-linux-gnu/lib/libc.so"], "libc6-dev-amd64-cross"),
];

impl Platform {
    /// Returns the platform of this machine.
    pub fn host() -> Platform {
        if cfg!(target_arch = "aarch64") { Platform::Arm64 } else { Platform::Amd64 }
    }

    /// Returns the name in an image's configuration.
    pub fn name(self) -> &'static str {
        match self {
            Platform::Amd64 => "amd64",
            Platform::Arm64 => "arm64",
        }
    }

    /// Returns cargo's name of the platform.
    pub fn target(self) -> &'static str {
        match self {
            Platform::Amd64 => "x86_64-unknown-linux-gnu",
            Platform::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// Returns the GNU name, with which tools and folders of a cross compiler begin.
    pub fn gnu(self) -> &'static str {
        match self {
            Platform::Amd64 => "x86_64-linux-gnu",
            Platform::Arm64 => "aarch64-linux-gnu",
        }
    }

    /// Whether this machine runs no program of the platform.
    pub fn is_foreign(self) -> bool {
        self != Platform::host()
    }

    /// Returns the folder under which a cross compiler has the loader and the libraries of the platform.
    pub fn sysroot(self) -> Utf8PathBuf {
        Utf8PathBuf::from("/usr").join(self.gnu())
    }

    /// Sets what cargo, and the crates that compile C, need to build for the platform. Tests run under QEMU.
    pub fn set_environment(self, command: &mut Command) {
        let gcc = format!("{}-gcc", self.gnu());
        command.env(self.cargo_variable("LINKER"), &gcc);
        command.env(format!("CC_{}", self.target().replace('-', "_")), &gcc);
        command.env(self.cargo_variable("RUNNER"), format!("{} -L {}", self.emulator(), self.sysroot()));
    }

    /// Lets tests that [`Self::set_environment`] runs under QEMU have pages of this size, and names the size to them. With
    /// such pages the emulator fails when a program reads its own symbols, for a backtrace.
    pub fn set_page_bytes(self, command: &mut Command, page_bytes: u32) {
        let runner = format!("{} -p {page_bytes} -L {}", self.emulator(), self.sysroot());
        command.env(self.cargo_variable("RUNNER"), runner).env("RUST_BACKTRACE", "0");
        command.env("SLUICE_TEST_PAGE_BYTES", page_bytes.to_string());
    }

    fn cargo_variable(self, what: &str) -> String {
        format!("CARGO_TARGET_{}_{what}", self.target().replace('-', "_").to_uppercase())
    }

    /// Returns the program of QEMU that emulates one process of the platform.
    pub fn emulator(self) -> &'static str {
        match self {
            Platform::Amd64 => "qemu-x86_64",
            Platform::Arm64 => "qemu-aarch64",
        }
    }

    /// Gets rustc's target and the cross compiler; `allowed` lets it install packages.
    ///
    /// # Errors
    /// What is missing, and how to get it.
    pub fn provide_compiler(self, root: &Utf8Path, allowed: bool) -> Result<()> {
        let needs = if self == Platform::Arm64 { &ARM64_COMPILER } else { &AMD64_COMPILER };
        debian::provide(needs, &format!("a build for {}", self.name()), allowed)?;
        let mut rustup = Command::new("rustup");
        rustup.args(["target", "add", self.target()]).current_dir(root).stdin(Stdio::null());
        let output = rustup.output().context("cannot start rustup, which adds the target")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "rustup target add {}: {}", self.target(), said.trim());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::Platform;

    #[test]
    fn a_build_for_another_platform_has_its_linker_its_c_compiler_and_its_emulator() {
        let mut command = Command::new("cargo");
        Platform::Arm64.set_environment(&mut command);
        let set: Vec<_> = command
            .get_envs()
            .map(|(name, value)| format!("{}={}", name.display(), value.unwrap_or_default().display()))
            .collect();
        assert_eq!(
            set,
            [
                "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc",
                "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=qemu-aarch64 -L /usr/aarch64-linux-gnu",
                "CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc",
            ]
        );
        Platform::Arm64.set_page_bytes(&mut command, 65_536);
        let runner = command.get_envs().find(|(name, _)| name.to_string_lossy().ends_with("_RUNNER"));
        let expected = "qemu-aarch64 -p 65536 -L /usr/aarch64-linux-gnu";
        assert_eq!(runner.and_then(|(_, value)| value?.to_str()), Some(expected));
    }
}
