//! The layers whose memory an inactive tenant can lend.

use alloc::vec::Vec;

use crate::ids::LayerId;

/// Layers with memory of their own that can be lent, last one first: a tenant wakes front first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LendableLayers {
    /// Each layer with its chunks.
    layers: Vec<(LayerId, u32)>,
    /// Layers that can be restored at the cost of at most one step.
    hidden: usize,
}

impl LendableLayers {
    /// The first `most` of these layers. The copies of `hidden` of them hide.
    pub fn new(
        last_first: impl Iterator<Item = (LayerId, u32)>,
        most: usize,
        hidden: usize,
    ) -> LendableLayers {
        LendableLayers { layers: last_first.take(most).collect(), hidden }
    }

    /// Chunks of the layers whose copies hide.
    pub fn hidden_chunks(&self) -> u32 {
        self.layers.iter().take(self.hidden).map(|(_, chunks)| chunks).sum()
    }

    /// Whether the copies of this number of layers hide.
    pub fn hides(&self, layers: u16) -> bool {
        usize::from(layers) <= self.hidden
    }

    /// The fewest layers that hold these chunks.
    pub fn holding(&self, chunks: u32) -> Option<u16> {
        let mut missing = chunks;
        let mut count = 0;
        let mut layers = self.layers.iter();
        while missing > 0 {
            missing = missing.saturating_sub(layers.next()?.1);
            count += 1;
        }
        Some(count)
    }

    /// The first `count` of them.
    pub fn first(&self, count: u16) -> Vec<LayerId> {
        self.layers.iter().take(usize::from(count)).map(|(layer, _)| *layer).collect()
    }
}

/// Layers that a tenant can lend and restore at the cost of at most one step, T_T * N <= T_compute, `absent` ones
/// included: a tenant that waits for its time slice needs them in that slice. All layers while no step was measured.
pub fn layers_that_hide(compute_ns: u128, transfer_ns: u64, absent: u16) -> usize {
    if compute_ns == 0 {
        return usize::MAX;
    }
    let hidden = compute_ns.checked_div(u128::from(transfer_ns)).unwrap_or(u128::MAX);
    (hidden.min(u128::from(u16::MAX)) as usize).saturating_sub(usize::from(absent))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Layers 5, 4, 3 and 2 of 6, with 2, 3, 4 and 5 chunks.
    fn layers(most: usize, hidden: usize) -> LendableLayers {
        let all = [(5, 2), (4, 3), (3, 4), (2, 5)].map(|(layer, chunks)| (LayerId(layer), chunks));
        LendableLayers::new(all.into_iter(), most, hidden)
    }

    #[test]
    fn fewest_last_layers_hold_the_chunks() {
        let counts = [0, 1, 2, 3, 5, 6, 14, 15].map(|chunks| layers(4, 4).holding(chunks));
        assert_eq!(counts, [Some(0), Some(1), Some(1), Some(2), Some(2), Some(3), Some(4), None]);
        assert_eq!(layers(4, 4).first(2), [LayerId(5), LayerId(4)]);
    }

    #[test]
    fn layers_beyond_the_cap_are_not_lent() {
        assert_eq!((layers(2, 4).holding(5), layers(2, 4).holding(6)), (Some(2), None));
    }

    #[test]
    fn only_layers_whose_copies_hide_are_offered() {
        assert_eq!((layers(4, 3).hidden_chunks(), layers(4, 0).hidden_chunks()), (9, 0));
        assert!(layers(4, 3).hides(3) && !layers(4, 3).hides(4));
    }

    #[test]
    fn a_step_hides_as_many_copies_as_fit_into_it() {
        assert_eq!([0, 1, 3].map(|absent| layers_that_hide(1000, 400, absent)), [2, 1, 0]);
        assert_eq!(layers_that_hide(0, 400, 1), usize::MAX, "no step was measured");
        assert_eq!(layers_that_hide(1000, 0, 1), usize::from(u16::MAX) - 1, "no copy was measured");
    }
}
