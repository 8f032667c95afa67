//! Tests that a client which disconnects frees its memory within one step.

use std::time::Duration;

use crate::golden::reference;
use crate::support::{Tenant, TestRequest, config, slowed};

/// Layers of the reference model.
const LAYERS: u64 = 5;
/// Delay per layer: a step takes half a second, so that a short delay of the test does not miss one.
const LAYER_DELAY: Duration = Duration::from_millis(100);

#[test]
fn dropped_request_frees_memory_within_one_step() {
    let Some(folder) = reference() else { return };
    for no_prefix_cache in [true, false] {
        let mut config = config(&folder, 16 << 20, "Oneiros");
        config.debug.no_prefix_cache = no_prefix_cache;
        let tenant = Tenant::start_with(config, slowed(LAYER_DELAY));
        let mut stays = tenant.submit(&TestRequest::greedy(&[5; 4], 60));
        let mut leaves = tenant.submit(&TestRequest::greedy(&[9; 60], 400));
        tenant.wait_for_token(&mut stays);
        tenant.wait_for_token(&mut leaves);
        let before = tenant.state();
        assert!(before.kv.layer_blocks_used >= 5 * LAYERS, "both hold blocks: {:?}", before.kv);
        drop(leaves);
        let freed = tenant.state_when("freed", |s| s.kv.layer_blocks_used <= 2 * LAYERS);
        let steps = freed.figures.steps_total - before.figures.steps_total;
        assert!(steps <= 1, "freed after {steps} steps");
        assert_eq!(freed.queue.running, 1, "the other one goes on");
        drop(stays);
        tenant.assert_nothing_leaks("both have left");
    }
}

#[test]
fn idle_engine_loop_keeps_heartbeat() {
    let Some(folder) = reference() else { return };
    let tenant = Tenant::start(config(&folder, 16 << 20, "Oneiros"));
    tenant.wait_for_heartbeat();
    tenant.wait_for_heartbeat();
}

#[test]
fn cancelled_waiting_request_leaves_queue_at_once() {
    let Some(folder) = reference() else { return };
    let mut config = config(&folder, 16 << 20, "Oneiros");
    config.limits.max_sequences = 1;
    let tenant = Tenant::start_with(config, slowed(LAYER_DELAY));
    let mut runs = tenant.submit(&TestRequest::greedy(&[5; 4], 60));
    tenant.wait_for_token(&mut runs);
    let waits = tenant.submit(&TestRequest::greedy(&[6; 4], 60));
    let before = tenant.state_when("it waits", |s| s.queue.waiting == 1);
    drop(waits);
    let after = tenant.state_when("it has left", |s| s.queue.waiting == 0);
    assert!(after.figures.steps_total - before.figures.steps_total <= 1);
    assert_eq!(after.queue.running, 1, "the other one goes on");
    drop(runs);
    tenant.assert_nothing_leaks("both have left");
}
