//! Sets of moving layers spread over the circle of execution, in which the first layer of the next token follows the
//! last layer (Oneiros 5.4, "circular execution"; equal gaps are optimal by Eq. 1 to 3).

use alloc::vec::Vec;

use crate::ids::LayerId;

/// Returns `m` of `layers` layers, evenly spread with interleaved gaps (Bresenham): layer `floor(i * n / m)`. The gap
/// over the end of the token is one of the larger ones. Eight layers, two moving: 0 and 4 (the paper's 1 and 5).
///
/// # Panics
/// If `m > layers`.
pub fn uniform(layers: u16, m: u16) -> Vec<LayerId> {
    uniform_widened(layers, m, 0)
}

/// Spreads like [`uniform`], with `extra` layers added to the gap over the end of the token.
///
/// # Panics
/// If `m + extra > layers`.
pub fn uniform_widened(layers: u16, m: u16, extra: u16) -> Vec<LayerId> {
    assert!(u32::from(m) + u32::from(extra) <= u32::from(layers), "no more moving layers than layers");
    let span = u32::from(layers - extra);
    (0..u32::from(m)).map(|i| LayerId((i * span / u32::from(m)) as u16)).collect()
}

/// Extra layers tried in the gap over the end of the token, for an odd number of moving layers in two slots: the last
/// and the first layer share a slot there.
const WIDENED: [u16; 2] = [1, 2];

/// Returns sets of `m` moving layers over `beta` slots to compare when any layers may move, preferred ones first.
///
/// # Panics
/// If `m > layers`.
pub fn even(layers: u16, m: u16, beta: u8) -> impl Iterator<Item = Vec<LayerId>> {
    let odd = beta == 2 && m % 2 == 1;
    let widened = WIDENED.into_iter().filter(move |extra| odd && m + extra <= layers);
    let widened = widened.map(move |extra| uniform_widened(layers, m, extra));
    core::iter::once_with(move || uniform(layers, m)).chain(widened)
}

/// Returns `m` moving layers that contain `current` or are contained in it: layers are added in the middle of the
/// largest gap, or removed where that leaves the smallest gap. A moving layer becomes resident only if the set must
/// shrink.
///
/// # Panics
/// If `m > layers`.
pub fn nested(layers: u16, current: &[LayerId], m: u16) -> Vec<LayerId> {
    assert!(m <= layers, "no more moving layers than layers");
    let m = usize::from(m);
    let mut moving = current.to_vec();
    while moving.len() > m {
        moving.remove(closest(layers, &moving));
    }
    while moving.len() < m {
        insert_into_largest_gap(layers, &mut moving);
    }
    moving
}

/// Returns the distance on the circle from moving layer `index` to the next one; the whole circle for a single layer.
fn gap_after(layers: u16, moving: &[LayerId], index: usize) -> u16 {
    match moving.get(index + 1) {
        Some(next) => next.0 - moving[index].0,
        None => layers - moving[index].0 + moving[0].0,
    }
}

/// Returns the moving layer whose removal leaves the smallest gap.
fn closest(layers: u16, moving: &[LayerId]) -> usize {
    let merged = |index: usize| {
        let before = if index == 0 { moving.len() - 1 } else { index - 1 };
        gap_after(layers, moving, before) + gap_after(layers, moving, index)
    };
    (0..moving.len()).min_by_key(|&index| merged(index)).expect("a layer is taken out of a set that has one")
}

fn insert_into_largest_gap(layers: u16, moving: &mut Vec<LayerId>) {
    let widest = (0..moving.len()).rev().max_by_key(|&index| gap_after(layers, moving, index));
    let layer = match widest {
        None => LayerId(0),
        Some(index) => LayerId((moving[index].0 + gap_after(layers, moving, index) / 2) % layers),
    };
    let at = moving
        .binary_search(&layer)
        .expect_err("a gap wider than one layer holds a layer that does not move");
    moving.insert(at, layer);
}
