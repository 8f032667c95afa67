//! The program `mdbook`: one version, from the PATH or built once into the cache folder.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use cargo_metadata::camino::Utf8Path;

use crate::cargo_tool::CargoTool;

/// What `docs/book.toml` is written for.
pub const MDBOOK: CargoTool = CargoTool {
    name: "mdbook",
    version: "0.5.4",
    digest: "5f68ffebcd0b9a4eb72aaacc4342bc94e1d63c01893b7c921437f6ef02443699",
    // The site needs its search; it needs no server and watches no files.
    features: &["--no-default-features", "--features", "search"],
};

/// Makes the book of `source` in `to`.
pub fn build(program: &Utf8Path, source: &Utf8Path, to: &Utf8Path) -> Result<()> {
    let status = Command::new(program)
        .args(["build", "--dest-dir", to.as_str(), source.as_str()])
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot start {program}"))?;
    ensure!(status.success(), "mdbook could not build the site, see above");
    Ok(())
}
