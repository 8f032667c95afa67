//! An object and where it was written, for readers that have more to say about it than the loader.

use super::tree::Document;
use super::{LoadError, Object, Path, Problem};

/// An object of a file.
#[derive(Clone, Debug)]
pub struct Located {
    /// What was written.
    pub object: Object,
    file: String,
    document: Document,
}

impl Located {
    pub(super) fn new(object: Object, document: Document, file_name: &str) -> Self {
        Located { object, file: file_name.to_owned(), document }
    }

    /// What is wrong with the field at `path`, on its line; where it is not written, on that of the nearest field
    /// around it that is.
    pub fn error(&self, path: Path, message: impl Into<String>) -> LoadError {
        LoadError {
            file: self.file.clone(),
            document: self.document.number,
            line: self.document.root.line_of(&path),
            path,
            problem: Problem::Value(message.into()),
        }
    }
}
