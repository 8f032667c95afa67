//! Paths of fields: `spec.gpus[0].sharing.mode`.

use std::fmt;

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// Into a mapping.
    Key(String),
    /// Into a sequence, from 0.
    Index(usize),
}

/// Where a field is, from the root of its document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(pub Vec<Segment>);

impl Path {
    /// A path of keys, written with dots.
    pub fn of_keys(dotted: &str) -> Self {
        Path(dotted.split('.').map(|key| Segment::Key(key.to_owned())).collect())
    }

    /// This path and one step more.
    pub(super) fn with(&self, segment: Segment) -> Self {
        let mut path = self.clone();
        path.0.push(segment);
        path
    }

    /// This path and one key more.
    pub fn key(&self, key: &str) -> Self {
        self.with(Segment::Key(key.to_owned()))
    }

    /// This path and one index more.
    pub fn index(&self, index: usize) -> Self {
        self.with(Segment::Index(index))
    }

    /// Whether this is the field at `outer` or one in it.
    pub(super) fn starts_with(&self, outer: &Path) -> bool {
        self.0.starts_with(&outer.0)
    }

    /// Whether this is the document itself.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, segment) in self.0.iter().enumerate() {
            match segment {
                Segment::Index(index) => write!(f, "[{index}]")?,
                Segment::Key(key) if is_plain(key) => {
                    write!(f, "{}{key}", if position == 0 { "" } else { "." })?;
                }
                Segment::Key(key) => write!(f, "[{key:?}]")?,
            }
        }
        Ok(())
    }
}

/// Whether a key can stand in a path without brackets (a label's cannot).
fn is_plain(key: &str) -> bool {
    !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || c == '-' || c == '_')
}
