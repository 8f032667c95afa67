//! The folder of Kubernetes binaries that `cargo xtask kube` provides.

use std::path::{Path, PathBuf};
use std::sync::Once;

/// A folder with `etcd`, `kube-apiserver`, `kubectl` and so on.
#[derive(Clone, Debug)]
pub struct Binaries(PathBuf);

impl Binaries {
    /// The folder that `SLUICE_KUBE_BIN` names; without it `None`, and a line that says so.
    pub fn find() -> Option<Binaries> {
        let folder = std::env::var_os("SLUICE_KUBE_BIN").filter(|folder| !folder.is_empty());
        if folder.is_none() {
            skipped(
                "SLUICE_KUBE_BIN is not set; `cargo xtask kube --print` gets the binaries and names their folder",
            );
        }
        folder.map(|folder| Binaries(folder.into()))
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

/// Says once that tests against a cluster are skipped, and why, past the capture of the test harness.
pub fn skipped(why: &str) {
    static SAID: Once = Once::new();
    // The harness shows what a passed test prints to nobody, and a skip must not be silent.
    SAID.call_once(|| {
        let _ =
            std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("SKIPPED, no cluster: {why}\n"));
    });
}
