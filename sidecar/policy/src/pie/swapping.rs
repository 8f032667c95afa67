//! What moves next: the hottest layer comes in, the coldest goes out, one each way at a time.
//!
//! Hot is what is computed soonest, cold what is computed last: of the layers on the device the one that has just finished.
//! Asked whenever a layer's compute starts, as the paper does, or whenever a swap ends too, which hides more
//! ([`crate::closed_form::pie`]). The result is a queue: what went out first comes back first.
//!
//! Source: Pie 3.3, Fig. 4.

use alloc::vec::Vec;

use super::mapping::{Entry, Mapping, Operation, Side, Swap};

/// Begins the swaps that are due while `computing` is the layer whose compute runs or is waited for: out, then in.
pub fn due(mapping: &mut Mapping, computing: u16) -> Vec<Swap> {
    let out = coldest_out(mapping, computing).and_then(|layer| mapping.begin(layer, Side::Host));
    let hot = hottest_in(mapping, computing).and_then(|layer| mapping.begin(layer, Side::Device));
    out.into_iter().chain(hot).collect()
}

/// The layer on the device that is computed last, unless one goes out already or all on the host are computed later still.
fn coldest_out(mapping: &Mapping, computing: u16) -> Option<u16> {
    if mapping.swapping(Side::Host) || !mapping.has_room(Side::Host) {
        return None;
    }
    let coldest = idle_on(mapping, Side::Device).max_by_key(|&layer| until(mapping, computing, layer))?;
    let hotter_waits = idle_on(mapping, Side::Host)
        .any(|layer| until(mapping, computing, layer) < until(mapping, computing, coldest));
    hotter_waits.then_some(coldest)
}

/// The layer on the host that is computed soonest, unless one comes in already or there is no room.
fn hottest_in(mapping: &Mapping, computing: u16) -> Option<u16> {
    if mapping.swapping(Side::Device) || !mapping.has_room(Side::Device) {
        return None;
    }
    idle_on(mapping, Side::Host).min_by_key(|&layer| until(mapping, computing, layer))
}

/// Layers until this one's turn comes: 0 for the one that is computed now.
fn until(mapping: &Mapping, computing: u16, layer: u16) -> u16 {
    let layers = mapping.entries().len() as u16;
    (layer + layers - computing) % layers
}

fn idle_on(mapping: &Mapping, side: Side) -> impl Iterator<Item = u16> {
    let idle = move |entry: &Entry| entry.resides == side && entry.operation == Operation::Idle;
    (0..).zip(mapping.entries()).filter(move |(_, entry)| idle(entry)).map(|(layer, _)| layer)
}
