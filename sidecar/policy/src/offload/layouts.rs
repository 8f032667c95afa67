//! Layouts of offloaded layers and their buffers.

use alloc::vec::Vec;

use super::MIN_MOVING_LAYERS;
use crate::ids::LayerId;
use crate::placement_planner::placement::spread;
use crate::step_model::{Layout, MAX_BETA};

/// A layout with `away` layers offloaded, spread over the model, in buffers that serve at least two each; resident if
/// there are too few.
pub fn moving_layout(layers: u16, away: u16) -> Layout {
    if away < MIN_MOVING_LAYERS {
        return Layout::resident();
    }
    let moving: Vec<_> = spread(layers, away.min(layers - 1)).into_iter().map(LayerId).collect();
    let beta = buffers(moving.len());
    Layout { moving, beta }
}

/// Buffers that these layers share: as many as allowed, each for at least two.
pub fn buffers(layers: usize) -> u8 {
    (layers / 2).min(usize::from(MAX_BETA)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_buffer_serves_at_least_two_layers() {
        assert_eq!([0, 1, 2, 3, 4, 5, 64].map(buffers), [0, 0, 1, 1, 2, 2, 2]);
    }

    #[test]
    fn one_layer_cannot_be_offloaded_and_one_always_stays() {
        assert_eq!(moving_layout(8, 1), Layout::resident());
        assert_eq!(moving_layout(8, 2).moving.len(), 2);
        assert_eq!(moving_layout(8, 9).moving.len(), 7);
        let layout = moving_layout(3, 2);
        assert_eq!((layout.moving.len(), layout.beta), (2, 1));
    }
}
