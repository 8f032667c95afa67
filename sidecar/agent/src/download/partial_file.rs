//! A file during its download, under a temporary name.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};

use super::DownloadError;
use super::digest::Digest;

/// Bytes read at a time.
const READ_BYTES: usize = 1 << 20;

/// The downloaded part of a file.
pub struct PartialFile {
    path: PathBuf,
    part_path: PathBuf,
    file: File,
    digest: Digest,
}

impl PartialFile {
    /// Opens the partial file for `path`, with the bytes of an earlier start if there are any.
    pub fn open(path: &Path) -> Result<PartialFile, DownloadError> {
        let part = partial_path(path);
        let opened = OpenOptions::new().read(true).append(true).create(true).open(&part);
        let mut file = opened.map_err(DownloadError::file(&part))?;
        let digest = digest_of(&mut file).map_err(DownloadError::file(&part))?;
        Ok(PartialFile { path: path.to_owned(), part_path: part, file, digest })
    }

    /// Returns the digest of the file at `path`; `None` = there is no file.
    pub fn digest_file(path: &Path) -> Result<Option<Digest>, DownloadError> {
        match File::open(path) {
            Ok(mut file) => digest_of(&mut file).map(Some).map_err(DownloadError::file(path)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(DownloadError::file(path)(error)),
        }
    }

    /// Returns the number of downloaded bytes.
    pub fn bytes(&self) -> u64 {
        self.digest.bytes()
    }

    /// Returns the digest of the downloaded bytes.
    pub fn digest(&self) -> &Digest {
        &self.digest
    }

    /// Appends bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), DownloadError> {
        self.file.write_all(bytes).map_err(DownloadError::file(&self.part_path))?;
        self.digest.update(bytes);
        Ok(())
    }

    /// Discards all bytes.
    pub fn restart(&mut self) -> Result<(), DownloadError> {
        self.file.set_len(0).map_err(DownloadError::file(&self.part_path))?;
        self.digest = Digest::new();
        Ok(())
    }

    /// Syncs the file to disk, then gives it its final name.
    pub fn commit(self) -> Result<(), DownloadError> {
        self.file.sync_all().map_err(DownloadError::file(&self.part_path))?;
        std::fs::rename(&self.part_path, &self.path).map_err(DownloadError::file(&self.path))
    }
}

fn partial_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(sluice_wire::download::PART_SUFFIX);
    name.into()
}

fn digest_of(file: &mut File) -> std::io::Result<Digest> {
    file.rewind()?;
    let (mut digest, mut buffer) = (Digest::new(), vec![0; READ_BYTES]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(digest),
            read => digest.update(&buffer[..read]),
        }
    }
}
