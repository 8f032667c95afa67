//! The folder of Kubernetes binaries that `cargo xtask kube` provides.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Why there are no binaries.
const UNSET: &str = "no Kubernetes: SLUICE_KUBE_BIN is not set; `cargo xtask kube --print` gets the binaries and names their \
                     folder";

/// A folder with `etcd`, `kube-apiserver`, `kubectl` and so on.
#[derive(Clone, Debug)]
pub struct Binaries(PathBuf);

impl Binaries {
    /// The folder that `SLUICE_KUBE_BIN` names; without it `None`, and a line that says so.
    pub fn find() -> Option<Binaries> {
        Binaries::named().inspect_err(|why| skipped(why)).ok()
    }

    /// As [`Binaries::find`], with why there are none instead of a line that says so.
    ///
    /// # Errors
    /// `SLUICE_KUBE_BIN` is not set.
    pub(super) fn named() -> Result<Binaries, &'static str> {
        let folder = std::env::var_os("SLUICE_KUBE_BIN").filter(|folder| !folder.is_empty());
        folder.map(|folder| Binaries(folder.into())).ok_or(UNSET)
    }

    /// The binary `name`.
    ///
    /// # Panics
    /// If it is not there.
    pub fn path(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        assert!(path.is_file(), "{} has no {name}: see `cargo xtask kube`", self.0.display());
        path
    }

    /// Whether the binary `name` is there.
    pub fn has(&self, name: &str) -> bool {
        self.0.join(name).is_file()
    }

    /// kubectl, of this folder or else of the PATH.
    pub fn kubectl(&self) -> PathBuf {
        let own = self.0.join("kubectl");
        if own.is_file() { own } else { PathBuf::from("kubectl") }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.0
    }
}

/// Says in which test something is skipped, and why, past the capture of the test harness; each reason once for each test.
///
/// A thread of the harness is called as its test is, and so is one on which a test runs in the network of a node.
pub fn skipped(why: &str) {
    static WARNED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let line = match std::thread::current().name() {
        Some(test) => format!("SKIPPED {test}: {why}\n"),
        None => format!("SKIPPED: {why}\n"),
    };
    if WARNED.lock().unwrap_or_else(PoisonError::into_inner).insert(line.clone()) {
        // The harness shows what a passed test prints to nobody, and a skip must not be silent.
        let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
    }
}
