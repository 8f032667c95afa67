//! Trace files.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use sluice_sim::tunables;
use sluice_sim::workload::table::Table;

/// Reads the part of a file that may be read, or, for tunables that were committed before, the part that is held back.
pub fn read(file: &str, data: &Path, held_back: bool) -> Result<Table> {
    let may = !held_back || tunables::digest() == tunables::COMMITTED;
    ensure!(may, "what is held back is read for committed tunables only: these are {}", tunables::told());
    let path = find(file, data)?;
    let name = path.display().to_string();
    let text = std::fs::read_to_string(&path).with_context(|| name.clone())?;
    Ok(Table::parse(&name, &text, held_back)?)
}

/// As it is given, else in the folder of data.
fn find(file: &str, data: &Path) -> Result<PathBuf> {
    let places = [PathBuf::from(file), data.join(file), data.join("data").join(file)];
    match places.iter().find(|place| place.is_file()) {
        Some(place) => Ok(place.clone()),
        None => {
            let tried: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
            bail!("there is no such file: {}", tried.join(", "))
        }
    }
}
