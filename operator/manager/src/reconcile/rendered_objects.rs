//! [`RenderedObjects`].

use sluice_plan::objects::ChildKind;

/// The rendered objects of a tenant or of a GPU.
#[derive(Debug)]
pub(super) struct RenderedObjects {
    /// Digest of all inputs.
    pub(super) digest: u64,
    pub(super) children: Box<[(ChildKind, Box<str>, u64)]>,
}
