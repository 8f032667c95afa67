//! Plans of drains, and that carrying them out does as much as they count.

use super::*;
use crate::ids::{KvChunkId, RequestId};
use crate::slots::Generations;

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
    let written = kv.plan_write_back(
        4,
        (true, false),
        &crate::kv::admissions::AdmissionEffects::default(),
        &mut Generations::default(),
    );
    assert_eq!(written.len(), 2);
    kv.close(RequestId(1));
    // All others are cache, and so is the rest of this KV block once its copy has ended.
    let plan = kv.plan_drain(CHUNKS);
    assert_eq!((plan.evictions, plan.live_layer_blocks, plan.copied_layer_blocks), (10, 4, 4));
}

/// A plan counts what carrying it out does, in every mixture of running requests and cache.
#[test]
fn plan_and_drain_agree() {
    let mut random = sluice_common::random::Rng::new(5);
    for _ in 0..200 {
        let mut kv = kv();
        let mut left = CHUNKS * 2;
        let mut id = 0;
        while left > 0 && id < 8 {
            let kv_blocks = (1 + random.below(3) as u32).min(left);
            id += 1;
            run(&mut kv, id, kv_blocks);
            left -= kv_blocks;
        }
        (1..=id)
            .filter(|_| random.below(2) == 0)
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|id| kv.close(RequestId(id)));
        let plan = kv.plan_drain(random.below(u64::from(CHUNKS)) as u32);
        if plan.overfull_layer_blocks > 0 {
            continue;
        }
        let cached = kv.counts().idle_kv_blocks;
        assert_eq!(carry_out(&mut kv, plan), (plan.live_layer_blocks, plan.buffer_layer_blocks));
        assert_eq!(kv.counts().idle_kv_blocks, cached - plan.evictions);
        assert!(kv.chunk_pool().free_layer_blocks() >= plan.live_layer_blocks, "all that moves has a place");
        assert_eq!(kv.plan_moves(u32::MAX).len() as u32, plan.live_layer_blocks);
    }
}
