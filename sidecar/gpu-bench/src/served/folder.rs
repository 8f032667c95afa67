//! [`RunFolder`].

use std::fs;
use std::path::{Path, PathBuf};

use super::error::ServedError;

/// Start of the folder's name. The id of its process follows.
const PREFIX: &str = "sluice-gpu-bench-";

/// A folder for models and sidecars of this process. Dropping it removes it; what a killed process has left, the next
/// one removes.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// Makes the folder in that for temporary files.
    pub fn new() -> Result<RunFolder, ServedError> {
        RunFolder::below(&std::env::temp_dir())
    }

    fn below(parent: &Path) -> Result<RunFolder, ServedError> {
        remove_abandoned(parent);
        let path = parent.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&path).map_err(ServedError::file(&path))?;
        Ok(RunFolder { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("  cannot remove {}: {error}", self.path.display());
        }
    }
}

/// Removes the folders of processes that no longer run. A folder of another user stays.
fn remove_abandoned(parent: &Path) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let id = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
        if id.is_some_and(|id| !Path::new("/proc").join(id.to_string()).exists()) {
            // Another process may remove it at the same time.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_a_process_that_has_ended_is_removed_and_that_of_another_stays() {
        let parent = tempfile::tempdir().expect("a folder for tests");
        let mut child = std::process::Command::new("true").spawn().expect("it starts");
        child.wait().expect("it ends");
        let of = |id: u32| parent.path().join(format!("{PREFIX}{id}"));
        let (ended, running) = (of(child.id()), of(1));
        for folder in [&ended, &running] {
            fs::create_dir(folder).expect("the folder is ours");
        }
        let own = RunFolder::below(parent.path()).expect("the folder is ours");
        assert!(!ended.exists() && running.exists() && own.path().exists());
        let path = own.path().to_owned();
        drop(own);
        assert!(!path.exists());
    }
}
