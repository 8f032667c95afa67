//! Plans of a step's memory, compared as values. Actions end at once.

use alloc::vec;
use alloc::vec::Vec;

use super::*;
use crate::action::{Action, Earmark};
use crate::event::{Completion, Outcome};
use crate::geometry::{ActivationCost, Geometry, StepShape};
use crate::ids::{Nanos, RequestId};
use crate::loan_negotiator::LoanControl;
use crate::loans::TransferKind;
use crate::params::{Bounds, ForcedRemap, Params};
use crate::peers::Peer;
use crate::peers::loans::Nonce;
use crate::reclaim::PolicyName;

const REQUEST: RequestId = RequestId(1);
const PEER: Peer = Peer { index: 1, instance: 1 };

/// A loaded tenant of four layers with KV chunks of two KV blocks.
fn manager(policy: PolicyName) -> MemoryManager {
    let geometry = Geometry {
        chunk_bytes: 64 << 10,
        capacity_chunks: 64,
        global_bytes: 64 << 10,
        slab_bytes: vec![256 << 10; 4],
        layer_block_bytes: 8 << 10,
        activation: ActivationCost { stream_per_token_bytes: 4 << 10, ..ActivationCost::default() },
        staging_chunks: 1,
    };
    let max_step = StepShape { tokens: 128, sequences: 8, logit_rows: 8 };
    let min_step = StepShape { tokens: 16, ..max_step };
    let params = Params {
        policy,
        max_step,
        min_step,
        max_model_tokens: 128,
        share_chunks: 60,
        guaranteed_kv_bytes: 1 << 20,
        ..Params::default()
    };
    let mut manager = MemoryManager::new(params, geometry).expect("a tenant that fits");
    let mut actions = Vec::new();
    manager.start(Nanos(0), &mut actions);
    settle(&mut manager, actions);
    assert!(manager.status().is_loaded());
    manager
}

fn settle(manager: &mut MemoryManager, mut actions: Vec<Action>) {
    while let Some(action) = actions.pop() {
        let outcome = Outcome::Done { bytes: 1, duration_ns: 1 };
        manager.complete(Nanos(0), &Completion { id: action.id, outcome }, &mut actions);
    }
}

fn need(kv_blocks: u32, tokens: u32) -> StepNeed {
    let shape = StepShape { tokens, sequences: 1, logit_rows: 1 };
    StepNeed { kv_blocks: vec![(REQUEST, kv_blocks)], shape, ..StepNeed::default() }
}

/// KV blocks that are free now.
fn free_kv_blocks(manager: &MemoryManager) -> u32 {
    manager.kv.chunk_pool().free_layer_blocks() / manager.kv.layers()
}

/// What is planned first, and that planning changes nothing.
fn first(manager: &MemoryManager, need: &StepNeed) -> MemoryStep {
    let before = manager.digest();
    let step = manager.plan_memory(need, &manager.attempt(need));
    assert_eq!(manager.digest(), before);
    step
}

/// What is planned after peers had nothing.
fn after_peers(manager: &MemoryManager, need: &StepNeed, missing: u32) -> MemoryStep {
    let mut attempt = manager.attempt(need);
    attempt.tried = Tried::Peers { missing, steps: 0 };
    manager.plan_memory(need, &attempt)
}

#[test]
fn need_that_fits_is_allocated() {
    let manager = manager(PolicyName::Recompute);
    assert_eq!(first(&manager, &need(free_kv_blocks(&manager), 16)), MemoryStep::Allocate);
}

#[test]
fn step_beyond_the_largest_is_refused_for_activations() {
    let manager = manager(PolicyName::Recompute);
    let short = Prepared::Short { missing_kv_blocks: 0, activation: true };
    assert_eq!(first(&manager, &need(1, 100_000)), MemoryStep::Answer(short));
}

#[test]
fn free_chunks_come_first() {
    let mut manager = manager(PolicyName::Oneiros);
    let (earmark, mut actions) = (Earmark { peer: PEER, nonce: Nonce(1) }, Vec::new());
    manager.loans_mut().accept(earmark, 2, TransferKind::Lend, &mut actions);
    settle(&mut manager, actions);
    assert_eq!(manager.chunks.free_count(), 2, "borrowed chunks are free");
    let step = first(&manager, &need(free_kv_blocks(&manager) + 1, 16));
    let transition = Transition { target: TransitionTarget::KvChunks(1), reason: Reason::FreeChunks };
    assert!(matches!(&step, MemoryStep::Start(start) if start.transition == transition), "{step:?}");
}

#[test]
fn peers_are_asked_before_the_policy_when_free_chunks_do_not_suffice() {
    let manager = manager(PolicyName::Recompute);
    let chunks = manager.chunks.free_count();
    let per_chunk = manager.sizes.layer_blocks_per_chunk / manager.kv.layers();
    let most = free_kv_blocks(&manager) + chunks * per_chunk;
    let step = first(&manager, &need(most + 1, 16));
    let missing = (chunks * per_chunk + 1) * manager.kv.layers();
    assert_eq!(step, MemoryStep::AskPeers { sizes: Vec::new(), missing }, "it has no peers");
}

#[test]
fn recompute_reclaims_nothing_and_names_what_is_missing() {
    let manager = manager(PolicyName::Recompute);
    let short = Prepared::Short { missing_kv_blocks: 3, activation: false };
    assert_eq!(after_peers(&manager, &need(1, 16), 12), MemoryStep::Answer(short));
}

#[test]
fn ellm_inflates_kv_by_activations_that_the_step_does_not_use() {
    let manager = manager(PolicyName::Ellm);
    let need = need(free_kv_blocks(&manager) + 2, 16);
    let step = after_peers(&manager, &need, 8);
    let MemoryStep::Reclaim { tried: 1, action: ReclaimAction::Start(start), .. } = step else {
        panic!("{step:?}")
    };
    assert_eq!(start.transition.reason, Reason::Inflate);
}

#[test]
fn oneiros_moves_no_layers_before_it_has_measured_compute() {
    let manager = manager(PolicyName::Oneiros);
    let step = after_peers(&manager, &need(1, 16), 4);
    let action = ReclaimAction::Decline { reason: Reason::DeclinedUnmeasured, remember: None };
    assert_eq!(step, MemoryStep::Reclaim { missing: 4, tried: 1, action });
}

/// A policy names what it reclaims; what is impossible now is skipped here.
#[test]
fn forced_layout_is_not_remapped() {
    let mut manager = manager(PolicyName::Oneiros);
    manager.forced = Some(ForcedRemap { alpha: 1, beta: 1 });
    let short = Prepared::Short { missing_kv_blocks: 1, activation: false };
    assert_eq!(after_peers(&manager, &need(1, 16), 4), MemoryStep::Answer(short));
}

#[test]
fn paused_kv_stays_during_a_back_off() {
    let mut manager = manager(PolicyName::OrbitFlow);
    let evict = MemoryStep::Reclaim { missing: 4, tried: 1, action: ReclaimAction::EvictPaused };
    assert_eq!(after_peers(&manager, &need(1, 16), 4), evict);
    manager.transitions.failed(manager.orders.boundaries());
    let short = Prepared::Short { missing_kv_blocks: 1, activation: false };
    assert_eq!(after_peers(&manager, &need(1, 16), 4), MemoryStep::Answer(short));
}

#[test]
fn unified_evicts_paused_kv_only_if_it_pauses_requests() {
    let mut manager = manager(PolicyName::Unified);
    let inflated = |manager: &MemoryManager| manager.plan_reclaim(&need(1, 16), demand(manager), 4, 1);
    assert_eq!(manager.offload.longest_pause_ns(), None, "layers may move, and there are no objectives");
    let action = ReclaimAction::Decline { reason: Reason::DeclinedUnmeasured, remember: None };
    assert_eq!(inflated(&manager), MemoryStep::Reclaim { missing: 4, tried: 3, action });
    let bounds = Bounds { share_chunks: 60, remap_cap_permille: 0 };
    manager.set_bounds(bounds).expect("a floor that fits");
    let action = ReclaimAction::EvictPaused;
    assert_eq!(inflated(&manager), MemoryStep::Reclaim { missing: 4, tried: 2, action });
}

fn demand(manager: &MemoryManager) -> StepDemand {
    manager.attempt(&need(1, 16)).demand
}
