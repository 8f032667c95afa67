//! Tests of the real engine over a fast and a slow link with little memory, and of the number of link messages.

use sluice_common::random::Rng;
use sluice_wire::State;
use sluice_wire::config::SidecarConfig;

use crate::machine::HOST_CHUNK;
use crate::models::{Shape, generate};
use crate::random::expected;
use crate::support::{
    Answer, Tenant, TestRequest, assert_same, config, config_fitting_kv, event_count, random_prompt,
};

/// Layers 24 apart share a slot, which hides a copy on a fast link.
const SHAPE: Shape = Shape { family: "llama", dtype: "bf16", layers: 48, hidden: 96, vocab: 512 };

/// Time of a layer's copy over the slow link, ns.
const SLOW_COPY_NS: u64 = 4_000_000;

fn requests() -> Vec<TestRequest> {
    let mut rng = Rng::new(17);
    (0..6).map(|_| TestRequest::greedy(&random_prompt(&mut rng, 10, 512), 60)).collect()
}

/// Returns the bytes of a layer's weights: 2 matrices for queries and outputs, 2 of half their size, 3 of the MLP, 2
/// norms.
fn slab_bytes() -> u64 {
    let hidden = u64::from(SHAPE.hidden);
    2 * (3 * hidden * hidden + 3 * hidden * 4 * hidden + 2 * hidden)
}

/// Returns the state at the end of a run over such a link.
fn run(
    config: &SidecarConfig,
    bytes_per_second: Option<u64>,
    wanted: &[TestRequest],
    calm: &[Answer],
) -> State {
    let what = format!("a link of {bytes_per_second:?} bytes a second");
    let mut config = config.clone();
    config.gpu.link_bytes_per_second = bytes_per_second;
    let tenant = Tenant::start(config);
    let tickets: Vec<_> = wanted.iter().map(|wanted| tenant.submit(wanted)).collect();
    let answers: Vec<_> = tickets.into_iter().map(|ticket| tenant.collect(ticket)).collect();
    assert_same(&answers, calm, &what);
    tenant.assert_nothing_leaks(&what)
}

/// The kind of decision depends on this machine's speed and is tested in virtual time (`sidecar/sim`). Over any link,
/// memory is short, some decision is made, and the tokens are the same.
#[test]
fn slow_link_is_measured_and_changes_no_token() {
    let (model, wanted) = (generate(&SHAPE), requests());
    let mut config = config(model.path(), 0, "Oneiros");
    config.max_model_len = Some(192);
    let calm = expected(&config, &wanted);
    let config = config_fitting_kv(&config, SHAPE.kv_bytes(192).next_multiple_of(HOST_CHUNK) + HOST_CHUNK);
    for bytes_per_second in [None, Some(slab_bytes() * 1_000_000_000 / SLOW_COPY_NS)] {
        let state = run(&config, bytes_per_second, &wanted, &calm);
        let decided = event_count(&state, "remap_own") + event_count(&state, "declined_stall");
        assert!(decided > 0, "memory was short: {:#?}", state.figures);
        let (messages, steps) = (state.figures.link_messages_total, state.figures.steps_total);
        assert!(messages >= 2 * steps, "{messages} messages for {steps} steps: an order and an answer each");
        let transfer_ns = state.figures.t_transfer_ns.unwrap();
        let floor_ns = if bytes_per_second.is_some() { SLOW_COPY_NS * 9 / 10 } else { 0 };
        assert!(transfer_ns >= floor_ns, "a paced copy is never faster than its link: {transfer_ns} ns");
    }
}

/// Returns the messages and steps of one request of a tenant with ample memory.
fn cost(config: &SidecarConfig, policy: &str, wanted: &TestRequest) -> (u64, u64) {
    let mut config = config.clone();
    config.policy = policy.into();
    let tenant = Tenant::start(config);
    let count = |state: &State| (state.figures.link_messages_total, state.figures.steps_total);
    let before = count(&tenant.assert_nothing_leaks(policy));
    let ticket = tenant.submit(wanted);
    tenant.collect(ticket);
    let after = count(&tenant.assert_nothing_leaks(policy));
    (after.0 - before.0, after.1 - before.1)
}

#[test]
fn idle_elasticity_sends_no_extra_message() {
    let model = generate(&SHAPE);
    let config = config(model.path(), 256 << 20, "Recompute");
    let wanted = &requests()[0];
    for policy in ["Recompute", "Oneiros"] {
        let (messages, steps) = cost(&config, policy, wanted);
        assert!(steps >= 60, "{policy}: {steps} steps");
        assert_eq!(messages, 2 * steps, "{policy}: an order and an answer for each step, and nothing else");
    }
}
