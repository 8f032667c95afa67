//! Subjects of commits: `area: imperative`, short enough for one line of a log.

use crate::lint_violation::LintViolation;

const RULE: &str = "commit";

/// Longest subject, in characters: `git log --oneline` shows it on a terminal of 80 columns.
const LONGEST_SUBJECT_CHARS: usize = 72;

/// Findings in the subjects of commits; each is given with its abbreviated hash.
pub fn check<'a>(subjects: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<LintViolation> {
    subjects.filter_map(|(hash, subject)| check_subject(hash, subject)).collect()
}

fn check_subject(hash: &str, subject: &str) -> Option<LintViolation> {
    let finding = |problem: String, remedy: &str| Some(LintViolation::new(RULE, hash, 1, problem, remedy));
    let chars = subject.chars().count();
    if chars > LONGEST_SUBJECT_CHARS {
        return finding(
            format!("the subject has {chars} characters"),
            &format!("use at most {LONGEST_SUBJECT_CHARS}"),
        );
    }
    let Some((area, rest)) = subject.split_once(": ") else {
        return finding(format!("the subject `{subject}` has no area"), "write `area: imperative`");
    };
    let is_area = |part: &str| part.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
    if area.is_empty() || !area.split(", ").all(is_area) {
        return finding(format!("`{area}` is not an area"), "name crates or folders, separated by `, `");
    }
    let ends = rest.ends_with('.') || rest.is_empty();
    if ends {
        finding(format!("the subject `{subject}` does not end with a word"), "end with a word")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::check;

    fn problems(subject: &str) -> usize {
        check([("abc", subject)].into_iter()).len()
    }

    #[test]
    fn area_and_imperative_pass() {
        for good in ["policy: evict cache", "sim, e2e: rename tests", "docs: a", ".ci: keep a cache"] {
            assert_eq!(problems(good), 0, "{good}");
        }
    }

    #[test]
    fn long_areas_and_sentences_are_refused() {
        let long = format!("policy: {}", "x".repeat(65));
        for bad in
            ["Who comes first is let in", "policy evict", "the policy that waits: x", "a: done.", &long]
        {
            assert_eq!(problems(bad), 1, "{bad}");
        }
    }
}
