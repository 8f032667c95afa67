//! Strict loading of both kinds from YAML, for readers without a cluster.
//!
//! A file means here what it means to `kubectl apply`: the defaults are those of the types (which the CRD's schema is
//! generated from), [`validate()`] applies the schema's bounds and the CRD's rules. Beyond that, what `kubectl` would
//! warn about or read differently is an error: unknown fields, duplicate keys, scalars that YAML 1.1 and 1.2 read
//! differently, and anchors, aliases and tags, which neither kind has a use for.
//!
//! One pass finds every mistake of all files ([`Loader`]). Each document is checked against the CRD's schema; then
//! rules are applied to the objects without their mistakes. A rule is not applied where it reads a value that is not
//! known.

mod bounds;
mod check;
mod de;
mod document;
mod errors;
mod hint;
mod loader;
mod max_file_bytes;
mod path;
mod problem;
mod schema;
mod spanned_object;
mod spanned_tree;
mod unread;
mod validate;

pub use self::document::ManifestObject;
pub use self::errors::{LoadError, LoadErrors};
pub use self::loader::{Loaded, Loader, SourceFile};
pub use self::max_file_bytes::MAX_FILE_BYTES;
pub use self::path::{Path, Segment};
pub use self::problem::Problem;
use self::problem::list;
pub use self::spanned_object::SpannedObject;
pub use self::validate::{InvalidObject, validate};
use crate::pool::Policy;

/// Reads the name of a policy, as `spec.policy` of a GpuPool has it.
///
/// # Errors
/// [`Problem::UnknownValue`].
pub fn parse_policy(text: &str) -> Result<Policy, Problem> {
    let found = Policy::ALL.into_iter().find(|policy| policy.as_str() == text);
    found.ok_or_else(|| check::unknown_value(&Policy::ALL.map(Policy::as_str), text))
}

/// Reads every document of `text`, in order, without applying rules. `file_name` is used in errors alone. Documents
/// that hold nothing (comments, a trailing `---`) are passed over.
///
/// # Errors
/// Everything that is no YAML, no field or no value of the field's type.
pub fn load_str(text: &str, file_name: &str) -> Result<Vec<ManifestObject>, LoadErrors> {
    let loaded = Loader::new().without_rules().load(&[SourceFile::new(file_name, text)]);
    objects(loaded.into_result()?)
}

/// [`load_str`] with all rules that the API server and the operator apply.
///
/// # Errors
/// As [`Loader::load`].
pub fn load_valid_str(text: &str, file_name: &str) -> Result<Vec<ManifestObject>, LoadErrors> {
    objects(load_located_str(text, file_name)?)
}

/// [`load_valid_str`], for readers that have to say more about a field: each object knows where it was written.
///
/// # Errors
/// As [`Loader::load`].
pub fn load_located_str(text: &str, file_name: &str) -> Result<Vec<SpannedObject>, LoadErrors> {
    Loader::new().load(&[SourceFile::new(file_name, text)]).into_result()
}

fn objects(located: Vec<SpannedObject>) -> Result<Vec<ManifestObject>, LoadErrors> {
    Ok(located.into_iter().map(|located| located.object).collect())
}
