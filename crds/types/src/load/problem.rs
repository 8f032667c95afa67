//! Each kind of mistake in a file, and its message.

use super::MAX_FILE_BYTES;

/// What is wrong with a field or a document.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Problem {
    /// The file could not be read.
    #[error("{0}")]
    Unreadable(String),
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
    #[error("unknown field{}", suggestion_text(expected, suggestions, *other_kind))]
    UnknownField {
        /// Fields that exist there.
        expected: Vec<String>,
        /// Fields that it may be a misspelling of, there by name or elsewhere by path.
        suggestions: Vec<String>,
        /// A kind that has such a field in its spec, where there is none like it in this one.
        other_kind: Option<&'static str>,
    },
    /// A required field is not there.
    #[error("missing field")]
    MissingField,
    /// A value of another type.
    #[error("wrong type: found {found}, expected {expected}{}", advice_text(advice.as_deref()))]
    WrongType {
        /// What is there.
        found: String,
        /// What should be there.
        expected: String,
        /// How to write it, where that is known.
        advice: Option<String>,
    },
    /// None of an enumeration's values.
    #[error("unknown value `{found}`, expected one of {}{}", list(expected), did_you_mean(suggestion.as_slice()))]
    UnknownValue {
        /// What is there.
        found: String,
        /// Values that exist.
        expected: Vec<String>,
        /// The value that it may be a misspelling of.
        suggestion: Option<String>,
    },
    /// A kind that is not ours.
    #[error("unknown kind `{found}`, expected `GpuPool` or `ModelTenant`{}", did_you_mean(suggestion.as_slice()))]
    UnknownKind {
        /// What is there.
        found: String,
        /// The kind that it may be a misspelling of.
        suggestion: Option<String>,
    },
    /// Another group or version.
    #[error("unknown apiVersion `{0}`, expected `sluice.dev/v1alpha1`")]
    UnknownApiVersion(String),
    /// The value is of the right type but not acceptable.
    #[error("{0}")]
    Value(String),
    /// A pool, or a group of it, that is in none of the files.
    #[error("{0}")]
    Reference(String),
}

/// Names, as a sentence has them.
pub(super) fn list<S: AsRef<str>>(names: &[S]) -> String {
    names.iter().map(|name| format!("`{}`", name.as_ref())).collect::<Vec<_>>().join(", ")
}

/// What to write instead of an unknown field.
fn suggestion_text(expected: &[String], suggestions: &[String], other_kind: Option<&str>) -> String {
    match (suggestions, other_kind) {
        ([], None) => format!(", expected one of {}", list(expected)),
        ([], Some(kind)) => format!("; it is a field of a {kind}'s spec"),
        (suggestions, _) => did_you_mean(suggestions),
    }
}

/// A hint, or nothing.
pub(super) fn did_you_mean<S: AsRef<str>>(suggestions: &[S]) -> String {
    match suggestions {
        [] => String::new(),
        names => format!("; did you mean {}?", list(names).replace("`, `", "` or `")),
    }
}

fn advice_text(advice: Option<&str>) -> String {
    advice.map(|advice| format!("; {advice}")).unwrap_or_default()
}
