//! Tests stalling own layers as a reclaim option: its cost, its effects and its end.

use sluice_policy::cost::price::Clients;
use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::memory_manager::{Prepared, StallingRemap, StepNeed};
use sluice_policy::params::ForcedRemap;
use sluice_policy::reason::Reason;
use sluice_policy::reclaim::PolicyName;

use super::cases::{CHUNK, guaranteed_chunks, open, tenant};
use super::device::Faults;
use super::world::World;

const LAYERS: u64 = 6;
const LAYER_NS: u64 = 1_000_000;

/// Returns six layers of a millisecond; the copy of one takes `ratio` of them. KV has four chunks more than the
/// minimum.
fn world(ratio: u64, cap_permille: u32) -> World {
    let slabs = [4; LAYERS as usize];
    let (params, _) = tenant(PolicyName::Unified, &slabs, 0, 96);
    let (mut params, geometry) = tenant(PolicyName::Unified, &slabs, guaranteed_chunks(&params) + 4, 96);
    params.remap_cap_permille = cap_permille;
    params.min_step = params.max_step;
    let slab_bytes = geometry.slab_bytes[0];
    params.link_bytes_per_second = slab_bytes * 1_000_000_000 / (ratio * LAYER_NS);
    let mut world = World::new(params, geometry, 11, Faults::default());
    world.device.fill_ns_per_byte = ratio * LAYER_NS / slab_bytes;
    assert!(world.load());
    world
}

fn ask(world: &mut World, kv_blocks: u32) -> Prepared {
    let need = StepNeed { kv_blocks: vec![(RequestId(7), kv_blocks)], ..StepNeed::default() };
    world.send_event(|manager, out| manager.prepare(Nanos(0), &need, out))
}

/// Returns a world in which one request has all KV and is refused one more KV block.
fn refused(ratio: u64, cap_permille: u32) -> (World, Option<StallingRemap>) {
    let mut world = world(ratio, cap_permille);
    open(&mut world.manager, RequestId(7), 0, &[1; 600]);
    let all = world.manager.figures().kv_counts().free_layer_blocks / LAYERS as u32;
    assert_eq!(ask(&mut world, all), Prepared::Ready);
    let answer = ask(&mut world, 2);
    let Prepared::Short { missing_kv_blocks, activation: false } = answer else { panic!("{answer:?}") };
    let stalling = world.manager.stalling_remap(missing_kv_blocks);
    (world, stalling.and_then(Result::ok))
}

#[test]
fn offer_reports_late_tokens_and_freed_bytes() {
    let (world, stalling) = refused(4, 900);
    let stalling = stalling.expect("two layers that share a slot give one layer's chunks");
    let clients = Clients { buffered_tokens: &[0], waiting: true };
    let price = world.manager.prices(&clients).layers(&stalling);
    // Their copies and their compute in sequence take ten milliseconds instead of six, which costs two fifths of 64
    // tokens. The link's average is in whole nanoseconds for 2^20 bytes.
    assert!(price.loss.late.abs_diff(25_600) < 60, "{price:?}");
    assert_eq!((price.loss.lost, price.freed_bytes), (price.loss.late, 4 * CHUNK));
}

#[test]
fn offers_respect_step_limit_and_cap() {
    assert_eq!(refused(6, 900).1, None, "14 ms instead of 6");
    assert_eq!(refused(4, 300).1, None, "one moving layer frees nothing");
    assert_eq!(refused(70, 900).1, None);
}

#[test]
fn taken_layers_serve_kv_and_are_restored() {
    let (mut world, stalling) = refused(4, 900);
    let stalling = stalling.expect("an offer");
    assert!(world.send_event(|manager, out| manager.apply_stalling_remap(stalling, out)));
    world.drain();
    assert_eq!(
        (world.manager.figures().layout().alpha(), world.manager.figures().counted(Reason::RemapStalls)),
        (1, 1)
    );
    assert_eq!(ask(&mut world, 2), Prepared::Ready);
    world.run_idle(100);
    assert_eq!(world.manager.figures().layout().alpha(), 1, "as long as it is needed");
    world.manager.close(RequestId(7));
    world.run_idle(1000);
    assert_eq!(
        (world.manager.figures().layout().alpha(), world.manager.figures().counted(Reason::RemapStalls)),
        (0, 1)
    );
}

#[test]
fn offer_costs_added_moving_layers() {
    let mut world = world(3, 900);
    world.manager.force_layout(Some(ForcedRemap { alpha: 1, beta: 1 })).expect("possible");
    world.run_idle(100);
    assert_eq!(world.manager.figures().layout().alpha(), 1);
    world.manager.force_layout(None).expect("possible");
    let stalling = world.manager.stalling_remap(1).and_then(Result::ok).expect("a third one moves");
    let clients = Clients { buffered_tokens: &[0], waiting: true };
    let late = world.manager.prices(&clients).layers(&stalling).loss.late;
    // Twelve milliseconds instead of eight, of which six are compute: a half of 64 tokens instead of a quarter.
    assert!(late.abs_diff(16_000) < 60, "{late}");
}
