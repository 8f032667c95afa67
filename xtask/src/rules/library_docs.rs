//! The documentation of a library begins with an example, which `cargo test --doc` compiles and runs.

use crate::lint_violation::LintViolation;

/// A finding if the comment at the top of `text`, the `lib.rs` at `file`, has no block of code.
pub fn check(file: &str, text: &str) -> Option<LintViolation> {
    let mut lines = text.lines().map_while(|line| line.strip_prefix("//!"));
    let has_example = lines.any(|line| line.trim_start().starts_with("```"));
    let (problem, remedy) = (
        "the documentation of the crate has no example",
        "add `# Example` with a block of code that shows the main use",
    );
    (!has_example).then(|| LintViolation::new("example", file, 1, problem, remedy))
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn a_library_without_an_example_is_found() {
        let good =
            "//! Adds.\n//!\n//! # Example\n//!\n//! ```\n//! assert_eq!(1 + 1, 2);\n//! ```\n\npub mod a;\n";
        assert_eq!(check("a/src/lib.rs", good), None);
        let elsewhere = "//! Adds.\n\n/// ```\n/// assert_eq!(1 + 1, 2);\n/// ```\npub fn add() {}\n";
        let found = check("a/src/lib.rs", elsewhere).expect("the crate has none");
        assert_eq!((found.file.as_str(), found.rule, found.line), ("a/src/lib.rs", "example", 1));
        assert!(check("a/src/lib.rs", "").is_some());
    }
}
