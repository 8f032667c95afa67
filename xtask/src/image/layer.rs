//! A layer: files as a gzipped tar archive that depends on nothing but them.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::{Context, Result};
use flate2::write::GzEncoder;
use flate2::{Compression, GzBuilder};
use tar::{EntryType, Header};

use super::sha256::sha256;

/// Files of an image, by path without a leading slash. Folders above them come by themselves.
#[derive(Default)]
pub struct Layer {
    files: BTreeMap<String, File>,
}

struct File {
    /// Permissions.
    mode: u32,
    /// `None`: a folder.
    content: Option<Vec<u8>>,
}

/// A layer as it stands in an archive.
pub struct Packed {
    /// Gzipped.
    pub bytes: Vec<u8>,
    /// Digest of the archive inside, as configurations name it.
    pub diff_id: String,
}

impl Layer {
    /// Adds a file.
    pub fn file(&mut self, path: &str, mode: u32, content: Vec<u8>) {
        self.folders_above(path);
        self.files.insert(path.to_owned(), File { mode, content: Some(content) });
    }

    /// Adds a folder.
    pub fn folder(&mut self, path: &str, mode: u32) {
        self.folders_above(path);
        self.files.insert(path.to_owned(), File { mode, content: None });
    }

    fn folders_above(&mut self, path: &str) {
        for (end, _) in path.match_indices('/') {
            self.files.entry(path[..end].to_owned()).or_insert(File { mode: 0o755, content: None });
        }
    }

    /// Sorted, owned by root, of no time.
    pub fn pack(&self) -> Result<Packed> {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, file) in &self.files {
            let content = file.content.as_deref().unwrap_or_default();
            let mut header = Header::new_ustar();
            header.set_mode(file.mode);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(0);
            header.set_size(content.len() as u64);
            header.set_entry_type(if file.content.is_some() {
                EntryType::Regular
            } else {
                EntryType::Directory
            });
            archive.append_data(&mut header, path, content).with_context(|| format!("packing {path}"))?;
        }
        let plain = archive.into_inner()?;
        Ok(Packed { diff_id: sha256(&plain), bytes: gzip(&plain)? })
    }
}

/// Without a name or a time in the header.
fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder: GzEncoder<Vec<u8>> = GzBuilder::new().mtime(0).write(Vec::new(), Compression::new(6));
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}
