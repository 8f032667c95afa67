//! Tests elastic memory: draining, compaction, reversion, and the prefix cache as the first memory to be evicted.

use std::collections::{BTreeMap, BTreeSet};

use sluice_policy::action::Work;
use sluice_policy::chunk_table::Owner;
use sluice_policy::ids::{Generation, LayerBlockId, Nanos, RequestId};
use sluice_policy::memory_manager::{Prepared, StepNeed, StepTimes, TableChange};
use sluice_policy::params::ForcedRemap;
use sluice_policy::reason::Reason;
use sluice_policy::reclaim::PolicyName;

use super::cases::{BLOCK, CHUNK, guaranteed_chunks, open, tenant};
use super::device::Faults;
use super::world::World;

fn world(policy: PolicyName, extra_kv: u32) -> World {
    let (params, _) = tenant(policy, &[4; 6], 0, 96);
    let (params, geometry) = tenant(policy, &[4; 6], guaranteed_chunks(&params) + extra_kv, 96);
    World::new(params, geometry, 11, Faults::default())
}

/// Blocks are small here, so that a KV chunk holds blocks of several requests.
pub const SMALL_BLOCK: u64 = BLOCK / 4;

pub fn small_layer_blocks() -> World {
    let (params, _) = tenant(PolicyName::Recompute, &[4; 6], 0, 96);
    let (params, mut geometry) = tenant(PolicyName::Recompute, &[4; 6], guaranteed_chunks(&params) + 8, 96);
    geometry.layer_block_bytes = SMALL_BLOCK;
    World::new(params, geometry, 11, Faults::default())
}

/// Fills the arena with requests 0..8, whose KV blocks alternate, and ends the odd ones, so that every KV chunk has
/// holes. Returns the blocks of the even ones, with a tag for each of their tokens.
pub fn with_holes(world: &mut World) -> Tables {
    world.manager.force_layout(Some(ForcedRemap { alpha: 3, beta: 1 })).expect("possible");
    assert!(world.load());
    world.run_idle(100);
    (0..8).for_each(|id| {
        open(&mut world.manager, RequestId(id), 0, &[id as u32; 600]);
    });
    for kv_block in 0.. {
        let need = StepNeed { kv_blocks: vec![(RequestId(kv_block % 8), 1)], ..StepNeed::default() };
        let answer = world.send_event(|manager, out| manager.prepare(Nanos(0), &need, out));
        if answer != Prepared::Ready {
            break;
        }
    }
    let mut tables = Tables::new();
    follow(world.manager.take_table_changes(), &mut tables);
    for (key, layer_blocks) in &tables {
        layer_blocks.iter().for_each(|layer_block| {
            world.device.write_token(*layer_block, 3, tag(*key, *layer_block, layer_blocks))
        });
    }
    [1, 3, 5, 7].into_iter().for_each(|id| world.manager.close(RequestId(id)));
    tables.retain(|(request, _), _| request.0 % 2 == 0);
    tables
}

/// Blocks by request and KV block.
pub type Tables = BTreeMap<(RequestId, u32), Vec<LayerBlockId>>;

fn follow(changes: Vec<TableChange>, tables: &mut Tables) {
    for change in changes {
        tables.insert((change.request, change.kv_block), change.layer_blocks);
    }
}

fn tag(key: (RequestId, u32), layer_block: LayerBlockId, layer_blocks: &[LayerBlockId]) -> u64 {
    let layer = layer_blocks.iter().position(|b| *b == layer_block).expect("its own block");
    key.0.0 << 32 | u64::from(key.1) << 8 | layer as u64
}

#[test]
fn reversion_moves_layer_blocks_within_budget() {
    let mut world = small_layer_blocks();
    let mut tables = with_holes(&mut world);
    assert!(
        world.manager.figures().kv_counts().fragmentation_permille > 500,
        "most free blocks are scattered"
    );
    world.corrupt_action = Some(|action| {
        if let Work::MoveLayerBlocks(moves) = &action.work {
            assert!(moves.len() as u64 * SMALL_BLOCK <= 4 * BLOCK, "moves of one boundary");
        }
    });
    let before = world.manager.figures().kv_counts().used_layer_blocks;
    world.manager.force_layout(None).expect("possible");
    for _ in 0..100 {
        // Without a step between two boundaries the next moves would wait.
        world.run_idle(1);
        if !world.manager.status().is_blocked() {
            let lease = world.send_event(|manager, out| manager.begin(Nanos(0), out));
            follow(lease.table_changes, &mut tables);
            world.device.done.fill(Generation(u64::MAX));
            world.drain();
            world.send_event(|manager, _| manager.finish(&StepTimes::default()));
        }
    }
    world.run_idle(1000);
    assert_eq!(world.manager.figures().layout().alpha(), 0);
    assert!(world.device.moves > 0, "blocks moved");
    assert!(world.manager.figures().counted(Reason::Compact) > 1, "over several boundaries");
    assert_eq!(world.manager.figures().kv_counts().used_layer_blocks, before);
    follow(world.manager.take_table_changes(), &mut tables);
    for (key, layer_blocks) in &tables {
        for layer_block in layer_blocks {
            assert_eq!(
                world.device.read_token(*layer_block, 3),
                tag(*key, *layer_block, layer_blocks),
                "{key:?} kept its KV"
            );
        }
    }
}

#[test]
fn all_is_resident_after_load() {
    let mut world = world(PolicyName::Oneiros, 2);
    assert!(world.load());
    let filled = world.device.bytes_filled;
    assert_eq!(filled, 2 * CHUNK - 5 + 6 * (4 * CHUNK - 3), "each slab is copied once");
    (0..8).for_each(|id| world.submit(id, id, (0..40).collect(), 50));
    world.run();
    assert!(world.most_alpha > 0, "layers were remapped");
    world.run_idle(3000);
    assert!(world.manager.is_idle());
    assert_eq!(world.manager.figures().layout().alpha(), 0);
    assert!(world.manager.figures().residency().iter().all(|layer| layer.present && layer.slot.is_none()));
    let kv = world.manager.figures().kv_counts();
    assert_eq!((kv.draining_kv_chunks, kv.kv_chunks), (0, guaranteed_chunks(world.manager.params()) + 2));
}

#[test]
fn tenant_without_shortage_changes_nothing() {
    for policy in [PolicyName::Recompute, PolicyName::Oneiros, PolicyName::Ellm] {
        let mut world = world(policy, 60);
        assert!(world.load());
        let (remaps, filled) = (world.device.remaps, world.device.bytes_filled);
        (0..6).for_each(|id| world.submit(id, id, vec![1, 2, 3], 30));
        world.run();
        world.run_idle(100);
        assert_eq!((world.device.remaps, world.device.bytes_filled), (remaps, filled), "{policy:?}");
        assert_eq!(world.device.moves, 0);
    }
}

#[test]
fn cached_kv_is_evicted_first() {
    let mut world = world(PolicyName::Oneiros, 2);
    assert!(world.load());
    // One after the other, so that evicting the cache always covers the need.
    for id in 0..20 {
        world.submit(id, id, (0..40).collect(), 50);
        world.run();
    }
    assert!(world.manager.figures().counted(Reason::PrefixEvicted) > 0);
    assert_eq!(world.most_alpha, 0);
    assert_eq!(world.preemptions, 0);
}

#[test]
fn shared_prefix_is_computed_once_and_kept() {
    let mut world = world(PolicyName::Recompute, 40);
    assert!(world.load());
    world.submit(0, 0, (0..40).collect(), 4);
    world.run();
    let cached = world.manager.figures().kv_counts().idle_kv_blocks;
    assert!(cached >= 2);
    world.submit(1, 0, (0..40).collect(), 4);
    world.run();
    assert_eq!(world.finished.values().next(), world.finished.values().next_back());
    assert_eq!(world.manager.figures().kv_counts().idle_kv_blocks, cached, "nothing new was needed");
}

#[test]
fn activations_follow_step_size() {
    let mut world = world(PolicyName::Ellm, 2);
    assert!(world.load());
    let full = world.manager.figures().activation_chunks();
    (0..8).for_each(|id| world.submit(id, id, (0..40).collect(), 50));
    let mut least = full;
    while world.finished.len() < 8 {
        world.tick();
        least = least.min(world.manager.figures().activation_chunks());
    }
    assert!(least < full, "idle activation chunks became KV");
    assert!(world.manager.figures().counted(Reason::Inflate) > 0);
    // A prefill of several sequences takes them back from idle KV.
    (10..14).for_each(|id| world.submit(id, id, (0..60).collect(), 2));
    world.run();
    assert!(world.manager.figures().counted(Reason::Deflate) > 0);
    assert_eq!(world.most_alpha, 0);
}

#[test]
fn inflation_relabels_chunks_without_copies() {
    let mut world = world(PolicyName::Ellm, 2);
    assert!(world.load());
    let holders = |world: &World| {
        let of = |owner| {
            world
                .manager
                .figures()
                .ledger()
                .owners()
                .filter(move |(_, o)| *o == owner)
                .map(|(chunk, _)| chunk)
        };
        [Owner::Activation, Owner::Kv].map(|owner| of(owner).collect::<BTreeSet<_>>())
    };
    let [activation, kv] = holders(&world);
    let (created, filled) = (world.manager.figures().ledger().created(), world.device.bytes_filled);
    (0..8).for_each(|id| world.submit(id, id, (0..40).collect(), 50));
    // The inflation is counted when it begins; the owners change when the device has completed it.
    let grows = (0..10_000).any(|_| {
        world.tick();
        holders(&world)[1] != kv
    });
    assert!(grows, "nothing was inflated");
    let [left, grown] = holders(&world);
    let moved: BTreeSet<_> = activation.difference(&left).copied().collect();
    assert!(!moved.is_empty() && world.manager.figures().counted(Reason::Inflate) > 0, "{left:?}");
    assert_eq!(grown.difference(&kv).copied().collect::<BTreeSet<_>>(), moved, "the same chunks");
    assert_eq!(world.manager.figures().ledger().created(), created, "none was made");
    assert_eq!((world.device.bytes_filled, world.device.moves), (filled, 0), "nothing was copied");
}

#[test]
fn kv_never_grows_beyond_its_limit() {
    for policy in [PolicyName::Oneiros, PolicyName::Ellm] {
        let (params, _) = tenant(policy, &[4; 6], 0, 96);
        let limit = guaranteed_chunks(&params) + 3;
        let (mut params, geometry) = tenant(policy, &[4; 6], limit + 5, 96);
        params.kv_limit_bytes = u64::from(limit) * CHUNK;
        let mut world = World::new(params, geometry, 11, Faults::default());
        assert!(world.load());
        (0..8).for_each(|id| world.submit(id, id, (0..40).collect(), 50));
        while world.finished.len() < 8 {
            world.tick();
            assert!(world.manager.figures().kv_counts().kv_chunks <= limit);
        }
    }
}
