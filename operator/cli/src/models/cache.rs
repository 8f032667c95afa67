//! The folder of downloaded models: `<root>/<host>/<org>/<name>/<revision>`. A `sluice
//! run` locks each model that it
//! uses.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use sluice_wire::download::{CompletionMarker, PART_SUFFIX};
use sluice_wire::time::unix_ms;

use super::hub_model::{DEFAULT_ENDPOINT, DEFAULT_REVISION, HubModel};

/// File that users of a model lock. Its modification time is the time of the last use.
const USE_FILE: &str = ".sluice-use";
/// Prefix of a folder that is being removed. No folder of a model begins with a dot.
const REMOVED_PREFIX: &str = ".removed-";

/// Returns the user's cache folder, `$XDG_CACHE_HOME/sluice` or `~/.cache/sluice`; `None` = the environment
/// has no
/// home.
pub fn user_cache() -> Option<PathBuf> {
    let named = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = named("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    cache.or_else(|| Some(named("HOME")?.join(".cache"))).map(|folder| folder.join("sluice"))
}

/// All cached models.
#[derive(Clone, Debug)]
pub struct ModelCache {
    root: PathBuf,
}

impl ModelCache {
    /// The cache in `folder`; `None` = `$XDG_CACHE_HOME/sluice/models`, or the same below `~/.cache`. Nothing is
    /// created.
    ///
    /// # Errors
    /// No folder is named, and the environment has no home.
    pub fn open(folder: Option<&Path>) -> anyhow::Result<ModelCache> {
        let root = match folder {
            Some(folder) => folder.to_owned(),
            None => user_cache()
                .context("neither XDG_CACHE_HOME nor HOME is set: name a folder for models with --cache")?
                .join("models"),
        };
        let root = std::path::absolute(&root).with_context(|| root.display().to_string())?;
        Ok(ModelCache { root })
    }

    /// Returns the root folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the folder of the files of `model`, which need not exist.
    pub fn folder(&self, model: &HubModel) -> PathBuf {
        let (org, name) = model.repo.split_once('/').unwrap_or((&model.repo, ""));
        [&model.host, org, name, &model.revision]
            .iter()
            .fold(self.root.clone(), |path, part| path.join(escape(part)))
    }

    /// Creates the folder of `model` and locks it: until the guard is dropped, no `sluice models rm` removes it.
    ///
    /// # Errors
    /// The folder or its lock cannot be created.
    pub fn acquire(&self, model: &HubModel) -> anyhow::Result<ModelGuard> {
        let folder = self.folder(model);
        let file = folder.join(USE_FILE);
        loop {
            match std::fs::create_dir_all(&folder) {
                // Another process created it and removed it again.
                Err(error) if error.kind() == ErrorKind::AlreadyExists && !folder.is_file() => continue,
                created => created.with_context(|| folder.display().to_string())?,
            }
            let opened = OpenOptions::new().write(true).create(true).truncate(false).open(&file);
            let lock = match opened {
                // Another process removed the folder after its creation.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                opened => opened.with_context(|| file.display().to_string())?,
            };
            flock(&lock, FlockOperation::LockShared).with_context(|| file.display().to_string())?;
            if is_same_file(&lock, &file) {
                lock.set_modified(SystemTime::now()).with_context(|| file.display().to_string())?;
                return Ok(ModelGuard { folder, _lock: lock });
            }
        }
    }

    /// Whether all files of `model` are present, by the receipt of its download and the lengths of the files.
    pub fn is_complete(&self, model: &HubModel) -> bool {
        is_complete(&self.folder(model))
    }

    /// Returns the bytes of `model` on disk, including partial files.
    pub fn present_bytes(&self, model: &HubModel) -> u64 {
        // An unreadable folder counts as empty.
        bytes_in(&self.folder(model)).ok().flatten().unwrap_or(0)
    }

    /// Lists all models, by name and revision. Skips folders that `sluice run` did not create.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub fn models(&self) -> anyhow::Result<Vec<CachedModel>> {
        let mut models = Vec::new();
        for host in folders(&self.root)? {
            for org in folders(&host)? {
                for name in folders(&org)? {
                    for revision in folders(&name)? {
                        models.extend(CachedModel::read(&revision, [&host, &org, &name])?);
                    }
                }
            }
        }
        models.sort_by(|a, b| (&a.name, &a.revision).cmp(&(&b.name, &b.revision)));
        Ok(models)
    }

    /// Removes `model` and returns the freed bytes.
    ///
    /// # Errors
    /// A `sluice run` uses it, or a file cannot be removed.
    pub fn remove(&self, model: &CachedModel) -> anyhow::Result<u64> {
        let file = model.folder.join(USE_FILE);
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(&file);
        let lock = opened.with_context(|| file.display().to_string())?;
        // The lock may belong to a folder that another process removed, and so not protect the current one.
        if !try_lock_exclusive(&lock).with_context(|| file.display().to_string())?
            || !is_same_file(&lock, &file)
        {
            bail!("{model} is in use by a running `sluice run`; end that process first");
        }
        // The folder is renamed first, so that a `sluice run` that starts now creates its own.
        let parent = model.folder.parent().with_context(|| model.folder.display().to_string())?;
        let moved = parent.join(format!("{REMOVED_PREFIX}{}", std::process::id()));
        std::fs::rename(&model.folder, &moved).with_context(|| model.folder.display().to_string())?;
        // Also removes the remains of a removal that was killed.
        for folder in children(parent)?.into_iter().filter(|path| is_removed(path)) {
            ok_if_exists(std::fs::remove_dir_all(&folder)).with_context(|| folder.display().to_string())?;
        }
        // Removes the parent folders that are empty now.
        let above = model.folder.ancestors().skip(1).take_while(|path| **path != self.root);
        let _ = above.map(std::fs::remove_dir).take_while(Result::is_ok).count();
        Ok(model.bytes)
    }
}

/// A locked model.
#[derive(Debug)]
pub struct ModelGuard {
    folder: PathBuf,
    _lock: File,
}

impl ModelGuard {
    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether all its files are present, by the receipt of its download and the lengths of the files.
    pub fn is_complete(&self) -> bool {
        is_complete(&self.folder)
    }
}

/// A model in the cache.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct CachedModel {
    /// `ORG/NAME`, after its host unless that is the default hub.
    pub name: String,
    /// Branch, tag or commit.
    pub revision: String,
    /// Bytes on disk.
    pub bytes: u64,
    /// All files are present; `false` = a download was interrupted or still runs.
    pub whole: bool,
    /// A `sluice run` uses the model.
    pub in_use: bool,
    /// Last start of a `sluice run` with it, milliseconds since the Unix epoch.
    pub last_used_unix_ms: u64,
    /// Folder of the model.
    pub folder: PathBuf,
}

impl std::fmt::Display for CachedModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.revision.as_str() {
            DEFAULT_REVISION => f.write_str(&self.name),
            revision => write!(f, "{}@{revision}", self.name),
        }
    }
}

impl CachedModel {
    /// Returns `None` if the folder has no [`USE_FILE`], or has just been removed.
    fn read(folder: &Path, [host, org, name]: [&Path; 3]) -> anyhow::Result<Option<CachedModel>> {
        let plain = |path: &Path| unescape(&path.file_name().unwrap_or_default().to_string_lossy());
        let (host, repo) = (plain(host), format!("{}/{}", plain(org), plain(name)));
        let default = DEFAULT_ENDPOINT.split_once("://").is_some_and(|(_, default)| default == host);
        let file = folder.join(USE_FILE);
        let Some(lock) = ok_if_exists(File::open(&file)).with_context(|| file.display().to_string())? else {
            return Ok(None);
        };
        let Some(bytes) = bytes_in(folder)? else { return Ok(None) };
        let used = lock.metadata().and_then(|metadata| metadata.modified()).ok();
        Ok(Some(CachedModel {
            name: if default { repo } else { format!("{host}/{repo}") },
            revision: plain(folder),
            bytes,
            whole: is_complete(folder),
            in_use: try_lock_exclusive(&lock).is_ok_and(|is_unused| !is_unused),
            last_used_unix_ms: used.map_or(0, unix_ms),
            folder: folder.to_owned(),
        }))
    }

    /// Whether `text` names this model: by name, by name and revision, or by URL.
    pub fn matches_name(&self, text: &str) -> bool {
        let url = HubModel::parse(text, DEFAULT_ENDPOINT).ok().filter(|_| text.contains("://"));
        let host =
            |model: &HubModel| HubModel { revision: DEFAULT_REVISION.into(), ..model.clone() }.to_string();
        match (url, text.split_once('@')) {
            (Some(url), _) => host(&url) == self.name && url.revision == self.revision,
            (None, Some((name, revision))) => name == self.name && revision == self.revision,
            (None, None) => text == self.name,
        }
    }
}

/// Tries to lock the file. Returns whether no other process holds the lock. A process that makes the same check holds
/// it
/// for an instant, which does not count.
fn try_lock_exclusive(lock: &File) -> std::io::Result<bool> {
    for attempt in 0..20 {
        if attempt > 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        match flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(false)
}

fn is_same_file(file: &File, path: &Path) -> bool {
    let at = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let (held, named) = (file.metadata().map(at), std::fs::metadata(path).map(at));
    held.is_ok_and(|held| named.is_ok_and(|named| held == named))
}

fn is_complete(folder: &Path) -> bool {
    let receipt = std::fs::read(folder.join(CompletionMarker::FILE))
        .ok()
        .and_then(|json| CompletionMarker::from_json(&json));
    let length = |name: &str| std::fs::metadata(folder.join(name)).map(|file| file.len()).ok();
    receipt.is_some_and(|receipt| receipt.items.iter().all(|item| length(&item.name) == Some(item.bytes)))
}

/// Returns the bytes of the model's files, without the files that only Sluice reads. `None` = the folder does not
/// exist.
fn bytes_in(folder: &Path) -> anyhow::Result<Option<u64>> {
    let Some(entries) =
        ok_if_exists(std::fs::read_dir(folder)).with_context(|| folder.display().to_string())?
    else {
        return Ok(None);
    };
    let mut bytes = 0;
    for entry in entries {
        let entry = entry.with_context(|| folder.display().to_string())?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_file = !name.starts_with('.') || name.ends_with(PART_SUFFIX);
        bytes += entry.metadata().map_or(0, |file| if is_file && file.is_file() { file.len() } else { 0 });
    }
    Ok(Some(bytes))
}

/// Lists the folders in `path`, except those that are being removed.
fn folders(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    Ok(children(path)?.into_iter().filter(|path| path.is_dir() && !is_removed(path)).collect())
}

/// Lists the entries of `path`; empty if it does not exist.
fn children(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = ok_if_exists(std::fs::read_dir(path)).with_context(|| path.display().to_string())?;
    let paths = entries.into_iter().flatten();
    paths.map(|entry| Ok(entry.with_context(|| path.display().to_string())?.path())).collect()
}

fn is_removed(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(REMOVED_PREFIX))
}

/// Returns `None` if there is no such file or folder.
fn ok_if_exists<T>(opened: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match opened {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        opened => opened.map(Some),
    }
}

/// Encodes a name as one path component. Letters, digits, `-`, `_`, `:` and dots that are not at the beginning are
/// kept.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'.' if at > 0 => escaped.push('.'),
            b'-' | b'_' | b':' => escaped.push(byte.into()),
            _ if byte.is_ascii_alphanumeric() => escaped.push(byte.into()),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

/// Inverts [`escape`].
fn unescape(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match (first, digits.and_then(|digits| u8::from_str_radix(digits, 16).ok())) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            _ => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests;
