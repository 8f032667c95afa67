//! What this driver keeps on the node: a record, a folder and a CDI specification for each prepared claim.
//!
//! The record comes before the specification and goes after it, so that a crash in between leaves something that the
//! next start completes or sweeps away. After a reboot the kubelet takes claims for prepared that it prepared before,
//! while `/var/run/cdi` is empty: opening the store writes every specification anew.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::cdi;
use crate::claim::{Granted, is_uid};

/// Permissions of a neighbourhood: all for the group, which its files inherit; nothing for others.
const FOLDER_MODE: u32 = 0o2770;

/// Where everything is.
#[derive(Clone, Debug)]
pub struct Places {
    /// The driver's own folder, below the kubelet's `plugins`.
    pub own: PathBuf,
    /// Where the container runtime looks for CDI specifications.
    pub cdi: PathBuf,
    /// Group of the neighbourhoods.
    pub group: u32,
}

impl Places {
    fn records(&self) -> PathBuf {
        self.own.join("claims")
    }

    fn folders(&self) -> PathBuf {
        self.own.join("neighbourhoods")
    }

    fn record(&self, uid: &str) -> PathBuf {
        self.records().join(format!("{uid}.json"))
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

fn at<T>(path: &Path, result: io::Result<T>) -> Result<T, StoreError> {
    result.map_err(|source| StoreError { path: path.to_owned(), source })
}

/// The prepared claims of this node.
#[derive(Debug)]
pub struct Store {
    places: Places,
}

impl Store {
    /// Opens the store: completes what is recorded, removes what is not.
    ///
    /// # Errors
    /// A folder or file cannot be read or written, or a record is not what this driver wrote.
    pub fn open(places: Places) -> Result<Store, StoreError> {
        for folder in [places.records(), places.folders(), places.cdi.clone()] {
            at(&folder, fs::create_dir_all(&folder))?;
        }
        let store = Store { places };
        let claims = store.claims()?;
        claims.iter().try_for_each(|claim| store.provide(claim))?;
        store.sweep(&claims)?;
        Ok(store)
    }

    /// All prepared claims.
    ///
    /// # Errors
    /// A record cannot be read.
    pub fn claims(&self) -> Result<Vec<Granted>, StoreError> {
        let records = names(&self.places.records())?;
        let uids = records.iter().filter_map(|name| name.strip_suffix(".json"));
        uids.map(|uid| self.read(uid)).collect()
    }

    fn read(&self, uid: &str) -> Result<Granted, StoreError> {
        let path = self.places.record(uid);
        let bytes = at(&path, fs::read(&path))?;
        let granted: Granted = at(&path, serde_json::from_slice(&bytes).map_err(io::Error::other))?;
        let same = granted.uid == uid && is_uid(uid);
        at(&path, same.then_some(()).ok_or_else(|| io::Error::other("the record is of another claim")))?;
        Ok(granted)
    }

    /// Prepares a claim; does nothing where it is prepared already.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn add(&self, granted: &Granted) -> Result<(), StoreError> {
        let record = serde_json::to_vec(granted).expect("a record serialises");
        self.folder(&granted.uid)?;
        write(&self.places.record(&granted.uid), &record)?;
        self.provide(granted)
    }

    /// The folder and the specification of a recorded claim.
    fn provide(&self, granted: &Granted) -> Result<(), StoreError> {
        let folder = self.folder(&granted.uid)?;
        let spec = cdi::spec(granted, &folder, self.places.group);
        let text = serde_json::to_vec_pretty(&spec).expect("a specification serialises");
        write(&self.places.spec(&granted.uid), &text)
    }

    /// The claim's folder. What is in it is the claim's, so one that is there stays as it is.
    fn folder(&self, uid: &str) -> Result<PathBuf, StoreError> {
        let path = self.places.folder(uid);
        match fs::create_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => at(&path, other)?,
        }
        // Changing the group clears the bit by which files inherit it, so the mode comes second.
        at(&path, std::os::unix::fs::chown(&path, None, Some(self.places.group)))?;
        at(&path, fs::set_permissions(&path, Permissions::from_mode(FOLDER_MODE)))?;
        Ok(path)
    }

    /// Takes back what was prepared for a claim; does nothing where that is gone already.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn remove(&self, uid: &str) -> Result<(), StoreError> {
        if !is_uid(uid) {
            return Ok(());
        }
        let (spec, folder, record) =
            (self.places.spec(uid), self.places.folder(uid), self.places.record(uid));
        at(&spec, gone(fs::remove_file(&spec)))?;
        at(&folder, gone(fs::remove_dir_all(&folder)))?;
        at(&record, gone(fs::remove_file(&record)))
    }

    /// Folders and specifications without a record are what a crash left.
    fn sweep(&self, claims: &[Granted]) -> Result<(), StoreError> {
        let known = |uid: &str| claims.iter().any(|claim| claim.uid == uid);
        for uid in names(&self.places.folders())?.iter().filter(|uid| !known(uid)) {
            self.remove(uid)?;
        }
        let specs = names(&self.places.cdi)?;
        let uids = specs.iter().filter_map(|name| name.strip_prefix(cdi::FILE_PREFIX)?.strip_suffix(".json"));
        uids.filter(|uid| !known(uid)).try_for_each(|uid| self.remove(uid))
    }
}

fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn names(folder: &Path) -> Result<Vec<String>, StoreError> {
    let entries = at(folder, fs::read_dir(folder))?;
    let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
    at(folder, entries.map(name).collect())
}

/// Nobody ever sees half a file, and after a power cut there is the old one or the new one.
fn write(path: &Path, content: &[u8]) -> Result<(), StoreError> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    at(path, replace(path, content))
}

fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let folder = path.parent().expect("a file has a folder");
    // The container runtime looks only at *.json and *.yaml.
    let mut file = tempfile::Builder::new()
        .prefix(".sluice-")
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
