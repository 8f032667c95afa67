//! [`BenchEnv`].

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::child_process::{Scratch, Stop, capture};
use crate::source_tree::SourceTree;

/// The release binaries, a model, and a folder for what runs write.
pub struct BenchEnv {
    bins: PathBuf,
    pub(super) scratch: Scratch,
    model: PathBuf,
    /// Signal state of this process.
    pub stop: Stop,
}

/// Builds the binaries.
pub fn build(tree: &SourceTree, stop: &Stop) -> Result<()> {
    // The quick start's command: with other packages, features may differ, and all is compiled again.
    tree.cargo(&["build", "--release", "--locked", "--bins"], stop)
}

/// Whether the folder of `--model` can be one at all.
fn holds_model(folder: &Path) -> Result<()> {
    let found = folder.join("config.json").is_file();
    let shown = folder.display();
    ensure!(
        found,
        "--model {shown}: the folder has no config.json; name a model folder in Hugging Face layout"
    );
    Ok(())
}

impl BenchEnv {
    /// With the model in `folder`, or one that `sluice-model-gen` makes with the options `shape`.
    pub fn new(tree: &SourceTree, stop: &Stop, folder: Option<&Path>, shape: &[&str]) -> Result<BenchEnv> {
        BenchEnv::with_binaries(tree.target.join("release").as_std_path(), stop, folder, shape)
    }

    /// The same with the binaries in the folder `bins`, else with ones that are built first. `folder` is what
    /// `--model` names.
    pub fn prepare(
        tree: &SourceTree,
        stop: &Stop,
        bins: Option<&Path>,
        folder: Option<&Path>,
        shape: &[&str],
    ) -> Result<BenchEnv> {
        // Before minutes of building.
        folder.map_or(Ok(()), holds_model)?;
        if let Some(bins) = bins {
            return BenchEnv::with_binaries(bins, stop, folder, shape);
        }
        build(tree, stop)?;
        BenchEnv::new(tree, stop, folder, shape)
    }

    fn with_binaries(bins: &Path, stop: &Stop, folder: Option<&Path>, shape: &[&str]) -> Result<BenchEnv> {
        let (bins, scratch) = (std::path::absolute(bins)?, Scratch::new()?);
        let model = folder.map_or_else(|| Ok(scratch.path().join("model")), std::path::absolute)?;
        let world = BenchEnv { bins, scratch, model, stop: stop.clone() };
        if folder.is_none() {
            let mut make = world.command("sluice-model-gen");
            make.arg("--out").arg(world.model()).args(shape);
            let (status, _) = capture(&mut make, stop)?;
            ensure!(status.success(), "sluice-model-gen could not create the model");
        }
        Ok(world)
    }

    /// The model's folder.
    pub fn model(&self) -> &Path {
        &self.model
    }

    /// One of the product's binaries.
    pub fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.bins.join(name));
        command.env("SLUICE_LOG", "warn").env("SLUICE_BIN_DIR", &self.bins);
        command
    }
}
