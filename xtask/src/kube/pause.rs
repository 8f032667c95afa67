//! The image that holds a pod's namespaces open. The node has no registry to pull it from, and any program will do that
//! sleeps.

use std::fs;

use anyhow::{Context, Result};
use cargo_metadata::camino::Utf8Path;

use super::cache_dir::CacheDir;
use super::install;
use crate::image;
use crate::platform::Platform;

/// Image name in containerd's configuration, as upstream names it.
const NAME: &str = "registry.k8s.io/pause:3.10.1";
const SLEEP: [&str; 2] = ["/usr/bin/sleep", "/bin/sleep"];

/// Packs it and puts it in place.
pub fn get(place: &CacheDir, name: &str) -> Result<()> {
    let sleep = SLEEP
        .map(Utf8Path::new)
        .into_iter()
        .find(|path| path.is_file())
        .context("the program sleep does not exist")?;
    let image = image::pack(NAME, &["sleep", "infinity"], (sleep, Platform::host()), image::READABLE)?;
    let draft = install::draft(&place.folder, name)?;
    fs::write(&draft, &image.bytes).with_context(|| format!("writing {draft}"))?;
    install::install(&draft, &place.folder, name)
}
