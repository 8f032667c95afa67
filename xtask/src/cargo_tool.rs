//! Programs of the crates registry: one version and digest of each, from the PATH or built once into the cache folder.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use cargo_metadata::camino::{Utf8Path, Utf8PathBuf};
use ring::digest;

use crate::cache::{self, variable};
use crate::process;

/// A program that cargo builds of a crate of the same name.
pub struct CargoTool {
    /// Name of the crate and of its program.
    pub name: &'static str,
    /// The one version that will do.
    pub version: &'static str,
    /// SHA-256 digest of the crate as the registry hands it out. The crate's own lock file has those of the others.
    pub digest: &'static str,
    /// Words that choose its features.
    pub features: &'static [&'static str],
}

/// Runs a check with its program; `false` if it found something. Where the program cannot be had, it prints that `what` is
/// skipped and passes, and in CI (`CI=true`) it fails.
pub fn run_or_skip<P>(
    what: &str,
    program: Result<P>,
    check: impl FnOnce(&P) -> Result<bool>,
) -> Result<bool> {
    run_or_skip_in(variable("CI").as_deref() == Some("true"), what, program, check)
}

fn run_or_skip_in<P>(
    ci: bool,
    what: &str,
    program: Result<P>,
    check: impl FnOnce(&P) -> Result<bool>,
) -> Result<bool> {
    match program {
        Ok(program) => check(&program),
        Err(error) if ci => Err(error),
        Err(error) => {
            println!("skipped: {what}: {error:#}");
            Ok(true)
        }
    }
}

impl CargoTool {
    /// The program on the PATH, the one in the cache folder, or one that cargo builds there now.
    ///
    /// # Errors
    /// There is none, and cargo cannot build it: most often the registry cannot be reached.
    pub fn find(&self) -> Result<Utf8PathBuf> {
        let on_path = Utf8PathBuf::from(self.name);
        if self.is_version(&on_path) {
            return Ok(on_path);
        }
        let home = cache::folder()?.join(format!("{}-{}", self.name, self.version));
        let program = home.join("bin").join(self.name);
        if !self.is_version(&program) {
            self.install(&home)?;
            let (name, version) = (self.name, self.version);
            ensure!(
                self.is_version(&program),
                "{program} is not {name} {version}; remove {home} and try again"
            );
        }
        Ok(program)
    }

    /// Builds it from the registry with cargo. Cargo locks `home` during the build, so that two runs build it once.
    fn install(&self, home: &Utf8Path) -> Result<()> {
        let (name, version) = (self.name, self.version);
        println!("building {name} {version} into {home}; this takes minutes, once");
        let needs = || {
            format!(
                "cargo could not build {name} {version} (see above). It needs the crates registry once: run this \
                 with a network, or put {name} {version} on the PATH"
            )
        };
        // Cargo puts the crate into its cache, and `install` takes it from there.
        let crate_of_version = format!("{name}@{version}");
        let download = ["info", "--quiet", "--registry", "crates-io", &crate_of_version];
        process::output(process::cargo("/".into(), &download)).with_context(needs)?;
        self.check_digest(&cargo_home()?)?;
        let arguments = ["install", name, "--version", version, "--locked", "--root", home.as_str()];
        let mut command = process::cargo("/".into(), &arguments);
        command.args(self.features);
        ensure!(process::passes(command)?, needs());
        Ok(())
    }

    /// An error unless cargo's cache holds the crate with the digest that we expect.
    fn check_digest(&self, cargo_home: &Utf8Path) -> Result<()> {
        let file = format!("{}-{}.crate", self.name, self.version);
        let cache = cargo_home.join("registry/cache");
        let registries = cache.read_dir_utf8().with_context(|| format!("reading {cache}"))?;
        let paths = registries.flatten().map(|registry| registry.path().join(&file));
        let paths: Vec<_> = paths.filter(|path| path.is_file()).collect();
        ensure!(!paths.is_empty(), "{cache} has no {file}");
        for path in paths {
            let bytes = fs::read(&path).with_context(|| format!("reading {path}"))?;
            let digest = digest::digest(&digest::SHA256, &bytes);
            let digest: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
            ensure!(digest == self.digest, "the SHA-256 digest of {path} is {digest}, not {}", self.digest);
        }
        Ok(())
    }

    fn is_version(&self, program: &Utf8Path) -> bool {
        let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
        output.is_ok_and(|output| self.is_ours(&String::from_utf8_lossy(&output.stdout)))
    }

    /// Whether `--version` printed our version, as in `mdbook v0.5.4` or `cargo-deny 0.20.2`.
    fn is_ours(&self, printed: &str) -> bool {
        printed
            .split_whitespace()
            .nth(1)
            .is_some_and(|version| version.trim_start_matches('v') == self.version)
    }
}

/// Where cargo keeps what it downloads.
fn cargo_home() -> Result<Utf8PathBuf> {
    if let Some(home) = variable("CARGO_HOME") {
        return Ok(home.into());
    }
    let home = variable("HOME").context("neither CARGO_HOME nor HOME is set")?;
    Ok(Utf8PathBuf::from(home).join(".cargo"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use cargo_metadata::camino::Utf8Path;

    use super::{CargoTool, run_or_skip_in};

    /// Its digest is that of the three bytes `abc`, as FIPS 180-2 prints it.
    const TOOL: CargoTool = CargoTool {
        name: "tool",
        version: "0.5.4",
        digest: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        features: &[],
    };

    #[test]
    fn only_the_one_version_will_do() {
        assert!(TOOL.is_ours("tool v0.5.4\n"));
        assert!(TOOL.is_ours("tool 0.5.4\n"));
        assert!(!TOOL.is_ours("tool v0.4.52\n"));
        assert!(!TOOL.is_ours(""));
    }

    #[test]
    fn without_its_program_a_check_fails_in_ci_and_is_skipped_elsewhere() {
        let run = |ci, program| run_or_skip_in(ci, "a check", program, |found: &bool| Ok(*found));
        let missing = || Err(anyhow::anyhow!("no program"));
        assert_eq!(run(true, missing()).unwrap_err().to_string(), "no program");
        assert!(run(false, missing()).unwrap());
        for ci in [true, false] {
            assert!(run(ci, Ok(true)).unwrap());
            assert!(!run(ci, Ok(false)).unwrap(), "what the check says");
        }
    }

    #[test]
    fn a_crate_with_another_digest_and_a_missing_crate_are_refused() {
        let home = tempfile::tempdir().unwrap();
        let home = Utf8Path::from_path(home.path()).unwrap();
        let registry = home.join("registry/cache/registry");
        fs::create_dir_all(&registry).unwrap();
        let missing = TOOL.check_digest(home).unwrap_err().to_string();
        assert!(missing.ends_with("has no tool-0.5.4.crate"), "{missing}");
        let file = registry.join("tool-0.5.4.crate");
        fs::write(&file, "abc").unwrap();
        TOOL.check_digest(home).unwrap();
        fs::write(&file, "abd").unwrap();
        let other = TOOL.check_digest(home).unwrap_err().to_string();
        assert!(
            other.contains("tool-0.5.4.crate is ") && other.ends_with(&format!("not {}", TOOL.digest)),
            "{other}"
        );
    }
}
