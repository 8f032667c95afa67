//! An object and where it was written, for readers that have more to say about it than the loader.

use super::errors::LoadError;
use super::problem::Problem;
use super::spanned_tree::Node;
use super::{ManifestObject, Path};

/// An object of a file.
#[derive(Clone, Debug)]
pub struct SpannedObject {
    /// What was written.
    pub object: ManifestObject,
    file: String,
    source: usize,
    root: Node,
}

impl SpannedObject {
    pub(super) fn new(object: ManifestObject, root: Node, file: &str, source: usize) -> Self {
        SpannedObject { object, file: file.to_owned(), source, root }
    }

    /// Position of its file among those that were loaded.
    pub fn source(&self) -> usize {
        self.source
    }

    /// What is wrong with the field at `path`, on its line; where it is not written, on that of the nearest field
    /// around it that is.
    pub fn error(&self, path: Path, message: impl Into<String>) -> LoadError {
        let at = self.root.position_of(&path);
        LoadError::new((&self.file, self.source), at, path, Problem::Value(message.into()))
    }
}
