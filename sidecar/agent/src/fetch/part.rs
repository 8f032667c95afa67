//! A file that is coming, under a name that says so.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};

use super::FetchError;
use super::digest::Digest;

/// Bytes read at a time.
const READ: usize = 1 << 20;

/// What has come of a file.
pub struct Part {
    path: PathBuf,
    part: PathBuf,
    file: File,
    digest: Digest,
}

impl Part {
    /// What an earlier start left of the file at `path`, or nothing.
    pub fn open(path: &Path) -> Result<Part, FetchError> {
        let part = name_of_part(path);
        let opened = OpenOptions::new().read(true).append(true).create(true).open(&part);
        let mut file = opened.map_err(FetchError::file(&part))?;
        let digest = digest_of(&mut file).map_err(FetchError::file(&part))?;
        Ok(Part { path: path.to_owned(), part, file, digest })
    }

    /// Digest of the file at `path`; `None` = there is none.
    pub fn read(path: &Path) -> Result<Option<Digest>, FetchError> {
        match File::open(path) {
            Ok(mut file) => digest_of(&mut file).map(Some).map_err(FetchError::file(path)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(FetchError::file(path)(error)),
        }
    }

    /// What has come.
    pub fn bytes(&self) -> u64 {
        self.digest.bytes()
    }

    /// Its digest.
    pub fn digest(&self) -> &Digest {
        &self.digest
    }

    /// Takes more of it.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), FetchError> {
        self.file.write_all(bytes).map_err(FetchError::file(&self.part))?;
        self.digest.update(bytes);
        Ok(())
    }

    /// Begins anew.
    pub fn restart(&mut self) -> Result<(), FetchError> {
        self.file.set_len(0).map_err(FetchError::file(&self.part))?;
        self.digest = Digest::new();
        Ok(())
    }

    /// Gives it its name, once it is on the disk.
    pub fn settle(self) -> Result<(), FetchError> {
        self.file.sync_all().map_err(FetchError::file(&self.part))?;
        std::fs::rename(&self.part, &self.path).map_err(FetchError::file(&self.path))
    }
}

fn name_of_part(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(sluice_wire::fetched::PART_SUFFIX);
    name.into()
}

fn digest_of(file: &mut File) -> std::io::Result<Digest> {
    file.rewind()?;
    let (mut digest, mut buffer) = (Digest::new(), vec![0; READ]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(digest),
            read => digest.update(&buffer[..read]),
        }
    }
}
