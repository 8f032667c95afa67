//! [`Detail`].

/// Level of detail of the simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// Fingerprints in every chunk and block: a memory error changes a token. For small models.
    #[default]
    Fingerprints,
    /// Sizes, mappings and times only. Tokens have no meaning, and swaps of KV blocks are not checked. For models of
    /// published size.
    Times,
}
