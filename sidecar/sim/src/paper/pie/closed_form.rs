//! The best that Pie can reach with n identical layers, r = the time of one layer's swap over that of its compute, with
//! both directions in parallel.
//!
//! F is the length of the queue of layers that are offloaded or in transfer: the device has n - F + 2 slots, the host
//! F. Each layer's cache grows by n / (n - F + 2) over the size at which all layers fit on the device.
//!
//! Sources: Pie 3.3 and Fig. 4 (n = 9, r = 2, F = 4, 1.28); the closed forms are our own, checked by simulation in the
//! tests.

use sluice_policy::pie::expansion::BUFFERS;

/// Returns the longest queue without a stall when each swap starts as soon as the previous one ends: `floor((n - 1) /
/// r)`.
///
/// # Panics
/// If r is 0.
pub fn longest_queue(layers: u16, r_permille: u64) -> u16 {
    let most = u64::from(layers.saturating_sub(1)) * 1000 / r_permille;
    u16::try_from(most).unwrap_or(u16::MAX).min(layers)
}

/// Returns the longest queue when swaps start only with a layer's compute, as printed: `floor((n - 1) / ceil(r))`.
///
/// # Panics
/// If r is 0.
pub fn longest_queue_at_layer_starts(layers: u16, r_permille: u64) -> u16 {
    longest_queue(layers, r_permille.div_ceil(1000) * 1000)
}

/// Returns the slots on the device with a queue of this length.
pub fn device_slots(layers: u16, queue: u16) -> u16 {
    layers.min((layers + BUFFERS).saturating_sub(queue))
}

/// Returns the size of each layer's cache relative to the size at which all layers fit on the device, permille, rounded
/// down. Queues of up to two layers gain nothing.
pub fn expansion_permille(layers: u16, queue: u16) -> u64 {
    u64::from(layers) * 1000 / u64::from(device_slots(layers, queue).max(1))
}

/// Returns the largest queue that runs without a stall at its own expansion. r grows with the swapped cache: at an
/// expansion e it is `r_permille * e`.
pub fn settled_queue(layers: u16, r_permille: u64) -> u16 {
    let holds = |queue: &u16| {
        let r = r_permille * expansion_permille(layers, *queue) / 1000;
        *queue <= longest_queue(layers, r.max(1))
    };
    (0..=layers).rev().find(holds).unwrap_or(0)
}
