//! The cache folder, as `.ci/run` has it: what is fetched or built once and kept between runs.

use anyhow::{Context, Result};
use cargo_metadata::camino::Utf8PathBuf;

/// `SLUICE_CACHE`, or `.cache/sluice` in the home folder.
pub fn folder() -> Result<Utf8PathBuf> {
    if let Some(folder) = variable("SLUICE_CACHE") {
        return Ok(folder.into());
    }
    let home = variable("HOME").context("neither SLUICE_CACHE nor HOME is set")?;
    Ok(Utf8PathBuf::from(home).join(".cache/sluice"))
}

/// An environment variable that is set and not empty.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
