//! Loads the YAML files of the command line together, and reports their mistakes.

use std::path::{Path, PathBuf};

use sluice_types::load::{
    LoadError, LoadErrors, Loaded, Loader, Path as FieldPath, Problem, SourceFile, SpannedObject,
};

use crate::Misconfigured;

/// An object and the base folder of its relative paths.
#[derive(Clone, Debug)]
pub struct SourceObject {
    /// The object, and its position in the file.
    pub located: SpannedObject,
    /// Folder of its file.
    pub folder: PathBuf,
}

impl SourceObject {
    /// Returns its namespace.
    pub fn namespace(&self) -> &str {
        self.located.object.namespace()
    }

    /// Returns its namespace and name.
    pub fn key(&self) -> (String, String) {
        (self.namespace().to_owned(), self.located.object.name().to_owned())
    }

    /// Returns an error at `field`, a path of keys.
    pub fn field_error(&self, field: &str, problem: &str) -> LoadError {
        self.located.error(FieldPath::of_keys(field), problem)
    }
}

/// Loads all files together.
pub fn load_files(loader: &Loader, files: &[PathBuf]) -> Loaded {
    let sources: Vec<SourceFile> = files.iter().map(|file| SourceFile::read(file)).collect();
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
