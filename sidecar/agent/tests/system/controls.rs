//! Negative controls: with one safety mechanism switched off, the comparison of the other tests must fail.

use std::path::Path;
use std::time::Duration;

use sluice_agent::engine_loop::InjectedFaults;
use sluice_common::random::Rng;

use crate::machine::Machine;
use crate::models::{Shape, generate};
use crate::random::expected;
use crate::support::{Answer, Tenant, TestRequest, assert_same, config, poisoned, random_prompt};

const SHAPE: Shape = Shape { family: "llama", dtype: "bf16", layers: 6, hidden: 96, vocab: 512 };

fn requests() -> Vec<TestRequest> {
    let mut rng = Rng::new(3);
    let tokens = Machine::current().choose(24, 4);
    (0..3).map(|_| TestRequest::greedy(&random_prompt(&mut rng, 40, 512), tokens)).collect()
}

/// Two free layers and one slot for three. A layer's copy takes 10 ms, on a GPU 200 ms, so that it seldom completes in
/// time by chance.
fn serve_with_faults(model: &Path, faults: InjectedFaults) -> (Vec<Answer>, Vec<Answer>) {
    let mut config = config(model, 64 << 20, "Oneiros");
    config.max_model_len = Some(128);
    let wanted = requests();
    let calm = expected(&config, &wanted);
    config.debug.force_remap = Some((2, 1));
    config.gpu.link_bytes_per_second = Some(Machine::current().choose(20 << 20, 1 << 20));
    let tenant = Tenant::start_with(config, faults);
    let tickets: Vec<_> = wanted.iter().map(|wanted| tenant.submit(wanted)).collect();
    // A GPU refuses a step that has read what it did not expect, and its requests fail.
    let answers = tickets.into_iter().map(|ticket| tenant.finish(ticket).0).collect();
    tenant.assert_nothing_leaks("under a fault");
    (answers, calm)
}

/// Most attempts per fault, because on a busy machine a copy may complete in time by chance.
const TRIES: u32 = 5;

/// Asserts that a fault changes the tokens of at least one request.
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
    // The first wait is for the layer that is in the slot after loading, the second for a layer that is being copied.
    faults.engine.dropped_wait = Some(1);
    assert_noticed(faults, "a dropped wait");
}

#[test]
fn a_slot_reused_before_its_reader_is_done_changes_tokens() {
    let mut faults = poisoned();
    faults.memory.skip_after_wait = true;
    // The reader is slow; the next layer's copy does not wait for it.
    faults.engine.layer_delay_ns = Duration::from_millis(3).as_nanos() as u64;
    assert_noticed(faults, "a slot reused early");
}
