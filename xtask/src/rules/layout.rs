//! Module files are `foo.rs` beside `foo/`: a file that is open shows its name.

use crate::finding::Finding;

/// The finding for `file` if it is called `mod.rs`.
pub fn check(file: &str) -> Option<Finding> {
    let folder = file.strip_suffix("mod.rs").filter(|folder| folder.is_empty() || folder.ends_with('/'))?;
    let remedy = format!("move it to {}.rs", folder.trim_end_matches('/'));
    Some(Finding::new("layout", file, 1, "a module file is not called mod.rs", remedy))
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn a_mod_rs_is_refused_and_told_where_to_go() {
        let finding = check("a/src/b/mod.rs").expect("refused");
        assert_eq!(finding.remedy, "move it to a/src/b.rs");
    }

    #[test]
    fn a_file_whose_name_only_ends_like_it_passes() {
        assert_eq!(check("a/src/b.rs"), None);
        assert_eq!(check("a/src/chmod.rs"), None);
    }
}
