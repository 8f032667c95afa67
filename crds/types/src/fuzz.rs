//! What a fuzzer calls, and what tests call with the committed corpus (`tests/corpus`).

use crate::load::{Loader, SourceFile};

/// Loads a file, applies all rules and formats every mistake. Bytes that are not UTF-8 are no file.
///
/// # Panics
/// The second of two loads of the same file differs from the first.
pub fn fuzz_yaml(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let load = || {
        let loaded = Loader::new().load(&[SourceFile::new("file.yaml", text)]);
        (loaded.objects.len(), loaded.errors.to_string())
    };
    assert_eq!(load(), load(), "loading depends on more than the file");
}
