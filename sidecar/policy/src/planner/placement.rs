//! Which layers of an object are away when so many of them are: sets that are spread over the model, because a gap hides
//! the transfer that follows it.

use alloc::vec::Vec;

/// Every `distance`-th layer, the last of each group: OrbitFlow's placements. Indices from 0, ascending.
///
/// # Panics
/// If the distance is 0.
pub fn by_distance(layers: u16, distance: u16) -> Vec<u16> {
    assert!(distance > 0, "every zeroth layer is no set");
    (1..=layers / distance).map(|group| group * distance - 1).collect()
}

/// OrbitFlow's options for one request of `layers` layers: the largest distance for each count of layers that some distance
/// from 2 on gives, the fewest layers first. There are D(L) of them, at most `2 floor(sqrt L) - 1`; that nothing is away is
/// one more.
pub fn distances(layers: u16) -> Vec<u16> {
    let mut distances: Vec<u16> = (2..=layers).rev().collect();
    distances.dedup_by_key(|distance| layers / *distance);
    distances
}

/// Any number of layers, spread as evenly as integers allow, the last of each gap: each count from 0 to L is an option, also
/// those that distances skip. Indices from 0, ascending.
///
/// # Panics
/// If more layers are away than there are.
pub fn spread(layers: u16, count: u16) -> Vec<u16> {
    assert!(count <= layers, "an object has no more layers to offload than layers");
    let (layers, count) = (u32::from(layers), u32::from(count));
    (1..=count).map(|gap| (gap * layers / count - 1) as u16).collect()
}
