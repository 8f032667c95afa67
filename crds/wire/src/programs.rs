//! Where the other programs of an installation are.

use std::path::PathBuf;

/// Variable with the first folder to search, for packagers who install the programs apart and for tests.
pub const BIN_DIR: &str = "SLUICE_BIN_DIR";

/// Returns the path of a program of Sluice: in `$SLUICE_BIN_DIR`, in the folder of this program, or on PATH.
pub fn find(name: &str) -> Option<PathBuf> {
    let named = std::env::var_os(BIN_DIR).filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = named.into_iter().chain(own_folder()).chain(std::env::split_paths(&path));
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Returns the folder of this program, without symbolic links.
pub fn own_folder() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?.canonicalize().ok()?;
    program.parent().map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_in_the_folder_of_this_one_and_on_path() {
        let own = std::env::current_exe().unwrap();
        let name = own.file_name().unwrap().to_str().unwrap();
        assert_eq!(find(name), own_folder().map(|folder| folder.join(name)));
        assert!(find("sh").is_some_and(|shell| shell.is_file()), "every Linux has a shell");
        assert_eq!(find("no-program-of-sluice"), None);
    }
}
