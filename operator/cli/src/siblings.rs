//! Other binaries of the product: looked for in `$SLUICE_BIN_DIR`, then beside this one, then on PATH.

use std::path::PathBuf;

use anyhow::Context;

/// Folder that is looked in first, for packagers who install the binaries apart and for tests.
pub const BIN_DIR: &str = "SLUICE_BIN_DIR";

/// The path of the binary `name`.
///
/// # Errors
/// It is in none of these places.
pub fn find(name: &str) -> anyhow::Result<PathBuf> {
    let named = std::env::var_os(BIN_DIR).filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let own = std::env::current_exe().ok().and_then(|path| path.canonicalize().ok());
    let beside = own.and_then(|path| Some(path.parent()?.to_owned()));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = named.into_iter().chain(beside).chain(std::env::split_paths(&path));
    let found = folders.map(|folder| folder.join(name)).find(|file| file.is_file());
    found.with_context(|| format!("{name} is neither in ${BIN_DIR}, nor beside this program, nor on PATH"))
}
