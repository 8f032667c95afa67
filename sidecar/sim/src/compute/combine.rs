//! [`combine`].

use sluice_common::random::{GOLDEN_GAMMA, mix};

/// Combines two fingerprints into one.
pub(super) fn combine(a: u64, b: u64) -> u64 {
    mix(a ^ mix(b.wrapping_add(GOLDEN_GAMMA)))
}
