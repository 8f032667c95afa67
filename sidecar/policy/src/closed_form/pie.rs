//! What Pie reaches at best with n layers that are alike, r = the time of one layer's swap over that of its compute, both
//! directions at once.
//!
//! F is the length of the queue of layers that are away or on their way: the device has n - F + 2 slots, the host F. Each
//! layer's cache grows by n / (n - F + 2) over what the device holds of all layers.
//!
//! Sources: Pie 3.3 and Fig. 4 (n = 9, r = 2, F = 4, 1.28); the closed forms are our own, checked by simulation in the tests.

/// Slots that are senders and receivers of swaps, on each side.
pub const BUFFERS: u16 = 2;

/// The longest queue without a stall when swaps are issued as soon as the one before ends: `floor((n - 1) / r)`.
///
/// # Panics
/// If r is 0.
pub fn longest_queue(layers: u16, r_permille: u64) -> u16 {
    let most = u64::from(layers.saturating_sub(1)) * 1000 / r_permille;
    u16::try_from(most).unwrap_or(u16::MAX).min(layers)
}

/// The longest queue when swaps are issued only at the start of a layer's compute, as printed: `floor((n - 1) / ceil(r))`.
///
/// # Panics
/// If r is 0.
pub fn longest_queue_at_layer_starts(layers: u16, r_permille: u64) -> u16 {
    longest_queue(layers, r_permille.div_ceil(1000) * 1000)
}

/// Slots on the device with a queue of this length.
pub fn device_slots(layers: u16, queue: u16) -> u16 {
    layers.min((layers + BUFFERS).saturating_sub(queue))
}

/// How much larger each layer's cache is than the device would hold of all, permille, rounded down. Queues of up to two gain
/// nothing.
pub fn expansion_permille(layers: u16, queue: u16) -> u64 {
    u64::from(layers) * 1000 / u64::from(device_slots(layers, queue).max(1))
}

/// The queue at which r, which grows with the cache that is swapped, and the longest queue agree: r at an expansion e is
/// `r_permille * e`. The largest queue that its own expansion still lets run without a stall.
pub fn settled_queue(layers: u16, r_permille: u64) -> u16 {
    let holds = |queue: &u16| {
        let r = r_permille * expansion_permille(layers, *queue) / 1000;
        *queue <= longest_queue(layers, r.max(1))
    };
    (0..=layers).rev().find(holds).unwrap_or(0)
}
