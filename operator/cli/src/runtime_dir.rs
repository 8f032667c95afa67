//! The per-user runtime folder, where running sidecars are found.
//!
//! `<runtime>/<namespace>.<name>/` holds one tenant's configuration, socket, token and record,
//! `<runtime>/gpu.<namespace>.<name>/` the files that the tenants of one GPU share. A lock on the folder marks it
//! as in use; its owner removes it at exit.

use std::fs::File;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, flock};
use sluice_wire::config::SidecarRecord;

use crate::cluster::{ambiguous_name, is_named};

/// File in a claimed folder that its owner has locked.
const LOCK_FILE: &str = "lock";

/// The runtime folder of one user.
#[derive(Debug)]
pub struct RuntimeDir(PathBuf);

impl RuntimeDir {
    /// Opens `path`, or `$XDG_RUNTIME_DIR/sluice`, or a folder of this user under the system's temporary one.
    /// Creates it if absent.
    ///
    /// # Errors
    /// The folder cannot be created or belongs to another user.
    pub fn open(path: Option<&Path>) -> anyhow::Result<Self> {
        let path = path.map_or_else(default_path, Path::to_owned);
        create_private_dir(&path)?;
        let owner = std::fs::metadata(&path).with_context(|| path.display().to_string())?.uid();
        if owner != rustix::process::getuid().as_raw() {
            bail!("{} belongs to user {owner}; name another folder with --runtime-dir", path.display());
        }
        Ok(RuntimeDir(path))
    }

    /// Claims the folder of one tenant.
    ///
    /// # Errors
    /// Another process runs that tenant.
    pub fn claim(&self, namespace: &str, name: &str) -> anyhow::Result<LockedDir> {
        let busy = format!("{namespace}/{name} is running already");
        self.lock_dir(&format!("{namespace}.{name}"), &busy)
    }

    /// Claims the folder that the tenants of the GPU `namespace`/`name` share, and empties it: its files belong to
    /// an earlier run.
    ///
    /// # Errors
    /// Another process runs tenants on that GPU.
    pub fn claim_gpu(&self, namespace: &str, name: &str) -> anyhow::Result<LockedDir> {
        // No folder of a tenant has such a name: a namespace has no dot.
        let busy = format!("GPU {namespace}/{name} already belongs to another run");
        let folder = self.lock_dir(&format!("gpu.{namespace}.{name}"), &busy)?;
        folder.clear().with_context(|| folder.path().display().to_string())?;
        Ok(folder)
    }

    fn lock_dir(&self, name: &str, busy: &str) -> anyhow::Result<LockedDir> {
        let path = self.0.join(name);
        create_private_dir(&path)?;
        let file = path.join(LOCK_FILE);
        let lock = File::create(&file).with_context(|| file.display().to_string())?;
        if !lock_with_retry(&lock) {
            bail!("{busy} ({}): end that run, or name another folder with --runtime-dir", path.display());
        }
        Ok(LockedDir { path, _lock: lock })
    }

    /// Lists all running sidecars, by namespace and name.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn running(&self) -> anyhow::Result<Vec<RunningSidecar>> {
        let mut all = Vec::new();
        for entry in std::fs::read_dir(&self.0).with_context(|| self.0.display().to_string())? {
            all.extend(running(&entry?.path()));
        }
        all.sort_by(|a, b| a.title.cmp(&b.title));
        Ok(all)
    }

    /// Returns the sidecar of a tenant, and all other running ones.
    ///
    /// # Errors
    /// The folder cannot be read, several tenants have the name and no namespace is given, or no such tenant runs; this
    /// message ends with `hint`.
    pub fn find(
        &self,
        namespace: Option<&str>,
        name: &str,
        hint: &str,
    ) -> anyhow::Result<(RunningSidecar, Vec<RunningSidecar>)> {
        let mut running = self.running()?;
        let named = running.iter().enumerate().filter(|(_, one)| matches_title(&one.title, namespace, name));
        let (indices, titles): (Vec<_>, Vec<_>) = named.map(|(at, one)| (at, one.title.as_str())).unzip();
        if titles.len() > 1 {
            bail!(ambiguous_name(name, &titles));
        }
        let Some(at) = indices.first().copied() else {
            let titles: Vec<_> = running.into_iter().map(|sidecar| sidecar.title).collect();
            let known = if titles.is_empty() {
                "no tenant runs".to_owned()
            } else {
                format!("running: {}", titles.join(", "))
            };
            bail!("no tenant `{name}` runs on this machine ({known}); {hint}");
        };
        let found = running.remove(at);
        Ok((found, running))
    }
}

/// A running sidecar.
#[derive(Debug)]
pub struct RunningSidecar {
    /// `NAMESPACE/NAME` of its tenant.
    pub title: String,
    /// Its record, or why that cannot be read.
    pub record: anyhow::Result<SidecarRecord>,
}

/// Returns the sidecar of one tenant's folder, if it runs and already listens.
fn running(folder: &Path) -> Option<RunningSidecar> {
    let name = folder.file_name()?.to_string_lossy().replacen('.', "/", 1);
    let lock = File::open(folder.join(LOCK_FILE)).ok()?;
    // The lock is shared, so that two readers do not take each other for the owner.
    if flock(&lock, FlockOperation::NonBlockingLockShared).is_ok() {
        return None;
    }
    Some(RunningSidecar { title: name, record: read_record(folder).transpose()? })
}

/// Whether `title`, NAMESPACE/NAME, is that of the tenant. Without a namespace, only the name is compared.
fn matches_title(title: &str, namespace: Option<&str>, name: &str) -> bool {
    title.split_once('/').is_some_and(|own| is_named(own, namespace, name))
}

/// Reads the record of the sidecar of a tenant's folder; `None` = it does not listen yet.
///
/// # Errors
/// The file cannot be read, or is no record.
pub fn read_record(folder: &Path) -> anyhow::Result<Option<SidecarRecord>> {
    let file = folder.join(SidecarRecord::FILE);
    let bytes = match std::fs::read(&file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        read => read.with_context(|| file.display().to_string())?,
    };
    serde_json::from_slice(&bytes).with_context(|| file.display().to_string())
}

fn default_path() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) if Path::new(&folder).is_dir() => Path::new(&folder).join("sluice"),
        _ => std::env::temp_dir().join(format!("sluice-{}", rustix::process::getuid().as_raw())),
    }
}

/// Locks with retries: readers hold the lock for an instant to check it.
fn lock_with_retry(lock: &File) -> bool {
    (0..20).any(|attempt| {
        if attempt > 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        flock(lock, FlockOperation::NonBlockingLockExclusive).is_ok()
    })
}

fn create_private_dir(path: &Path) -> anyhow::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_context(|| path.display().to_string())
}

/// The folder of one tenant or one GPU. Dropping this value removes it.
#[derive(Debug)]
pub struct LockedDir {
    path: PathBuf,
    _lock: File,
}

impl LockedDir {
    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes everything but the lock.
    fn clear(&self) -> std::io::Result<()> {
        for entry in std::fs::read_dir(&self.path)? {
            let path = entry?.path();
            match path.is_dir() {
                _ if path.ends_with(LOCK_FILE) => {}
                true => std::fs::remove_dir_all(path)?,
                false => std::fs::remove_file(path)?,
            }
        }
        Ok(())
    }
}

impl Drop for LockedDir {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            eprintln!("sluice: {}: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_record(folder: &Path) {
        let record = serde_json::json!({
            "namespace": "a", "name": "b.c", "pid": 1, "serve": "127.0.0.1:1", "admin": "127.0.0.1:2",
            "probes": "127.0.0.1:3", "token_file": "/t", "gpu": "g",
        });
        std::fs::write(folder.join(SidecarRecord::FILE), record.to_string()).unwrap();
    }

    #[test]
    fn only_sidecars_with_locked_dir_are_running() {
        let dir = tempfile::tempdir().unwrap();
        let runtime = RuntimeDir::open(Some(dir.path())).unwrap();
        let tenant = runtime.claim("a", "b.c").unwrap();
        assert!(runtime.running().unwrap().is_empty(), "it does not listen yet");
        write_record(tenant.path());
        let left_behind = dir.path().join("a.dead");
        std::fs::create_dir(&left_behind).unwrap();
        std::fs::write(left_behind.join("lock"), "").unwrap();
        write_record(&left_behind);
        let running = runtime.running().unwrap();
        assert_eq!(running.iter().map(|r| r.title.as_str()).collect::<Vec<_>>(), ["a/b.c"]);
        assert_eq!(running[0].record.as_ref().unwrap().name, "b.c");
    }

    #[test]
    fn unreadable_record_affects_only_its_sidecar() {
        let dir = tempfile::tempdir().unwrap();
        let runtime = RuntimeDir::open(Some(dir.path())).unwrap();
        let (good, bad) = (runtime.claim("a", "good").unwrap(), runtime.claim("a", "bad").unwrap());
        write_record(good.path());
        std::fs::write(bad.path().join(SidecarRecord::FILE), "{").unwrap();
        let running = runtime.running().unwrap();
        assert!(running[0].record.is_err() && running[1].record.is_ok());
    }

    #[test]
    fn a_tenant_is_named_with_or_without_its_namespace() {
        assert!(
            matches_title("default/chat", None, "chat")
                && matches_title("default/chat", Some("default"), "chat")
        );
        assert!(
            !matches_title("default/chat", Some("other"), "chat")
                && !matches_title("default/chat", None, "cha")
        );
    }

    #[test]
    fn a_name_in_two_namespaces_needs_its_namespace() {
        let dir = tempfile::tempdir().unwrap();
        let runtime = RuntimeDir::open(Some(dir.path())).unwrap();
        let tenants = ["one", "two"].map(|namespace| runtime.claim(namespace, "chat").unwrap());
        tenants.iter().for_each(|tenant| write_record(tenant.path()));
        let refusal = runtime.find(None, "chat", "").unwrap_err().to_string();
        assert_eq!(refusal, "several tenants have the name `chat`: name one of one/chat, two/chat");
        let (found, others) = runtime.find(Some("two"), "chat", "").unwrap();
        assert_eq!((found.title.as_str(), others[0].title.as_str()), ("two/chat", "one/chat"));
    }

    #[test]
    fn locked_tenant_is_rejected_until_released() {
        let dir = tempfile::tempdir().unwrap();
        let runtime = RuntimeDir::open(Some(dir.path())).unwrap();
        let first = runtime.claim("a", "b").unwrap();
        let refusal = runtime.claim("a", "b").unwrap_err().to_string();
        assert!(refusal.starts_with("a/b is running already"), "{refusal}");
        drop(first);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing stays behind");
        runtime.claim("a", "b").unwrap();
    }
    #[test]
    fn gpu_dir_is_cleared_on_lock_and_not_listed_as_tenant() {
        let dir = tempfile::tempdir().unwrap();
        let runtime = RuntimeDir::open(Some(dir.path())).unwrap();
        let left_behind = dir.path().join("gpu.a.local-0");
        std::fs::create_dir(&left_behind).unwrap();
        for file in ["lock", "ledger", SidecarRecord::FILE] {
            std::fs::write(left_behind.join(file), "old").unwrap();
        }
        std::fs::create_dir(left_behind.join("deep")).unwrap();
        let gpu = runtime.claim_gpu("a", "local-0").unwrap();
        assert_eq!(gpu.path(), left_behind);
        let names = std::fs::read_dir(gpu.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["lock"]);
        assert!(runtime.running().unwrap().is_empty());
        let refusal = runtime.claim_gpu("a", "local-0").unwrap_err().to_string();
        assert!(refusal.starts_with("GPU a/local-0 already belongs to another run"), "{refusal}");
        drop(gpu);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing stays behind");
    }
}
