//! `sluice models`: lists and removes the models that `sluice run` has downloaded.

pub mod cache;
pub mod hub_model;

use std::path::PathBuf;

use anyhow::bail;

use crate::{now_unix_ms, print};
use cache::{CachedModel, ModelCache};
use sluice_page::text::formatting::bytes;

/// Options of `sluice models`.
#[derive(Clone, Debug, clap::Args)]
pub struct ModelsArgs {
    /// Where the models are.
    #[command(flatten)]
    pub cache: CacheArgs,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Instead of listing.
    #[command(subcommand)]
    pub command: Option<ModelsCommand>,
}

/// Folder of downloaded models, on the command line.
#[derive(Clone, Debug, clap::Args)]
pub struct CacheArgs {
    /// Folder of downloaded models. Default: `$XDG_CACHE_HOME/sluice/models` or `~/.cache/sluice/models`.
    #[arg(long = "cache", env = "SLUICE_MODELS", value_name = "DIR", global = true)]
    pub folder: Option<PathBuf>,
}

/// Subcommands of `sluice models`.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum ModelsCommand {
    /// Remove models from the cache.
    ///
    /// A name without @REVISION means all revisions. A model that a running `sluice run` uses stays, and makes the
    /// exit
    /// status 1.
    Rm {
        /// ORG/NAME[@REVISION] as `sluice models` prints it, or a URL.
        #[expect(rustdoc::broken_intra_doc_links, reason = "the brackets are part of the help text")]
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

/// Runs the command.
///
/// # Errors
/// The cache cannot be read, a name is not in it, or a model is in use.
pub fn run(args: &ModelsArgs) -> anyhow::Result<()> {
    let cache = ModelCache::open(args.cache.folder.as_deref())?;
    let models = cache.models()?;
    match &args.command {
        Some(_) if args.json => bail!("--json is for the list of models, not for rm"),
        Some(ModelsCommand::Rm { names }) => remove(&cache, &models, names),
        None if args.json => print(serde_json::to_string_pretty(&models)?),
        None if models.is_empty() => print(format_args!("no models in {}", cache.root().display())),
        None => print(table(&models, now_unix_ms())),
    }
}

fn remove(cache: &ModelCache, models: &[CachedModel], names: &[String]) -> anyhow::Result<()> {
    // All names are resolved first, so that a mistake in one removes nothing.
    for name in names {
        if !models.iter().any(|model| model.matches_name(name)) {
            let cached: Vec<_> = models.iter().map(ToString::to_string).collect();
            let known = match &cached[..] {
                [] => "no model is there".to_owned(),
                cached => format!("the models there are {}", cached.join(", ")),
            };
            bail!("{name} is not in {}; {known}", cache.root().display());
        }
    }
    let mut refused = Vec::new();
    for model in models.iter().filter(|model| names.iter().any(|name| model.matches_name(name))) {
        match cache.remove(model) {
            Ok(freed) => print(format_args!("removed {model}: {} freed", bytes(freed)))?,
            Err(error) => refused.push(format!("{error:#}")),
        }
    }
    if refused.is_empty() { Ok(()) } else { bail!("{}", refused.join("\n")) }
}

/// Formats one line per model after a line of titles. Each column is as wide as its longest entry.
fn table(models: &[CachedModel], now_unix_ms: u64) -> String {
    let titles = ["NAME", "REVISION", "SIZE", "STATE", "LAST USED"].map(str::to_owned);
    let row = |model: &CachedModel| {
        let state = match (model.whole, model.in_use) {
            (true, true) => "in use",
            (true, false) => "whole",
            (false, true) => "partial, in use",
            (false, false) => "partial",
        };
        let used = format_age(now_unix_ms.saturating_sub(model.last_used_unix_ms) / 1000);
        [model.name.clone(), model.revision.clone(), bytes(model.bytes), state.to_owned(), used]
    };
    let rows: Vec<_> = std::iter::once(titles).chain(models.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 5] = std::array::from_fn(width);
    let line = |row: &[String; 5]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn format_age(seconds: u64) -> String {
    match seconds {
        0..60 => "just now".to_owned(),
        60..3600 => format!("{} min ago", seconds / 60),
        3600..86_400 => format!("{} h ago", seconds / 3600),
        _ => format!("{} d ago", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_shows_size_state_and_last_use() {
        let model = |name: &str, revision: &str, whole, in_use, used| CachedModel {
            name: name.into(),
            revision: revision.into(),
            bytes: 3 << 29,
            whole,
            in_use,
            last_used_unix_ms: used,
            folder: PathBuf::new(),
        };
        let now = 10 * 86_400_000;
        let models =
            [model("org/tiny", "main", true, true, now - 5000), model("hub:1/org/a", "v1", false, false, 0)];
        let expected = "\
NAME         REVISION  SIZE     STATE    LAST USED
org/tiny     main      1.5 GiB  in use   just now
hub:1/org/a  v1        1.5 GiB  partial  10 d ago";
        assert_eq!(table(&models, now), expected);
    }
}
