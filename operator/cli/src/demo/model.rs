//! The model of the demo: a folder that the user names, or one that `sluice-model-gen` creates once in the cache.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, bail};
use sluice_wire::geometry::{Geometry, GeometryErrorKind};
use tokio::process::Command;

use crate::inspect::{ModelLocation, inspect};
use crate::models::cache::user_cache;
use crate::up::output::eprint_note;
use crate::{Misconfigured, child, sibling_binaries};

/// Name and shape of the generated model: 32 layers of 1.6 MB. Few enough bytes to be generated in a second, enough
/// layers for a peer to lend many.
const SYNTHETIC_NAME: &str = "llama-32x256";
#[rustfmt::skip]
const SYNTHETIC_SHAPE: &[&str] = &[
    "--layers", "32", "--hidden", "256", "--heads", "4", "--kv-heads", "4", "--intermediate", "688", "--vocab",
    "512", "--max-positions", "512",
];

/// A model that can be served.
#[derive(Clone, Debug)]
pub struct DemoModel {
    /// Folder of the model.
    pub folder: PathBuf,
    /// Its sizes.
    pub geometry: Geometry,
}

impl DemoModel {
    /// Finds the model in `folder`; `None` = the demo's own, which is generated if it is missing.
    ///
    /// # Errors
    /// The folder holds no supported model, or the model cannot be generated.
    pub async fn find(folder: Option<&Path>) -> anyhow::Result<DemoModel> {
        let folder = match folder {
            Some(folder) => check_folder(folder)?,
            None => create_synthetic().await?,
        };
        match inspect(ModelLocation::Folder(&folder), &[]).await {
            Ok(geometry) => Ok(DemoModel { folder, geometry }),
            Err(refusal) if refusal.reason == GeometryErrorKind::Unavailable => bail!("{}", refusal.message),
            Err(refusal) => Err(Misconfigured(refusal.message).into()),
        }
    }

    /// Returns the folder as text, for a manifest.
    ///
    /// # Errors
    /// The path is not UTF-8.
    pub fn folder_str(&self) -> anyhow::Result<&str> {
        self.folder
            .to_str()
            .with_context(|| format!("{}: the path is not valid UTF-8", self.folder.display()))
    }
}

fn check_folder(folder: &Path) -> anyhow::Result<PathBuf> {
    if !folder.join("config.json").is_file() {
        let shown = folder.display();
        let problem = "the folder has no config.json; name a model folder in Hugging Face layout";
        return Err(Misconfigured(format!("--model {shown}: {problem}")).into());
    }
    std::path::absolute(folder).with_context(|| folder.display().to_string())
}

/// Generates the demo's own model, unless an earlier demo did.
async fn create_synthetic() -> anyhow::Result<PathBuf> {
    let cache = user_cache().context("neither XDG_CACHE_HOME nor HOME is set: name a model with --model")?;
    let folder = cache.join("demo").join(SYNTHETIC_NAME);
    if folder.join("config.json").is_file() {
        return Ok(folder);
    }
    let maker = sibling_binaries::find("sluice-model-gen")?;
    eprint_note(format_args!("creating a model with random weights in {}", folder.display()));
    let part = TempFolder(folder.with_file_name(format!("{SYNTHETIC_NAME}.{}.part", std::process::id())));
    let mut command = Command::new(&maker);
    command.arg("--out").arg(&part.0).args(SYNTHETIC_SHAPE).stdin(Stdio::null()).stdout(Stdio::null());
    child::kill_on_parent_exit(&mut command);
    let status = command.status().await.with_context(|| maker.display().to_string())?;
    if !status.success() {
        bail!("{} could not create the model: {status}", maker.display());
    }
    // The rename is atomic. If another demo was faster, it has generated the same files.
    match std::fs::rename(&part.0, &folder) {
        Err(error) if !folder.join("config.json").is_file() => {
            Err(error).with_context(|| folder.display().to_string())
        }
        _ => Ok(folder),
    }
}

/// A folder that is removed with this value, unless it was renamed.
struct TempFolder(PathBuf);

impl Drop for TempFolder {
    fn drop(&mut self) {
        // After a rename the folder does not exist.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
