//! Reads an archive back.

use std::collections::BTreeMap;
use std::io::Read;

use anyhow::{Context, Result};
use flate2::read::GzDecoder;
use serde_json::Value;

/// Returns the layers of an archive as tar archives, the lowest first.
pub fn layers(archive: &[u8]) -> Result<Vec<Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(archive).entries()? {
        let mut entry = entry?;
        let (path, mut content) = (entry.path()?.to_string_lossy().into_owned(), Vec::new());
        entry.read_to_end(&mut content)?;
        files.insert(path, content);
    }
    let manifest = files.get("manifest.json").context("an archive has a manifest.json")?;
    let manifest: Value = serde_json::from_slice(manifest)?;
    let paths = manifest[0]["Layers"].as_array().context("a manifest lists its layers")?;
    let layer = |path: &Value| {
        let path = path.as_str().context("a layer has a path")?;
        let packed = files.get(path).with_context(|| format!("the archive has no {path}"))?;
        let mut plain = Vec::new();
        GzDecoder::new(packed.as_slice()).read_to_end(&mut plain)?;
        Ok(plain)
    };
    paths.iter().map(layer).collect()
}
