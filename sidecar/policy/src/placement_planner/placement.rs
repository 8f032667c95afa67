//! Chooses which layers of an object are offloaded for a given count: sets spread over the model, because each gap
//! hides the next transfer.

use alloc::vec::Vec;

/// Returns every `distance`-th layer, the last of each group: OrbitFlow's placements. Indices from 0, ascending.
///
/// # Panics
/// If the distance is 0.
pub fn by_distance(layers: u16, distance: u16) -> Vec<u16> {
    assert!(distance > 0, "every zeroth layer is no set");
    (1..=layers / distance).map(|group| group * distance - 1).collect()
}

/// Returns OrbitFlow's options for one request of `layers` layers: for each count of offloaded layers that a distance
/// from 2 on gives, the largest such distance, fewest layers first. There are D(L) of them, at most `2 floor(sqrt L) -
/// 1`; offloading none is one more option.
pub fn distances(layers: u16) -> Vec<u16> {
    let mut distances: Vec<u16> = (2..=layers).rev().collect();
    distances.dedup_by_key(|distance| layers / *distance);
    distances
}

/// Returns `count` layers spread as evenly as integers allow, the last of each gap. Every count from 0 to L is
/// possible, including those that distances skip. Indices from 0, ascending.
///
/// # Panics
/// If `count` exceeds `layers`.
pub fn spread(layers: u16, count: u16) -> Vec<u16> {
    assert!(count <= layers, "an object has no more layers to offload than layers");
    let (layers, count) = (u32::from(layers), u32::from(count));
    (1..=count).map(|gap| (gap * layers / count - 1) as u16).collect()
}
