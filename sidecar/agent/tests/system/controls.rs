//! Negative controls: each safety mechanism, switched off, is noticed by the comparison that all other tests make.

use std::path::Path;
use std::time::Duration;

use sluice_agent::engine_loop::InjectedFaults;

use crate::models::{Shape, generate};
use crate::random::expected;
use crate::support::{Answer, Rng, Tenant, TestRequest, assert_same, config, poisoned};

const SHAPE: Shape = Shape { family: "llama", dtype: "bf16", layers: 6, hidden: 96, vocab: 512 };

fn requests() -> Vec<TestRequest> {
    let mut rng = Rng(3);
    (0..3).map(|_| TestRequest::greedy(&rng.prompt(40, 512), 24)).collect()
}

/// Two layers free, one slot for three; a slab takes 10 ms on the link, so that a copy is seldom over by luck.
fn serve_with_faults(model: &Path, faults: InjectedFaults) -> (Vec<Answer>, Vec<Answer>) {
    let mut config = config(model, 64 << 20, "Oneiros");
    config.max_model_len = Some(128);
    let wanted = requests();
    let calm = expected(&config, &wanted);
    config.debug.force_remap = Some((2, 1));
    config.gpu.link_bytes_per_second = Some(20 << 20);
    let tenant = Tenant::start_with(config, faults);
    let answers = tenant.serve_concurrently(&wanted);
    tenant.assert_nothing_leaks("under a fault");
    (answers, calm)
}

/// Times that a fault is tried: on a busy machine a copy may be over by luck.
const TRIES: u32 = 5;

/// What a fault must do: change tokens of at least one request.
fn assert_noticed(faults: InjectedFaults, what: &str) {
    let model = generate(&SHAPE);
    let changes = |_| {
        let (answers, calm) = serve_with_faults(model.path(), faults.clone());
        answers.iter().zip(&calm).any(|(answer, calm)| answer.tokens != calm.tokens)
    };
    assert!((0..TRIES).any(changes), "{what} changes no token");
}

#[test]
fn no_fault_changes_no_token() {
    let model = generate(&SHAPE);
    let (answers, calm) = serve_with_faults(model.path(), poisoned());
    assert_same(&answers, &calm, "no fault");
}

#[test]
fn a_flipped_byte_in_every_filled_slot_changes_tokens() {
    let mut faults = poisoned();
    faults.memory.flip_slot_byte = true;
    assert_noticed(faults, "a flipped byte");
}

#[test]
fn one_dropped_wait_changes_tokens() {
    let mut faults = poisoned();
    // The first wait is for the layer that loading left in the slot; the second is for one that is on its way.
    faults.engine.dropped_wait = Some(1);
    assert_noticed(faults, "a dropped wait");
}

#[test]
fn a_slot_reused_before_its_reader_is_done_changes_tokens() {
    let mut faults = poisoned();
    faults.memory.skip_after_wait = true;
    // The reader is late; the next layer's copy no longer waits for it.
    faults.engine.layer_delay_ns = Duration::from_millis(3).as_nanos() as u64;
    assert_noticed(faults, "a slot reused early");
}
