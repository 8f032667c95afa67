//! Owns the driver's files on the node: a record, a folder and a CDI specification for each prepared claim.
//!
//! The record is written before the specification and removed after it, so the next start completes or removes the
//! files that a crash leaves. A container that restarts in a running pod needs its specification, even if the CDI
//! folder was emptied. Opening the store therefore writes every specification that is missing or differs.
//!
//! A tenant can put much data into a neighbourhood, and deleting it takes long. Removing a claim therefore only moves
//! its folder to the stale files, which a background task deletes.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::cdi;
use crate::claim::{AllocatedDevice, PreparedClaim, RECORD_VERSION, is_uid};
use crate::devices::DeviceKind;

/// Permissions of a neighbourhood: full access for the group, which its files inherit, and none for others.
const FOLDER_MODE: u32 = 0o2770;
/// Suffixes of the names of records, and of records that cannot be read.
const RECORD: &str = ".json";
const BAD_RECORD: &str = ".json.bad";
/// Prefix of temporary files during a write.
const TEMP_PREFIX: &str = ".sluice-";

/// Folders of the driver, and the group of its neighbourhoods.
#[derive(Clone, Debug)]
pub struct NodeDirs {
    /// The driver's own folder in the kubelet's `plugins` folder.
    pub own: PathBuf,
    /// Folder where the container runtime looks for CDI specifications.
    pub cdi: PathBuf,
    /// Group of the neighbourhoods.
    pub group: u32,
}

impl NodeDirs {
    fn records(&self) -> PathBuf {
        self.own.join("claims")
    }

    fn folders(&self) -> PathBuf {
        self.own.join("neighbourhoods")
    }

    fn stale_files(&self) -> PathBuf {
        self.own.join("rubbish")
    }

    fn bad_record(&self, uid: &str) -> PathBuf {
        self.records().join(format!("{uid}{BAD_RECORD}"))
    }

    fn record(&self, uid: &str) -> PathBuf {
        self.records().join(format!("{uid}{RECORD}"))
    }

    fn folder(&self, uid: &str) -> PathBuf {
        self.folders().join(uid)
    }

    fn spec(&self, uid: &str) -> PathBuf {
        self.cdi.join(cdi::file_name(uid))
    }
}

/// A file that could not be read, written or removed.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct StoreError {
    path: PathBuf,
    source: io::Error,
}

fn with_path<T>(path: &Path, result: io::Result<T>) -> Result<T, StoreError> {
    result.map_err(|source| StoreError { path: path.to_owned(), source })
}

/// The prepared claims of this node.
#[derive(Debug)]
pub struct Store {
    dirs: NodeDirs,
}

impl Store {
    /// Opens the store: restores the files of recorded claims and removes files without a record.
    ///
    /// # Errors
    /// A folder or file cannot be read, written or removed.
    pub fn open(places: NodeDirs) -> Result<Store, StoreError> {
        for folder in [places.records(), places.folders(), places.stale_files(), places.cdi.clone()] {
            with_path(&folder, fs::create_dir_all(&folder))?;
        }
        let store = Store { dirs: places };
        let claims = store.claims()?;
        claims.iter().try_for_each(|claim| store.write_spec_and_folder(claim))?;
        store.remove_orphans(&claims)?;
        Ok(store)
    }

    /// Returns all prepared claims. A record that cannot be parsed is put aside, so that it does not block the
    /// others.
    ///
    /// # Errors
    /// The folder of the records or one of them cannot be read.
    pub fn claims(&self) -> Result<Vec<PreparedClaim>, StoreError> {
        let records = file_names(&self.dirs.records())?;
        let uids = records.iter().filter_map(|name| name.strip_suffix(RECORD));
        uids.filter_map(|uid| self.find(uid).transpose()).collect()
    }

    /// Returns the recorded claim, or `None` if it is not prepared.
    ///
    /// # Errors
    /// The record cannot be read or cannot be put aside.
    pub fn find(&self, uid: &str) -> Result<Option<PreparedClaim>, StoreError> {
        let path = self.dirs.record(uid);
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => with_path(&path, other)?,
        };
        let understood = |granted: &PreparedClaim| granted.version == RECORD_VERSION && granted.uid == uid;
        if let Some(granted) = serde_json::from_slice(&bytes).ok().filter(understood).filter(|_| is_uid(uid))
        {
            return Ok(Some(granted));
        }
        tracing::error!(path = %path.display(), "could not read the record of a claim: renaming it");
        with_path(&path, fs::rename(&path, self.dirs.bad_record(uid)))?;
        Ok(None)
    }

    /// Returns the number of records that were put aside.
    ///
    /// # Errors
    /// The folder of the records cannot be read.
    pub fn bad_records(&self) -> Result<usize, StoreError> {
        Ok(file_names(&self.dirs.records())?.iter().filter(|name| name.ends_with(BAD_RECORD)).count())
    }

    /// Writes the files of a claim; does nothing if they are already there.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn add(&self, granted: &PreparedClaim) -> Result<(), StoreError> {
        let record = serde_json::to_vec(granted).expect("a record serialises");
        write(&self.dirs.record(&granted.uid), &record)?;
        self.write_spec_and_folder(granted)
    }

    /// Writes the specification of a recorded claim, and creates its folder if it has a neighbourhood.
    fn write_spec_and_folder(&self, granted: &PreparedClaim) -> Result<(), StoreError> {
        let shared =
            |given: &AllocatedDevice| DeviceKind::from_name(&given.device) == Some(DeviceKind::Neighbourhood);
        if granted.devices.iter().any(shared) {
            self.folder(&granted.uid)?;
        }
        let spec = cdi::spec(granted, &self.dirs.folder(&granted.uid), self.dirs.group);
        let text = serde_json::to_vec_pretty(&spec).expect("a specification serialises");
        write(&self.dirs.spec(&granted.uid), &text)
    }

    /// Creates the claim's folder. An existing folder keeps its content, which belongs to the claim.
    fn folder(&self, uid: &str) -> Result<(), StoreError> {
        let path = self.dirs.folder(uid);
        match fs::create_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => with_path(&path, other)?,
        }
        // Changing the group clears the set-group-ID bit, by which files inherit the group, so the mode is set
        // afterwards.
        with_path(&path, std::os::unix::fs::chown(&path, None, Some(self.dirs.group)))?;
        with_path(&path, fs::set_permissions(&path, Permissions::from_mode(FOLDER_MODE)))
    }

    /// Removes the files of a claim; does nothing if there are none. The folder moves to the stale files, see
    /// [`Store::stale_files`].
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn remove(&self, uid: &str) -> Result<(), StoreError> {
        if !is_uid(uid) {
            return Ok(());
        }
        let spec = self.dirs.spec(uid);
        with_path(&spec, ignore_not_found(fs::remove_file(&spec)))?;
        self.move_to_stale(&self.dirs.folder(uid))?;
        for record in [self.dirs.record(uid), self.dirs.bad_record(uid)] {
            with_path(&record, ignore_not_found(fs::remove_file(&record)))?;
        }
        Ok(())
    }

    /// Moves `folder` to a new folder of its own among the stale files, because the same UID may be prepared again
    /// before its old folder is deleted.
    fn move_to_stale(&self, folder: &Path) -> Result<(), StoreError> {
        if !folder.exists() {
            return Ok(());
        }
        let rubbish = self.dirs.stale_files();
        let place = with_path(&rubbish, tempfile::tempdir_in(&rubbish))?.keep();
        with_path(folder, fs::rename(folder, place.join("neighbourhood")))
    }

    /// Returns the stale files, which the caller deletes.
    pub fn stale_files(&self) -> StaleFiles {
        StaleFiles(self.dirs.stale_files())
    }

    /// Removes the folders and specifications without a record and the temporary files that a crash left.
    fn remove_orphans(&self, claims: &[PreparedClaim]) -> Result<(), StoreError> {
        let known =
            |uid: &str| claims.iter().any(|claim| claim.uid == uid) || self.dirs.bad_record(uid).exists();
        for uid in file_names(&self.dirs.folders())?.iter().filter(|uid| !known(uid)) {
            self.remove(uid)?;
        }
        let specs = file_names(&self.dirs.cdi)?;
        let uids = specs.iter().filter_map(|name| name.strip_prefix(cdi::FILE_PREFIX)?.strip_suffix(RECORD));
        uids.filter(|uid| !known(uid)).try_for_each(|uid| self.remove(uid))?;
        for folder in [&self.dirs.records(), &self.dirs.cdi] {
            for name in file_names(folder)?.iter().filter(|name| name.starts_with(TEMP_PREFIX)) {
                let path = folder.join(name);
                with_path(&path, ignore_not_found(fs::remove_file(&path)))?;
            }
        }
        Ok(())
    }
}

/// Folders of removed claims.
#[derive(Clone, Debug)]
pub struct StaleFiles(PathBuf);

impl StaleFiles {
    /// Deletes the stale files. May take long; must not run twice at the same time.
    ///
    /// # Errors
    /// A folder cannot be deleted.
    pub fn remove_all(&self) -> Result<(), StoreError> {
        for name in file_names(&self.0)? {
            let path = self.0.join(name);
            with_path(&path, ignore_not_found(fs::remove_dir_all(&path)))?;
        }
        Ok(())
    }
}

fn ignore_not_found(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn file_names(folder: &Path) -> Result<Vec<String>, StoreError> {
    let entries = with_path(folder, fs::read_dir(folder))?;
    let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
    with_path(folder, entries.map(name).collect())
}

/// Writes a file atomically. A reader never sees a partial file; after a power failure the file has the old or the
/// new content.
fn write(path: &Path, content: &[u8]) -> Result<(), StoreError> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    with_path(path, replace(path, content))
}

fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let folder = path.parent().expect("a file has a folder");
    // The suffix hides the temporary file from the container runtime, which reads only *.json and *.yaml.
    let mut file = tempfile::Builder::new()
        .prefix(TEMP_PREFIX)
        .suffix(".new")
        .permissions(Permissions::from_mode(0o644))
        .tempfile_in(folder)?;
    file.write_all(content)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    fs::File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests;
