//! Tests of models with random weights: more layers than the reference model, both families, every precision.

use std::path::Path;

use sluice_common::random::Rng;
use sluice_wire::config::SidecarConfig;

use crate::machine::Machine;
use crate::models::{Shape, generate};
use crate::support::{
    Answer, Tenant, TestRequest, assert_same, config, config_fitting_kv, event_count, random_prompt,
};

const SHAPE: Shape = Shape { family: "llama", dtype: "f32", layers: 9, hidden: 64, vocab: 512 };
/// Enough layers that plans can choose between them.
pub const DEEP: Shape = Shape { layers: 16, ..SHAPE };
const PRECISIONS: [(&str, &str); 6] =
    [("llama", "f32"), ("llama", "f16"), ("llama", "bf16"), ("opt", "f32"), ("opt", "f16"), ("opt", "bf16")];

/// Most loads, because plans are late on a busy machine.
const MAX_LOADS: usize = 10;

fn requests(count: usize) -> Vec<TestRequest> {
    let (mut rng, machine) = (Rng::new(11), Machine::current());
    let (most_prompt, answer) = machine.choose((89, (40, 79)), (30, (6, 12)));
    let mut wanted = || {
        let tokens = rng.between(3, most_prompt);
        TestRequest::greedy(&random_prompt(&mut rng, tokens, 512), rng.between(answer.0, answer.1) as u32)
    };
    (0..count).map(|_| wanted()).collect()
}

fn base(model: &Path, policy: &str) -> SidecarConfig {
    let mut config = config(model, 64 << 20, policy);
    config.max_model_len = Some(192);
    config.limits.max_step_tokens = 256;
    config
}

/// Returns the answers without interference: one request at a time, one thread, no cache, ample memory.
pub fn expected(config: &SidecarConfig, wanted: &[TestRequest]) -> Vec<Answer> {
    let mut calm = config.clone();
    calm.policy = "Recompute".into();
    calm.gpu.memory_bytes = Machine::current().ample_bytes(256 << 20);
    calm.gpu.link_bytes_per_second = None;
    calm.engine.threads = 1;
    calm.debug.force_remap = None;
    calm.debug.no_prefix_cache = true;
    let tenant = Tenant::start(calm);
    let answers = tenant.serve_in_order(wanted);
    let state = tenant.assert_nothing_leaks("calm");
    assert_eq!(
        state.figures.preemptions_total + event_count(&state, "remap_own"),
        0,
        "nothing happens to it"
    );
    answers
}

fn check(
    config: SidecarConfig,
    wanted: &[TestRequest],
    expected: &[Answer],
    what: &str,
) -> sluice_wire::State {
    let tenant = Tenant::start(config);
    assert_same(&tenant.serve_concurrently(wanted), expected, what);
    tenant.assert_nothing_leaks(what)
}

#[test]
fn random_models_answer_alike_with_every_layout_of_moving_layers() {
    let (model, wanted) = (generate(&SHAPE), requests(Machine::current().choose(6, 3)));
    let calm = expected(&base(model.path(), "Oneiros"), &wanted);
    let layouts = (1..=2).flat_map(|beta| (1..SHAPE.layers - beta).map(move |alpha| (alpha, beta)));
    for (alpha, beta) in Machine::current().choose(layouts.collect(), vec![(4, 2), (7, 1)]) {
        let mut config = base(model.path(), "Oneiros");
        config.debug.force_remap = Some((alpha, beta as u8));
        let state = check(config, &wanted, &calm, &format!("alpha {alpha}, beta {beta}"));
        assert_eq!((state.remap.alpha, u16::from(state.remap.beta)), (alpha, beta));
    }
}

/// Returns a tenant of [`DEEP`] with memory for two requests, whose plans admit requests first-come-first-served if all
/// fit with part of the KV offloaded; its requests; and their answers with ample memory.
pub fn first_come_case(model: &Path) -> (SidecarConfig, Vec<TestRequest>, Vec<Answer>) {
    let mut rng = Rng::new(7);
    let mut wanted = || {
        let tokens = rng.between(90, 119);
        TestRequest::greedy(&random_prompt(&mut rng, tokens, 512), rng.between(40, 69) as u32)
    };
    let wanted: Vec<_> = (0..10).map(|_| wanted()).collect();
    let mut config = base(model, "OrbitFlow");
    let calm = expected(&config, &wanted);
    let bare_bytes = config_fitting_kv(&config, 0).gpu.memory_bytes;
    config.gpu.memory_bytes = bare_bytes + 2 * DEEP.kv_bytes(192).next_multiple_of(config.gpu.chunk_bytes);
    config.memory.host_kv_bytes = 64 << 20;
    config.slo.tbt_milliseconds = 1000;
    config.debug.no_prefix_cache = true;
    config.tunables = [("plan_first_come".to_owned(), 1)].into();
    (config, wanted, calm)
}

#[test]
fn planned_admission_with_offloaded_kv_matches_reference() {
    let model = generate(&DEEP);
    let (config, wanted, calm) = first_come_case(model.path());
    let tenant = Tenant::start(config);
    let mut joined = 0;
    for _ in 0..MAX_LOADS {
        assert_same(&tenant.serve_concurrently(&wanted), &calm, "plans admit every request");
        joined = event_count(&tenant.state(), "join");
        if joined > 0 {
            break;
        }
    }
    let state = tenant.assert_nothing_leaks("plans admit every request");
    assert!(joined > 0, "every request came whole: {:#?}", state.figures);
    assert!(event_count(&state, "plan") > 0 && event_count(&state, "fetch") > 0);
}

#[test]
fn both_families_answer_alike_in_every_precision_with_moving_layers_and_with_short_kv() {
    let (wanted, chunk_bytes) =
        (requests(Machine::current().choose(6, 10)), Machine::current().chunk_bytes());
    // The requests of a GPU are short: KV for one of the host would hold all of them.
    let max_model_len: u32 = Machine::current().choose(192, 48);
    for (family, dtype) in PRECISIONS {
        let shape = Shape { family, dtype, ..SHAPE };
        let model = generate(&shape);
        let base =
            |policy| SidecarConfig { max_model_len: Some(max_model_len), ..base(model.path(), policy) };
        let calm = expected(&base("Oneiros"), &wanted);
        assert_ne!(calm[0].tokens, calm[1].tokens, "answers depend on the prompt");
        for (alpha, beta) in [(1, 1), (7, 1), (3, 2)] {
            let mut config = base("Recompute");
            config.debug.force_remap = Some((alpha, beta));
            check(config, &wanted, &calm, &format!("{family} {dtype}, alpha {alpha}, beta {beta}"));
        }
        let bare_bytes = config_fitting_kv(&base("Recompute"), 0).gpu.memory_bytes;
        for (policy, reason) in [("Recompute", "preempt"), ("Oneiros", "remap_own"), ("Ellm", "inflate")] {
            let mut config = base(policy);
            let kv_bytes = shape.kv_bytes(max_model_len.into()).next_multiple_of(chunk_bytes);
            config.gpu.memory_bytes = bare_bytes + kv_bytes + chunk_bytes;
            let state = check(config, &wanted, &calm, &format!("{family} {dtype}, {policy}"));
            let applied = match reason {
                "preempt" => state.figures.preemptions_total,
                // If copies were timed on a busy machine, remapping is correctly declined.
                "remap_own" => event_count(&state, reason) + event_count(&state, "declined_stall"),
                _ => event_count(&state, reason),
            };
            assert!(applied > 0, "{family} {dtype}: {policy} had nothing to do; {:#?}", state.figures);
        }
    }
}
