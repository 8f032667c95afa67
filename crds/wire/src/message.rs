//! Reading of versioned messages.
//!
//! A message has its major version in the field `version`. Within a major, fields are only added: a reader ignores
//! unknown fields and uses the default of missing ones. A removed field, a changed meaning, or a new value of an
//! enumeration is a new major; an older reader refuses it, whichever
//! shape it has. A writer that may meet older
//! readers writes the oldest major that can express the message.
//!
//! Files that users write are not messages: there an unknown field is a typing error, and is refused
//! ([`config`](crate::config)).

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

/// A field that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{field}`: {problem}")]
pub struct Invalid {
    /// Path of the field from the root of the message, such as `tenant.priority` or `peers[2].admin`; `.` = the
    /// message itself.
    pub field: String,
    /// What is wrong with it, with the value and the bound.
    pub problem: String,
}

impl Invalid {
    /// A problem of a field.
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Invalid { field: field.into(), problem: problem.into() }
    }
}

/// Why a message could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// No JSON.
    #[error("malformed JSON: {0}")]
    Malformed(#[source] serde_json::Error),
    /// A newer major than this reader knows.
    #[error(
        "the message has version {version}, but this program supports versions up to {known}: update the program"
    )]
    NewerVersion {
        /// Major of the message.
        version: u32,
        /// Newest major that this reader knows.
        known: u32,
    },
    /// A field is missing, of another type, or has a value that cannot be.
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

impl ReadError {
    /// Path of the field at fault; `None` = the text is no JSON.
    pub fn field(&self) -> Option<&str> {
        match self {
            ReadError::Malformed(_) => None,
            ReadError::NewerVersion { .. } => Some("version"),
            ReadError::Invalid(invalid) => Some(&invalid.field),
        }
    }
}

/// Reads a message whose newest known major is `known`. Checks the version first.
pub(crate) fn read<T: DeserializeOwned>(text: &[u8], known: u32) -> Result<T, ReadError> {
    #[derive(Deserialize)]
    struct Header {
        version: u32,
    }
    let header: Header = parse(text)?;
    match header.version {
        0 => Err(Invalid::new("version", "0 is not a version").into()),
        version if version > known => Err(ReadError::NewerVersion { version, known }),
        _ => parse(text),
    }
}

fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, ReadError> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        // Not by the category of the error: an enumeration that is `{}` counts as bad syntax there.
        match serde_json::from_slice::<IgnoredAny>(text) {
            Ok(_) => at_fault(&error.path().to_string(), error.inner()).into(),
            Err(error) => ReadError::Malformed(error),
        }
    })?;
    json.end().map_err(ReadError::Malformed)?;
    Ok(value)
}

/// A missing field has no path of its own: serde gives its parent's, and the name in words.
fn at_fault(path: &str, error: &serde_json::Error) -> Invalid {
    let problem = error.to_string();
    let missing = problem.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
    match missing {
        Some(name) if path == "." => Invalid::new(name, "missing"),
        Some(name) => Invalid::new(format!("{path}.{name}"), "missing"),
        None => Invalid::new(path, problem),
    }
}
