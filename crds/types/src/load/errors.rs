//! The mistakes of files, as a user reads them.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Deref;

use super::Path;
use super::problem::Problem;
use super::spanned_tree::Position;

/// A mistake in a file, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadError {
    /// Name of the file, as given by the caller.
    pub file: String,
    /// Line in the file, from 1; 0 = the file as a whole.
    pub line: usize,
    /// Column in the line, in characters, from 1; 0 = the file as a whole.
    pub column: usize,
    /// Field, from the root of the document; empty for the document itself.
    pub path: Path,
    /// What is wrong with it.
    pub problem: Problem,
    /// Position of the file among those that were loaded.
    source: usize,
}

impl LoadError {
    /// Of a file: its name, and its position among those that are loaded.
    pub(super) fn new(file: (&str, usize), at: Position, path: Path, problem: Problem) -> Self {
        let (name, source) = file;
        LoadError { file: name.to_owned(), line: at.line, column: at.column, path, problem, source }
    }
}

/// `FILE:LINE:COLUMN: FIELD: problem; hint`.
impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: ", self.file)?,
            line => write!(f, "{}:{line}:{}: ", self.file, self.column)?,
        }
        if !self.path.is_root() {
            write!(f, "{}: ", self.path)?;
        }
        write!(f, "{}", self.problem)
    }
}

impl std::error::Error for LoadError {}

/// All mistakes of files, by file (in the order in which they were loaded), line and column.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadErrors(Vec<LoadError>);

impl LoadErrors {
    /// Sorts them.
    fn new(mut errors: Vec<LoadError>) -> Self {
        let place = |e: &LoadError| (e.source, e.file.clone(), e.line, e.column);
        errors.sort_by_cached_key(place);
        LoadErrors(errors)
    }

    /// The files that have mistakes, in the order in which they were loaded.
    pub fn files(&self) -> Vec<&str> {
        let files: BTreeSet<(usize, &str)> =
            self.0.iter().map(|error| (error.source, error.file.as_str())).collect();
        files.into_iter().map(|(_, file)| file).collect()
    }
}

impl FromIterator<LoadError> for LoadErrors {
    fn from_iter<I: IntoIterator<Item = LoadError>>(errors: I) -> Self {
        LoadErrors::new(errors.into_iter().collect())
    }
}

impl Deref for LoadErrors {
    type Target = [LoadError];

    fn deref(&self) -> &[LoadError] {
        &self.0
    }
}

impl IntoIterator for LoadErrors {
    type Item = LoadError;
    type IntoIter = std::vec::IntoIter<LoadError>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// A line for each, and a last one with their number.
impl fmt::Display for LoadErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for error in &self.0 {
            writeln!(f, "{error}")?;
        }
        let (errors, files) = (self.0.len(), self.files().len());
        write!(f, "{errors} error{}", if errors == 1 { "" } else { "s" })?;
        if files > 1 { write!(f, " in {files} files") } else { Ok(()) }
    }
}

impl std::error::Error for LoadErrors {}
