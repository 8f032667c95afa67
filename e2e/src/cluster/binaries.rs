//! The folder of Kubernetes binaries that `cargo xtask kube` provides.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Reason to skip without binaries.
const UNSET: &str = "no Kubernetes: SLUICE_KUBE_BIN is not set; `cargo xtask kube --print` gets the binaries and names their \
                     folder";

/// A folder with `etcd`, `kube-apiserver`, `kubectl` and so on.
#[derive(Clone, Debug)]
pub struct Binaries(PathBuf);

impl Binaries {
    /// Returns the folder that `SLUICE_KUBE_BIN` names. Without it, prints the reason and returns `None`.
    pub fn find() -> Option<Binaries> {
        Binaries::named().inspect_err(|why| skipped(why)).ok()
    }

    /// Same as [`Binaries::find`], but returns the reason instead of printing it.
    ///
    /// # Errors
    /// `SLUICE_KUBE_BIN` is not set.
    pub(super) fn named() -> Result<Binaries, &'static str> {
        let folder = std::env::var_os("SLUICE_KUBE_BIN").filter(|folder| !folder.is_empty());
        folder.map(|folder| Binaries(folder.into())).ok_or(UNSET)
    }

    /// Returns the path of the binary `name`.
    ///
    /// # Panics
    /// If the file does not exist.
    pub fn path(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        assert!(path.is_file(), "{} has no {name}: see `cargo xtask kube`", self.0.display());
        path
    }

    /// Whether the binary `name` exists.
    pub fn has(&self, name: &str) -> bool {
        self.0.join(name).is_file()
    }

    /// Returns kubectl of this folder, or else of the PATH.
    pub fn kubectl(&self) -> PathBuf {
        let own = self.0.join("kubectl");
        if own.is_file() { own } else { PathBuf::from("kubectl") }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.0
    }
}

/// Prints the name of the test and why it skips something, past the output capture of the test harness. Prints each
/// reason once per test.
///
/// The name of the test is the name of the thread: the harness names its threads so, and so do the node helpers.
pub fn skipped(why: &str) {
    static WARNED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let line = match std::thread::current().name() {
        Some(test) => format!("SKIPPED {test}: {why}\n"),
        None => format!("SKIPPED: {why}\n"),
    };
    if WARNED.lock().unwrap_or_else(PoisonError::into_inner).insert(line.clone()) {
        // The harness hides the output of passed tests, and a skip must be visible.
        let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
    }
}
