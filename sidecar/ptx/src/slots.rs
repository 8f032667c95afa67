//! How registers are numbered, and how many lanes each has.

/// Number of a register: it has the 32 words from `32 * slot` on, and as many more if it is of 64 bits. Predicates are
/// numbered on their own, one word of 32 bits each.
pub(crate) type Slot = u32;

/// No register.
pub(crate) const NONE: Slot = u32::MAX;

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;
