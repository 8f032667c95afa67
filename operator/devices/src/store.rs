//! What this driver keeps on the node: a record, a folder and a CDI specification for each prepared claim.
//!
//! The record comes before the specification and goes after it, so that a crash in between leaves something that the
//! next start completes or sweeps away. A container that starts again in a pod that lives needs its specification, even
//! if somebody has emptied the folder meanwhile: opening the store writes every one anew.
//!
//! What a tenant has put into a neighbourhood may be a lot: removing it means moving it to the rubbish, which somebody
//! empties who holds nobody up.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::cdi;
use crate::claim::{AllocatedDevice, PreparedClaim, RECORD_VERSION, is_uid};
use crate::devices::DeviceKind;

/// Permissions of a neighbourhood: all for the group, which its files inherit; nothing for others.
const FOLDER_MODE: u32 = 0o2770;
/// Ends of the names of records, and of those that nobody understands.
const RECORD: &str = ".json";
const BAD_RECORD: &str = ".json.bad";
/// Start of the names of files that are being written.
const TEMP_PREFIX: &str = ".sluice-";

/// Where everything is.
#[derive(Clone, Debug)]
pub struct NodeDirs {
    /// The driver's own folder, below the kubelet's `plugins`.
    pub own: PathBuf,
    /// Where the container runtime looks for CDI specifications.
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
    /// Opens the store: completes what is recorded, removes what is not.
    ///
    /// # Errors
    /// A folder or file cannot be read or written.
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

    /// All prepared claims. A record that this driver cannot understand is put aside: it must not keep it from the others.
    ///
    /// # Errors
    /// The folder of the records or one of them cannot be read.
    pub fn claims(&self) -> Result<Vec<PreparedClaim>, StoreError> {
        let records = file_names(&self.dirs.records())?;
        let uids = records.iter().filter_map(|name| name.strip_suffix(RECORD));
        uids.filter_map(|uid| self.find(uid).transpose()).collect()
    }

    /// The claim as it is prepared; `None` if it is not.
    ///
    /// # Errors
    /// Its record cannot be read, or not be put aside.
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
        tracing::error!(path = %path.display(), "a record that this driver cannot understand is put aside");
        with_path(&path, fs::rename(&path, self.dirs.bad_record(uid)))?;
        Ok(None)
    }

    /// Records that were put aside.
    ///
    /// # Errors
    /// The folder of the records cannot be read.
    pub fn bad_records(&self) -> Result<usize, StoreError> {
        Ok(file_names(&self.dirs.records())?.iter().filter(|name| name.ends_with(BAD_RECORD)).count())
    }

    /// Prepares a claim; does nothing where it is prepared already.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn add(&self, granted: &PreparedClaim) -> Result<(), StoreError> {
        let record = serde_json::to_vec(granted).expect("a record serialises");
        write(&self.dirs.record(&granted.uid), &record)?;
        self.write_spec_and_folder(granted)
    }

    /// The folder and the specification of a recorded claim.
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

    /// The claim's folder. What is in it is the claim's, so one that is there stays as it is.
    fn folder(&self, uid: &str) -> Result<(), StoreError> {
        let path = self.dirs.folder(uid);
        match fs::create_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => with_path(&path, other)?,
        }
        // Changing the group clears the bit by which files inherit it, so the mode comes second.
        with_path(&path, std::os::unix::fs::chown(&path, None, Some(self.dirs.group)))?;
        with_path(&path, fs::set_permissions(&path, Permissions::from_mode(FOLDER_MODE)))
    }

    /// Takes back what was prepared for a claim; does nothing where that is gone already. The folder is in the rubbish
    /// then, see [`Store::stale_files`].
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

    /// A claim of the same UID may come back while its old folder is still there, so each has a place of its own.
    fn move_to_stale(&self, folder: &Path) -> Result<(), StoreError> {
        if !folder.exists() {
            return Ok(());
        }
        let rubbish = self.dirs.stale_files();
        let place = with_path(&rubbish, tempfile::tempdir_in(&rubbish))?.keep();
        with_path(folder, fs::rename(folder, place.join("neighbourhood")))
    }

    /// What is to be removed, at leisure.
    pub fn stale_files(&self) -> StaleFiles {
        StaleFiles(self.dirs.stale_files())
    }

    /// Folders and specifications without a record are what a crash left, as are files that were being written.
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

/// Folders of claims that are no more.
#[derive(Clone, Debug)]
pub struct StaleFiles(PathBuf);

impl StaleFiles {
    /// Removes what is there. Takes as long as it takes; nobody else may do it at the same time.
    ///
    /// # Errors
    /// Something cannot be removed.
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

/// Nobody ever sees half a file, and after a power cut there is the old one or the new one.
fn write(path: &Path, content: &[u8]) -> Result<(), StoreError> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    with_path(path, replace(path, content))
}

fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let folder = path.parent().expect("a file has a folder");
    // The container runtime looks only at *.json and *.yaml.
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
