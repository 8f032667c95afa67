//! Starting cargo from inside cargo.

use std::io::BufReader;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use cargo_metadata::camino::Utf8Path;
use cargo_metadata::{Artifact, Message};

/// What `cargo run` sets for its child. Build scripts that watch one of these would run again under a nested cargo.
const OF_THE_OUTER_CARGO: [&str; 6] = [
    "CARGO_MANIFEST_DIR",
    "CARGO_MANIFEST_PATH",
    "CARGO_BIN_NAME",
    "CARGO_CRATE_NAME",
    "CARGO_PRIMARY_PACKAGE",
    "OUT_DIR",
];

/// A command that runs cargo in the workspace root.
pub fn cargo(root: &Utf8Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).args(arguments);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("CARGO_PKG_") || OF_THE_OUTER_CARGO.contains(&name.as_str()) {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a program with its output shown as it comes; `false` if it failed.
pub fn passes(mut command: Command) -> Result<bool> {
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    let name = Path::new(command.get_program()).file_name().unwrap_or_default().display().to_string();
    println!("$ {name} {}", words.join(" "));
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("cannot start {name}"))?;
    Ok(status.success())
}

/// Runs a build with its messages as JSON, which are read as they come; `None` if it failed.
pub fn artifacts(mut build: Command) -> Result<Option<Vec<Artifact>>> {
    build.args(["--message-format", "json-render-diagnostics"]).stdin(Stdio::null());
    let mut child = build.stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
    let stdout = child.stdout.take().context("cargo has no output")?;
    let mut artifacts = Vec::new();
    for message in Message::parse_stream(BufReader::new(stdout)) {
        if let Message::CompilerArtifact(artifact) = message.context("the output of cargo")? {
            artifacts.push(artifact);
        }
    }
    Ok(child.wait()?.success().then_some(artifacts))
}

/// Runs cargo and returns what it printed on stdout.
pub fn output(mut command: Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().context("cannot start cargo")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    String::from_utf8(output.stdout).context("cargo printed something that is not UTF-8")
}

#[cfg(test)]
mod tests {
    use super::cargo;

    #[test]
    fn a_nested_cargo_does_not_see_the_package_that_the_outer_one_runs() {
        assert!(std::env::var_os("CARGO_PKG_NAME").is_some(), "cargo test sets it");
        let command = cargo(".".into(), &["--version"]);
        let hidden: Vec<_> =
            command.get_envs().filter(|(_, value)| value.is_none()).map(|(name, _)| name).collect();
        assert!(hidden.contains(&"CARGO_PKG_NAME".as_ref()));
        assert!(hidden.contains(&"CARGO_MANIFEST_DIR".as_ref()));
        assert!(!hidden.contains(&"PATH".as_ref()));
    }
}
