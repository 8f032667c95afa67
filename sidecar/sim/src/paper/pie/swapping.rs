//! Chooses the next swaps: the hottest layer to the device, the coldest to the host, one in each direction at a time.
//!
//! The hottest layer is computed next, the coldest last: among those on the device that is the layer just computed.
//! Called when a layer's compute starts, as in the paper, or also when a swap ends, which hides more
//! ([`super::closed_form`]). The result is a queue: the layer offloaded first is restored first.
//!
//! Source: Pie 3.3, Fig. 4.

use super::mapping::{Entry, Mapping, Operation, Side, Swap};

/// Begins the due swaps, out and then in, while `computing` is computed or waited for.
pub fn due(mapping: &mut Mapping, computing: u16) -> Vec<Swap> {
    let out = coldest_out(mapping, computing).and_then(|layer| mapping.begin(layer, Side::Host));
    let hot = hottest_in(mapping, computing).and_then(|layer| mapping.begin(layer, Side::Device));
    out.into_iter().chain(hot).collect()
}

/// Returns the device layer that is computed last. Returns `None` if a swap out is in progress, the host is full, or
/// all host layers are computed later.
fn coldest_out(mapping: &Mapping, computing: u16) -> Option<u16> {
    if mapping.swapping(Side::Host) || !mapping.has_free_slot(Side::Host) {
        return None;
    }
    let coldest = idle_on(mapping, Side::Device).max_by_key(|&layer| until(mapping, computing, layer))?;
    let hotter_waits = idle_on(mapping, Side::Host)
        .any(|layer| until(mapping, computing, layer) < until(mapping, computing, coldest));
    hotter_waits.then_some(coldest)
}

/// Returns the host layer that is computed soonest. Returns `None` if a swap in is in progress or the device is full.
fn hottest_in(mapping: &Mapping, computing: u16) -> Option<u16> {
    if mapping.swapping(Side::Device) || !mapping.has_free_slot(Side::Device) {
        return None;
    }
    idle_on(mapping, Side::Host).min_by_key(|&layer| until(mapping, computing, layer))
}

/// Returns the layers until this one is computed: 0 for the current one.
fn until(mapping: &Mapping, computing: u16, layer: u16) -> u16 {
    let layers = mapping.entries().len() as u16;
    (layer + layers - computing) % layers
}

fn idle_on(mapping: &Mapping, side: Side) -> impl Iterator<Item = u16> {
    let idle = move |entry: &Entry| entry.resides == side && entry.operation == Operation::Idle;
    (0..).zip(mapping.entries()).filter(move |(_, entry)| idle(entry)).map(|(layer, _)| layer)
}
