//! Sets of layers as bits: every step queries all layers of about a thousand KV blocks, and bits reduce such a query to
//! a few words.

use core::fmt;
use core::ops::{BitAnd, BitOr, Sub};

use crate::ids::LayerId;

/// Maximum number of layers: twice that of the deepest supported models (126, Llama 3.1 405B).
pub const MAX_LAYERS: u16 = 64 * WORDS as u16;

const WORDS: usize = 4;

/// A set of layers of a model.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct LayerSet([u64; WORDS]);

impl LayerSet {
    /// The empty set.
    pub const NONE: LayerSet = LayerSet([0; WORDS]);

    /// Returns the layers `0..layers`.
    ///
    /// # Panics
    /// If `layers` exceeds [`MAX_LAYERS`].
    pub fn all(layers: u16) -> LayerSet {
        (0..layers).map(LayerId).collect()
    }

    /// Whether the set contains the layer.
    pub const fn contains(&self, layer: LayerId) -> bool {
        self.0[layer.index() / 64] >> (layer.0 % 64) & 1 == 1
    }

    /// Adds a layer.
    pub const fn insert(&mut self, layer: LayerId) {
        self.0[layer.index() / 64] |= 1 << (layer.0 % 64);
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        *self == LayerSet::NONE
    }

    /// Returns the number of layers.
    pub fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Iterates in layer order.
    pub fn iter(&self) -> impl Iterator<Item = LayerId> + use<> {
        Layers { left: self.0, word: 0 }
    }
}

/// The layers not returned yet, and an index at or before the next nonzero word.
struct Layers {
    left: [u64; WORDS],
    word: usize,
}

impl Iterator for Layers {
    type Item = LayerId;

    fn next(&mut self) -> Option<LayerId> {
        while self.left.get(self.word) == Some(&0) {
            self.word += 1;
        }
        let left = self.left.get_mut(self.word)?;
        let bit = left.trailing_zeros() as u16;
        *left &= *left - 1;
        Some(LayerId(self.word as u16 * 64 + bit))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = LayerSet(self.left).len() as usize;
        (count, Some(count))
    }
}

/// Intersection.
impl BitAnd for LayerSet {
    type Output = LayerSet;

    fn bitand(self, other: LayerSet) -> LayerSet {
        LayerSet(core::array::from_fn(|at| self.0[at] & other.0[at]))
    }
}

/// Union.
impl BitOr for LayerSet {
    type Output = LayerSet;

    fn bitor(self, other: LayerSet) -> LayerSet {
        LayerSet(core::array::from_fn(|at| self.0[at] | other.0[at]))
    }
}

/// Difference.
impl Sub for LayerSet {
    type Output = LayerSet;

    fn sub(self, other: LayerSet) -> LayerSet {
        LayerSet(core::array::from_fn(|at| self.0[at] & !other.0[at]))
    }
}

impl FromIterator<LayerId> for LayerSet {
    fn from_iter<I: IntoIterator<Item = LayerId>>(layers: I) -> LayerSet {
        let mut set = LayerSet::NONE;
        layers.into_iter().for_each(|layer| set.insert(layer));
        set
    }
}

impl fmt::Debug for LayerSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(|layer| layer.0)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn set(layers: &[u16]) -> LayerSet {
        layers.iter().copied().map(LayerId).collect()
    }

    #[test]
    fn layers_across_words_iterate_in_order() {
        let some = set(&[255, 63, 0, 64, 127, 128]);
        assert_eq!(some.iter().map(|layer| layer.0).collect::<Vec<_>>(), [0, 63, 64, 127, 128, 255]);
        assert_eq!((some.len(), some.is_empty(), set(&[]).is_empty()), (6, false, true));
        assert!(some.contains(LayerId(64)) && !some.contains(LayerId(65)));
        assert_eq!(LayerSet::all(80), (0..80).map(LayerId).collect());
        assert_eq!(LayerSet::all(MAX_LAYERS).len(), u32::from(MAX_LAYERS));
    }

    #[test]
    fn intersection_union_and_difference() {
        let (one, other) = (set(&[1, 2, 70, 200]), set(&[2, 3, 200]));
        assert_eq!(one & other, set(&[2, 200]));
        assert_eq!(one | other, set(&[1, 2, 3, 70, 200]));
        assert_eq!(one - other, set(&[1, 70]));
    }
}
