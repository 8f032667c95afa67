//! Strict loading of both kinds from YAML, for readers without a cluster.
//!
//! A file means here what it means to `kubectl apply`: the defaults are those of the types (which the CRD's schema is
//! generated from), [`validate`] applies the schema's bounds and the CRD's rules. Beyond that, what `kubectl` would
//! warn about or read differently is an error: unknown fields, duplicate keys, scalars that YAML 1.1 and 1.2 read
//! differently, and anchors, aliases and tags, which neither kind has a use for.

mod bounds;
mod de;
mod document;
mod located;
mod path;
mod tree;
mod validate;

use std::fmt;

pub use self::document::Object;
pub use self::located::Located;
pub use self::path::{Path, Segment};
use self::tree::Document;
pub use self::validate::{Invalid, validate};

/// Largest file that is read, bytes: as large as the API server takes an object.
pub const MAX_FILE_BYTES: usize = 3 << 20;

/// Fields that name other objects.
const REFERENCES: [&str; 2] = ["spec.poolRef.name", "spec.gpuGroup"];

/// Why a file could not be loaded, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadError {
    /// Name of the file, as given by the caller.
    pub file: String,
    /// Document in the file, from 1.
    pub document: usize,
    /// Line in the file, from 1.
    pub line: usize,
    /// Field, from the root of the document; empty for the document itself.
    pub path: Path,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a field or a document.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Problem {
    /// The text is no YAML.
    #[error("not valid YAML: {0}")]
    Syntax(String),
    /// Valid YAML that is refused: an alias, a tag, an ambiguous scalar.
    #[error("{0}")]
    Unsupported(String),
    /// No document that holds anything.
    #[error("the file holds no object")]
    Empty,
    /// The file is larger than [`MAX_FILE_BYTES`].
    #[error("the file has {0} bytes, more than {MAX_FILE_BYTES}")]
    TooLarge(usize),
    /// A key for the second time.
    #[error("duplicate key, first given on line {first_line}")]
    DuplicateKey {
        /// Line of the first.
        first_line: usize,
    },
    /// A field that the kind does not have.
    #[error("unknown field, expected one of {}", list(expected))]
    UnknownField {
        /// Fields that exist there.
        expected: &'static [&'static str],
    },
    /// A required field is not there.
    #[error("missing field")]
    MissingField,
    /// A value of another type.
    #[error("wrong type: found {found}, expected {expected}")]
    WrongType {
        /// What is there.
        found: String,
        /// What should be there.
        expected: String,
    },
    /// None of an enumeration's values.
    #[error("unknown value `{found}`, expected one of {}", list(expected))]
    UnknownValue {
        /// What is there.
        found: String,
        /// Values that exist.
        expected: &'static [&'static str],
    },
    /// A kind that is not ours.
    #[error("unknown kind `{0}`, expected `GpuPool` or `ModelTenant`")]
    UnknownKind(String),
    /// Another group or version.
    #[error("unknown apiVersion `{0}`, expected `sluice.dev/v1alpha1`")]
    UnknownApiVersion(String),
    /// The value is of the right type but not acceptable.
    #[error("{0}")]
    Value(String),
}

fn list(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.file, self.line)?;
        if self.document > 1 {
            write!(f, "document {}: ", self.document)?;
        }
        if !self.path.is_root() {
            write!(f, "{}: ", self.path)?;
        }
        write!(f, "{}", self.problem)
    }
}

impl std::error::Error for LoadError {}

/// Reads every document of `text`, in order. `file_name` is used in errors alone. Documents that hold nothing (comments,
/// a trailing `---`) are passed over. The first error ends the reading.
pub fn load_str(text: &str, file_name: &str) -> Result<Vec<Object>, LoadError> {
    let documents = parse(text, file_name)?;
    documents.iter().map(|document| read(document, file_name)).collect()
}

/// [`load_str`], then [`validate`], with every violation placed on the line that it is about.
pub fn load_valid_str(text: &str, file_name: &str) -> Result<Vec<Object>, Vec<LoadError>> {
    Ok(load_located_str(text, file_name)?.into_iter().map(|located| located.object).collect())
}

/// [`load_valid_str`], for readers that have to say more about a field: each object knows where it was written.
pub fn load_located_str(text: &str, file_name: &str) -> Result<Vec<Located>, Vec<LoadError>> {
    located(text, file_name, |_| true)
}

/// [`load_located_str`] of one file of several: that a pool or one of its groups is not in this one is no mistake.
pub fn load_located_part_str(text: &str, file_name: &str) -> Result<Vec<Located>, Vec<LoadError>> {
    located(text, file_name, |invalid| !REFERENCES.contains(&invalid.path.to_string().as_str()))
}

/// The objects, unless one of them is invalid in a way that `counts`.
fn located(
    text: &str,
    file_name: &str,
    counts: impl Fn(&Invalid) -> bool,
) -> Result<Vec<Located>, Vec<LoadError>> {
    let documents = parse(text, file_name).map_err(|error| vec![error])?;
    let objects: Result<Vec<Object>, LoadError> =
        documents.iter().map(|document| read(document, file_name)).collect();
    let objects = objects.map_err(|error| vec![error])?;
    let validated = validate(&objects);
    let located = objects.into_iter().zip(documents);
    let located: Vec<_> =
        located.map(|(object, document)| Located::new(object, document, file_name)).collect();
    let place = |invalid: Invalid| located[invalid.index].error(invalid.path, invalid.message);
    let invalid = validated.err().into_iter().flatten().filter(counts);
    let errors: Vec<_> = invalid.map(place).collect();
    if errors.is_empty() { Ok(located) } else { Err(errors) }
}

fn parse(text: &str, file_name: &str) -> Result<Vec<Document>, LoadError> {
    let whole_file = |problem| LoadError {
        file: file_name.to_owned(),
        document: 1,
        line: 1,
        path: Path::default(),
        problem,
    };
    if text.len() > MAX_FILE_BYTES {
        return Err(whole_file(Problem::TooLarge(text.len())));
    }
    let documents = tree::parse(text).map_err(|error| error.in_file(file_name))?;
    if documents.is_empty() {
        return Err(whole_file(Problem::Empty));
    }
    Ok(documents)
}

fn read(document: &Document, file_name: &str) -> Result<Object, LoadError> {
    document::read(&document.root).map_err(|error| LoadError {
        file: file_name.to_owned(),
        document: document.number,
        line: error.line.unwrap_or(document.root.line),
        path: error.path(),
        problem: error.problem,
    })
}
