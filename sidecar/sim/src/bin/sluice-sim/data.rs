//! Reads trace files.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use sluice_sim::tunables;
use sluice_sim::workload::TraceSplit;
use sluice_sim::workload::table::Table;

/// Published files. Their last third is held back from tuning; other files are read completely.
const PUBLISHED: [&str; 4] =
    ["azure_llm_2023_code.csv", "prism_multi_model.csv", "sharegpt_lengths.csv", "alpaca_lengths.csv"];

/// Reads the permitted part of a file; with `held_back`, its held-back part, which requires the committed tunables.
pub fn read(file: &str, data: &Path, held_back: bool) -> Result<Table> {
    let may = !held_back || tunables::digest() == tunables::COMMITTED;
    ensure!(
        may,
        "the held-back data may be read only with the committed tunables, but these are {}",
        tunables::summary()
    );
    let path = find(file, data)?;
    let name = path.display().to_string();
    let text = std::fs::read_to_string(&path).with_context(|| name.clone())?;
    let published = path.file_name().is_some_and(|file| PUBLISHED.iter().any(|name| file == *name));
    let part = match (published, held_back) {
        (false, _) => TraceSplit::All,
        (true, false) => TraceSplit::Shown,
        (true, true) => TraceSplit::HeldBack,
    };
    Ok(Table::parse(&name, &text, part)?)
}

/// Finds a file as given, else in the data folder or its folder `data`.
fn find(file: &str, data: &Path) -> Result<PathBuf> {
    let places = [PathBuf::from(file), data.join(file), data.join("data").join(file)];
    if let Some(place) = places.iter().find(|place| place.is_file()) {
        return Ok(place.clone());
    }
    ensure!(!places[0].is_dir(), "{file} is a folder; name a CSV file with a heading and rows");
    let mut others: Vec<_> = places[1..].iter().map(|place| place.display().to_string()).collect();
    others.retain(|other| other != file);
    let others = if others.is_empty() { String::new() } else { format!(", nor {}", others.join(", nor ")) };
    bail!("file {file} does not exist{others}; name the folder of traces with --data")
}
