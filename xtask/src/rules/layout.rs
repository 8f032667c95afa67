//! Module files are `foo.rs` next to `foo/`: an editor tab shows the name of the module.

use crate::lint_violation::LintViolation;

/// The finding for `file` if it is called `mod.rs`.
pub fn check(file: &str) -> Option<LintViolation> {
    let folder = file.strip_suffix("mod.rs").filter(|folder| folder.is_empty() || folder.ends_with('/'))?;
    let remedy = format!("move it to {}.rs", folder.trim_end_matches('/'));
    Some(LintViolation::new("layout", file, 1, "a module file is not called mod.rs", remedy))
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn mod_rs_is_refused_with_new_path() {
        let finding = check("a/src/b/mod.rs").expect("refused");
        assert_eq!(finding.remedy, "move it to a/src/b.rs");
    }

    #[test]
    fn a_file_whose_name_only_ends_like_it_passes() {
        assert_eq!(check("a/src/b.rs"), None);
        assert_eq!(check("a/src/chmod.rs"), None);
    }
}
