//! [`OwnKind`].

/// A custom resource kind of Sluice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum OwnKind {
    Pool,
    Tenant,
}
