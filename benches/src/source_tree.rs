//! The tree that is measured: where it is, and how cargo builds it.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use cargo_metadata::MetadataCommand;
use cargo_metadata::camino::Utf8PathBuf;

use crate::child_process::{Group, Stop, capture};

/// What `cargo run` sets for its child. Build scripts that watch one of these would run again under a nested cargo.
const OF_THE_OUTER_CARGO: [&str; 6] = [
    "CARGO_MANIFEST_DIR",
    "CARGO_MANIFEST_PATH",
    "CARGO_BIN_NAME",
    "CARGO_CRATE_NAME",
    "CARGO_PRIMARY_PACKAGE",
    "OUT_DIR",
];

/// The workspace around the current folder.
#[derive(Clone, Debug)]
pub struct SourceTree {
    /// Absolute path of its root.
    pub root: Utf8PathBuf,
    /// Absolute path of cargo's target folder.
    pub target: Utf8PathBuf,
}

impl SourceTree {
    /// Asks cargo.
    ///
    /// # Errors
    /// The current folder is in no workspace.
    pub fn open() -> Result<SourceTree> {
        let metadata = MetadataCommand::new().no_deps().exec().context("cargo metadata")?;
        Ok(SourceTree { root: metadata.workspace_root, target: metadata.target_directory })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(&self.root).args(arguments);
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("CARGO_PKG_") || OF_THE_OUTER_CARGO.contains(&name.as_str()) {
                command.env_remove(name);
            }
        }
        command
    }

    /// Runs cargo in the root with its words on stderr.
    ///
    /// # Errors
    /// Cargo failed, or a signal has come.
    pub fn cargo(&self, arguments: &[&str], stop: &Stop) -> Result<()> {
        eprintln!("$ cargo {}", arguments.join(" "));
        let status = Group::spawn(self.command(arguments).stdout(std::process::Stdio::null()))?.wait(stop)?;
        ensure!(status.success(), "cargo {} failed", arguments.join(" "));
        Ok(())
    }

    /// Runs cargo in the root. Returns what it printed on stdout.
    ///
    /// # Errors
    /// As [`SourceTree::cargo`].
    pub fn cargo_output(&self, arguments: &[&str], stop: &Stop) -> Result<String> {
        eprintln!("$ cargo {}", arguments.join(" "));
        let (status, printed) = capture(&mut self.command(arguments), stop)?;
        ensure!(status.success(), "cargo {} failed", arguments.join(" "));
        Ok(printed)
    }
}

#[cfg(test)]
mod tests {
    use super::SourceTree;

    #[test]
    fn a_nested_cargo_does_not_see_the_package_that_the_outer_one_runs() {
        assert!(std::env::var_os("CARGO_PKG_NAME").is_some(), "cargo test sets it");
        let tree = SourceTree { root: ".".into(), target: "target".into() };
        let command = tree.command(&["--version"]);
        let hidden: Vec<_> =
            command.get_envs().filter(|(_, value)| value.is_none()).map(|(name, _)| name).collect();
        assert!(hidden.contains(&"CARGO_PKG_NAME".as_ref()));
        assert!(hidden.contains(&"CARGO_MANIFEST_DIR".as_ref()));
        assert!(!hidden.contains(&"PATH".as_ref()));
    }
}
