//! Plans of drains, and that carrying them out does as much as they count.

use super::*;
use crate::ids::{KvChunkId, LayerId, RequestId};
use crate::kv::admissions::AdmissionEffects;
use crate::kv::layer_offload::Placement;
use crate::slots::Generations;
use crate::step_model::Layout;

const CHUNKS: u32 = 6;

/// KV of two layers in six KV chunks of two KV blocks each, and a host tier of eight KV blocks.
fn kv() -> Kv {
    let mut kv = Kv::new(2, CHUNKS, 4, 8, true);
    (0..CHUNKS).for_each(|chunk| kv.chunk_pool_mut().back(KvChunkId(chunk)));
    kv
}

/// Computes a request of this many full KV blocks under a salt of its own.
fn run(kv: &mut Kv, id: u64, kv_blocks: u32) {
    let prefix = kv.cached_prefix(id, &[]);
    kv.open(RequestId(id), &prefix);
    kv.allocate(&[(RequestId(id), kv_blocks)], &mut Generations::default());
    (0..kv_blocks).for_each(|_| kv.on_tokens_computed(RequestId(id), &[7; 16]));
}

fn no_admissions() -> AdmissionEffects {
    AdmissionEffects::default()
}

/// Drains as planned. Returns the blocks that are left in the draining KV chunks, of KV and of buffers.
fn carry_out(kv: &mut Kv, plan: DrainPlan) -> (u32, u32) {
    kv.chunk_pool_mut().drain(plan.kv_chunks);
    kv.evict_oldest(plan.evictions);
    let draining = kv.chunk_pool().draining().iter();
    let left: Vec<_> = draining.flat_map(|kv_chunk| kv.chunk_pool().layer_blocks(*kv_chunk)).collect();
    let buffers = left.iter().filter(|layer_block| kv.chunk_pool().is_buffer(**layer_block)).count() as u32;
    kv.check();
    (left.len() as u32 - buffers, buffers)
}

#[test]
fn empty_kv_chunks_drain_without_cost() {
    let mut kv = kv();
    run(&mut kv, 1, 3);
    assert_eq!(kv.plan_drain(0), DrainPlan::default());
    assert_eq!(kv.plan_drain(4), DrainPlan { kv_chunks: 4, ..DrainPlan::default() });
}

#[test]
fn oldest_cache_is_evicted_as_far_as_live_blocks_need_its_space() {
    let mut kv = kv();
    for id in 1..=3 {
        run(&mut kv, id, 4);
    }
    assert_eq!(kv.plan_drain(1).overfull_layer_blocks, 4, "all of it is in use");
    kv.close(RequestId(2));
    let plan = kv.plan_drain(1);
    assert_eq!((plan.evictions, plan.overfull_layer_blocks, plan.live_layer_blocks), (2, 0, 4));
    assert_eq!(carry_out(&mut kv, plan), (4, 0));
    assert_eq!(kv.chunk_pool().free_layer_blocks(), 4, "as many as must move");
    assert_eq!(kv.plan_moves(u32::MAX).len(), 4);
}

#[test]
fn blocks_that_are_evicted_need_not_move() {
    let mut kv = kv();
    run(&mut kv, 1, 10);
    run(&mut kv, 2, 2);
    kv.close(RequestId(2));
    // The last KV chunk drains, and it has the cache.
    let plan = kv.plan_drain(1);
    assert_eq!((plan.evictions, plan.live_layer_blocks), (2, 0));
    assert_eq!(carry_out(&mut kv, plan), (0, 0));
    assert_eq!(kv.chunk_pool().drained(), [KvChunkId(5)]);
}

#[test]
fn kv_in_use_beyond_the_other_chunks_is_overfull_and_evicts_nothing_in_vain() {
    let mut kv = kv();
    run(&mut kv, 1, 9);
    run(&mut kv, 2, 2);
    kv.close(RequestId(2));
    assert_eq!(kv.plan_drain(1).overfull_layer_blocks, 0);
    assert_eq!(kv.plan_drain(2).overfull_layer_blocks, 2);
}

#[test]
fn blocks_that_are_being_copied_stay() {
    let mut kv = kv();
    run(&mut kv, 1, 12);
    kv.suspend(RequestId(1));
    let written = kv.plan_write_back(4, (true, false), &no_admissions(), &mut Generations::default());
    assert_eq!(written.len(), 2);
    kv.close(RequestId(1));
    // All others are cache, and so is the rest of this KV block once its copy has ended.
    let plan = kv.plan_drain(CHUNKS);
    assert_eq!((plan.evictions, plan.live_layer_blocks, plan.copied_layer_blocks), (10, 4, 4));
}

/// Keeps this request's full KV blocks in the host tier and in buffers, as far as there is space for them.
fn offload(kv: &mut Kv, id: u64) {
    let layout = Layout { moving: [0, 1].map(LayerId).to_vec(), beta: 1 };
    kv.place(Placement::uniform(layout, [RequestId(id)].into_iter()));
    let write = |kv: &mut Kv| {
        kv.plan_write_back(u32::MAX, (false, true), &no_admissions(), &mut Generations::default())
    };
    let written = write(kv);
    kv.finish_write_back(&written, true);
    assert!(write(kv).is_empty(), "its copies are complete");
    kv.evict_staged();
}

/// A plan counts what carrying it out does, in mixtures of running and paused requests, cache, buffers and KV blocks
/// that are being written to the host tier.
#[test]
fn plan_and_drain_agree() {
    let mut random = sluice_common::random::Rng::new(5);
    let (mut with_buffers, mut with_copies) = (0, 0);
    for _ in 0..400 {
        let mut kv = kv();
        let mut left = CHUNKS * 2;
        let mut id = 0;
        while left > 0 && id < 8 {
            let kv_blocks = (1 + random.below(3) as u32).min(left);
            id += 1;
            run(&mut kv, id, kv_blocks);
            left -= kv_blocks;
            if left > 0 && random.below(4) == 0 {
                offload(&mut kv, id);
                left = kv.chunk_pool().free_layer_blocks() / 2;
            }
        }
        for id in 1..=id {
            match random.below(4) {
                0 | 1 => kv.close(RequestId(id)),
                2 => kv.suspend(RequestId(id)),
                _ => {}
            }
        }
        kv.plan_write_back(
            random.below(6) as u32,
            (true, false),
            &no_admissions(),
            &mut Generations::default(),
        );
        let plan = kv.plan_drain(random.below(u64::from(CHUNKS)) as u32);
        if plan.overfull_layer_blocks > 0 {
            continue;
        }
        with_buffers += u32::from(plan.buffer_layer_blocks > 0);
        with_copies += u32::from(plan.copied_layer_blocks > 0);
        let cached = kv.counts().idle_kv_blocks;
        assert_eq!(carry_out(&mut kv, plan), (plan.live_layer_blocks, plan.buffer_layer_blocks));
        assert_eq!(kv.counts().idle_kv_blocks, cached - plan.evictions);
        let leaving = plan.live_layer_blocks + plan.buffer_layer_blocks;
        assert!(kv.chunk_pool().free_layer_blocks() >= leaving, "all that moves has a place");
        let moving = plan.live_layer_blocks - plan.copied_layer_blocks;
        assert_eq!(kv.plan_moves(u32::MAX).len() as u32, moving);
    }
    assert!(with_buffers > 20 && with_copies > 20, "{with_buffers} with buffers, {with_copies} with copies");
}
