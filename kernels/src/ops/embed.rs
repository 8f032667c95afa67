//! Embedding lookup.

#![allow(clippy::undocumented_unsafe_blocks, reason = "pointer arithmetic under the contract of `Embed`")]

use crate::simd::{Element, Kernel, LANES, Lanes};

/// `output = token` or `token + position`, one row of `width` words.
pub struct Embed<E> {
    /// The token's row of the embedding.
    pub token: *const E,
    /// The position's row, where positions are learned.
    pub position: Option<*const E>,
    /// Words of a row.
    pub width: usize,
    /// The row written.
    pub output: *mut f32,
}

impl<E: Element> Kernel for Embed<E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        for first in (0..self.width).step_by(LANES) {
            let count = LANES.min(self.width - first);
            unsafe {
                let mut row = E::load_first::<V>(self.token.add(first), count);
                if let Some(position) = self.position {
                    row = row.add(E::load_first::<V>(position.add(first), count));
                }
                row.store_first(self.output.add(first), count);
            }
        }
    }
}
