//! Marker of a complete folder, with which later starts need no request to the source.
//!
//! A pod's init containers run again after a reboot of its node, when the pod may have no network access to the source.

use std::path::Path;

use serde::{Deserialize, Serialize};
use sluice_wire::download;

use super::partial_file::PartialFile;
use super::{DownloadError, ModelFile, Source};

/// Name of the marker; the sidecar reads no file that begins with a dot.
const FILE_NAME: &str = download::CompletionMarker::FILE;
/// Version of the marker's format.
const VERSION: u32 = download::CompletionMarker::VERSION;

/// The downloaded files and their source. Other programs read the `CompletionMarker` of `sluice-wire` subset.
#[derive(Debug, Serialize, Deserialize)]
struct CompletionMarker {
    version: u32,
    /// The source as requested: a branch, not the commit that it named.
    source: String,
    items: Vec<ModelFile>,
}

/// Records that all `items` of `source` are in `folder`.
pub fn write(folder: &Path, source: &Source, items: &[ModelFile]) -> Result<(), DownloadError> {
    let receipt = CompletionMarker { version: VERSION, source: source.identity(), items: items.to_vec() };
    let text = serde_json::to_vec_pretty(&receipt).expect("a receipt serialises");
    let mut part = PartialFile::open(&folder.join(FILE_NAME))?;
    part.restart()?;
    part.write(&text)?;
    part.commit()
}

/// Whether all files of `source` are in `folder` and match their recorded digests.
pub fn is_complete(folder: &Path, source: &Source) -> Result<bool, DownloadError> {
    let Some(receipt) = read(folder)?.filter(|receipt| receipt.source == source.identity()) else {
        return Ok(false);
    };
    for item in &receipt.items {
        let found = PartialFile::digest_file(&folder.join(&item.name))?;
        if found.is_none_or(|digest| digest.check(item).is_err()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Reads the marker; `None` if it is missing, unreadable or of another version.
fn read(folder: &Path) -> Result<Option<CompletionMarker>, DownloadError> {
    let path = folder.join(FILE_NAME);
    let text = match std::fs::read(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(DownloadError::file(&path))?,
    };
    let receipt: Option<CompletionMarker> = serde_json::from_slice(&text).ok();
    Ok(receipt.filter(|receipt| receipt.version == VERSION))
}
