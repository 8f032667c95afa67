//! Loads the YAML files of the command line together, and reports their mistakes.

use std::path::{Path, PathBuf};

use sluice_types::load::{LoadErrors, Loaded, Loader, Problem, Source, SpannedObject};

use crate::Misconfigured;

/// Loads all files together.
pub fn load_files(loader: &Loader, files: &[PathBuf]) -> Loaded {
    let sources: Vec<Source> = files.iter().map(|file| Source::read(file)).collect();
    loader.load(&sources)
}

/// Returns the base folder of relative paths in an object of `files`; empty = the current folder.
pub fn folder_of<'a>(files: &'a [PathBuf], located: &SpannedObject) -> &'a Path {
    files.get(located.source()).and_then(|file| file.parent()).unwrap_or(Path::new(""))
}

/// Formats a line for each error, after a title that names the files and before a line with the count.
pub fn to_misconfigured(errors: &LoadErrors) -> Misconfigured {
    if let [error] = &**errors
        && matches!(error.problem, Problem::Unreadable(_))
    {
        return Misconfigured(error.to_string());
    }
    let files = errors.files();
    let are = if files.len() == 1 { "is" } else { "are" };
    Misconfigured(format!("{} {are} refused\n{errors}", files.join(", ")))
}
