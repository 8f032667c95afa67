//! [`CacheDir`].

use cargo_metadata::camino::Utf8PathBuf;

/// Where things lie.
pub struct CacheDir {
    /// Folder of the modules that Go builds of.
    pub(super) modules: Utf8PathBuf,
    /// Folder that the binaries go to.
    pub(super) folder: Utf8PathBuf,
}
