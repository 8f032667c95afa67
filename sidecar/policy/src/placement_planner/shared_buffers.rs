//! Models offloaded KV as the sidecar implements it: all requests share one or two buffers, and a layer of all
//! requests' KV is fetched in one piece.
//!
//! OrbitFlow gives every request its own prefetch buffer, within one range as large as the layer that needs most (Eq.
//! 1). Here every partly offloaded KV block takes a block in each buffer, whichever layers are offloaded, and the
//! offloaded layers of all requests pass through the buffers in sequence. A plan computed with less buffer memory or
//! more concurrent fetches would be wrong.

use alloc::vec::Vec;

use super::link::Link;
use super::problem::{Choice, Object, Problem};
use super::steps::{Fetch, FetchStream, Steps};
use crate::step_model::MAX_BETA;

/// Modelled steps: the later ones benefit from the prefetches of the earlier ones.
const STEPS: u16 = 4;

/// Returns the number of buffers for `away` offloaded layers: each buffer serves at least two.
pub fn buffers(away: usize) -> u16 {
    (away / 2).min(usize::from(MAX_BETA)) as u16
}

/// Returns a request's KV: `kv_blocks` are those that may be offloaded and those that stay, with one choice for each
/// set of offloaded layers.
pub fn object(
    link: &Link,
    layers: u16,
    layer_block_bytes: u64,
    kv_blocks: (u32, u32),
    sets: &[Vec<u16>],
) -> Object {
    let (layer_bytes, tail_bytes) =
        (u64::from(kv_blocks.0) * layer_block_bytes, u64::from(kv_blocks.1) * layer_block_bytes);
    let ns = link.in_ns(layer_bytes);
    let choice = |set: &Vec<u16>| {
        let (away, buffers) = (set.len() as u64, buffers(set.len()));
        let kept = u64::from(layers) - away + u64::from(buffers);
        Choice {
            resident_bytes: kept * layer_bytes + u64::from(layers) * tail_bytes,
            buffer_bytes: 0,
            link_bytes: away * layer_bytes,
            buffers,
            fetches: set.iter().map(|&layer| Fetch { layer, ns }).collect(),
        }
    };
    Object { choices: sets.iter().map(choice).collect() }
}

/// Returns the mean step time with these choices, nanoseconds, rounded up: one stream, over as many buffers as the
/// smallest non-empty set uses.
pub fn mean_ns(problem: &Problem, chosen: &[u16]) -> u64 {
    let mut by_layer = alloc::vec![0; problem.compute_ns.len()];
    let mut buffers = MAX_BETA.into();
    for choice in problem.choices_of(chosen).filter(|choice| !choice.fetches.is_empty()) {
        choice.fetches.iter().for_each(|fetch| by_layer[usize::from(fetch.layer)] += fetch.ns);
        buffers = choice.buffers.min(buffers);
    }
    let away = by_layer.iter().enumerate().filter(|(_, ns)| **ns > 0);
    let fetches: Vec<_> = away.map(|(layer, &ns)| Fetch { layer: layer as u16, ns }).collect();
    let stream = FetchStream { fetches: &fetches, buffers };
    let mut steps = Steps::new(&problem.link, &problem.compute_ns, core::iter::once(stream));
    let total_ns: u64 = (0..STEPS).map(|_| steps.step(problem.write_bytes).total_ns).sum();
    total_ns.div_ceil(u64::from(STEPS))
}
