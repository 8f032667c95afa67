//! One broken rule: where, what, and what to do.

use std::fmt;

/// A place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LintViolation {
    /// Path relative to the workspace root, with `/`.
    pub file: String,
    /// Counted from 1.
    pub line: usize,
    /// Short name of the rule.
    pub rule: &'static str,
    /// What is wrong.
    pub problem: String,
    /// What to do about it.
    pub remedy: String,
}

impl LintViolation {
    /// A finding of `rule` at `file:line`.
    pub fn new(
        rule: &'static str,
        file: &str,
        line: usize,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { file: file.to_owned(), line, rule, problem: problem.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for LintViolation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}: [{}] {}: {}", self.file, self.line, self.rule, self.problem, self.remedy)
    }
}

#[cfg(test)]
mod tests {
    use super::LintViolation;

    #[test]
    fn violation_shows_location_rule_problem_and_remedy() {
        let finding = LintViolation::new("tidy", "a/b.rs", 7, "too long", "break it");
        assert_eq!(finding.to_string(), "a/b.rs:7: [tidy] too long: break it");
    }
}
