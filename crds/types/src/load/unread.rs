//! The parts of an object whose intended values are not known, because the document has mistakes there.

use super::Path;
use super::spanned_tree::Node;

/// Paths whose intended values are not known.
#[derive(Debug, Default)]
pub(super) struct UnreadParts {
    /// Values that are left out or replaced by placeholders.
    values: Vec<Path>,
    /// Mappings and sequences with fields or items that could not be read.
    mappings: Vec<Path>,
}

impl UnreadParts {
    /// Adds a value.
    pub fn add_value(&mut self, path: Path) {
        self.values.push(path);
    }

    /// Adds a mapping or sequence: a field that is not written in it may be one that could not be read.
    pub fn add_mapping(&mut self, path: Path) {
        self.mappings.push(path);
    }

    /// Whether the value at `path` of the document `root`, or a part of it, is not known.
    pub fn covers(&self, path: &Path, root: &Node) -> bool {
        let inside = |unread: &Path| unread.starts_with(path);
        self.can_hide(path, root) || self.values.iter().chain(&self.mappings).any(inside)
    }

    /// Whether it is not known if the document `root` has the field at `path`.
    pub fn can_hide(&self, path: &Path, root: &Node) -> bool {
        let (_, _, written) = root.nearest(path);
        let around = Path(path.0[..written].to_vec());
        let not_written = around != *path && self.mappings.contains(&around);
        not_written || self.values.iter().any(|value| path.starts_with(value))
    }

    /// Whether all values are known.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty() && self.mappings.is_empty()
    }
}
