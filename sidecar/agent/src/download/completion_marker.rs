//! What a complete folder says of itself, so that nobody need ask its source about it again.
//!
//! A pod's init containers run anew after a reboot of its node, and by then the pod may reach nobody outside any more.

use std::path::Path;

use serde::{Deserialize, Serialize};
use sluice_wire::download;

use super::partial_file::PartialFile;
use super::{DownloadError, ModelFile, Source};

/// Name of the file; the sidecar reads no file that begins with a dot.
const FILE_NAME: &str = download::CompletionMarker::FILE;
/// Of the file's layout.
const VERSION: u32 = download::CompletionMarker::VERSION;

/// What came, and from where. [`fetched::Receipt`] is the part of it that other programs read.
#[derive(Debug, Serialize, Deserialize)]
struct CompletionMarker {
    version: u32,
    /// The source as it was asked for: a branch, not the commit that it was at the time.
    source: String,
    items: Vec<ModelFile>,
}

/// Notes that all `items` of `source` are in `folder`.
pub fn write(folder: &Path, source: &Source, items: &[ModelFile]) -> Result<(), DownloadError> {
    let receipt = CompletionMarker { version: VERSION, source: source.identity(), items: items.to_vec() };
    let text = serde_json::to_vec_pretty(&receipt).expect("a receipt serialises");
    let mut part = PartialFile::open(&folder.join(FILE_NAME))?;
    part.restart()?;
    part.write(&text)?;
    part.commit()
}

/// Whether all that came from `source` is still in `folder`, byte by byte as its source told it then.
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

/// One that cannot be read, or is of another version, says nothing.
fn read(folder: &Path) -> Result<Option<CompletionMarker>, DownloadError> {
    let path = folder.join(FILE_NAME);
    let text = match std::fs::read(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(DownloadError::file(&path))?,
    };
    let receipt: Option<CompletionMarker> = serde_json::from_slice(&text).ok();
    Ok(receipt.filter(|receipt| receipt.version == VERSION))
}
