//! Tests that log-probabilities are bit-identical under any batches, chunks, threads, cache and recomputation.

use std::path::Path;
use std::time::Duration;

use sluice_common::random::Rng;
use sluice_ports::sampling::Sampling;
use sluice_wire::config::SidecarConfig;

use crate::machine::Machine;
use crate::models::{Shape, generate};
use crate::random::expected;
use crate::support::{
    Answer, Tenant, TestRequest, assert_same, config, config_fitting_kv, event_count, random_prompt,
};

const SHAPE: Shape = Shape { family: "llama", dtype: "bf16", layers: 6, hidden: 96, vocab: 700 };

/// Returns greedy, seeded, penalized and biased requests; some share a prefix.
fn requests() -> Vec<TestRequest> {
    let (mut rng, machine) = (Rng::new(5), Machine::current());
    let common = random_prompt(&mut rng, machine.choose(50, 20), 700);
    let (most_own, answer) = machine.choose((99, (30, 69)), (40, (12, 24)));
    let request = |number: u64| {
        let own = rng.between(1, most_own);
        let prompt = random_prompt(&mut rng, own, 700);
        let prompt = if number.is_multiple_of(3) { [&common[..], &prompt].concat() } else { prompt };
        TestRequest {
            sampling: sampling(number),
            ..TestRequest::greedy(&prompt, rng.between(answer.0, answer.1) as u32)
        }
    };
    (0..machine.choose(10, 5)).map(request).collect()
}

/// Returns the longest sequence of a tenant, tokens.
fn max_model_len() -> u32 {
    Machine::current().choose(240, 96)
}

/// Returns little KV memory: one sequence of any length, and some chunks.
fn short_kv_bytes(chunks: u64) -> u64 {
    let chunk_bytes = Machine::current().chunk_bytes();
    SHAPE.kv_bytes(u64::from(max_model_len())).next_multiple_of(chunk_bytes) + chunks * chunk_bytes
}

fn sampling(number: u64) -> Sampling {
    let greedy = Sampling { ignore_stop: true, logprobs: Some(5), ..Sampling::default() };
    let seeded = Sampling { temperature: 0.9, seed: number, ..greedy.clone() };
    match number % 5 {
        0 => greedy,
        1 => Sampling { top_p: 0.8, ..seeded },
        2 => Sampling { top_k: 40, min_p: 0.01, ..seeded },
        3 => Sampling { repetition_penalty: 1.3, frequency_penalty: 0.4, presence_penalty: 0.2, ..seeded },
        _ => Sampling { frequency_penalty: 0.7, logit_bias: vec![(11, 2.0), (12, -3.0)], ..greedy },
    }
}

fn base(model: &Path, step_tokens: u32, threads: u32) -> SidecarConfig {
    let mut config = config(model, 64 << 20, "Recompute");
    config.max_model_len = Some(max_model_len());
    config.limits.max_step_tokens = step_tokens;
    config.engine.threads = threads;
    config
}

/// Submits in random order at random times, so that batches always differ.
fn serve_staggered(tenant: &Tenant, wanted: &[TestRequest], rng: &mut Rng) -> Vec<Answer> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    (1..order.len()).for_each(|last| order.swap(last, rng.between(0, last as u64) as usize));
    let submit = |number: usize| {
        std::thread::sleep(Duration::from_micros(rng.between(0, 2999)));
        (number, tenant.submit(&wanted[number]))
    };
    let mut tickets: Vec<_> = order.into_iter().map(submit).collect();
    tickets.sort_by_key(|(number, _)| *number);
    tickets.into_iter().map(|(_, ticket)| tenant.collect(ticket)).collect()
}

#[test]
fn log_probabilities_are_equal_in_random_batches_chunkings_and_on_any_number_of_threads() {
    let (model, wanted, mut rng) = (generate(&SHAPE), requests(), Rng::new(23));
    let calm = expected(&base(model.path(), 512, 1), &wanted);
    assert!(
        calm.iter().zip(&wanted).all(|(a, w)| a.bits.len() == w.max_tokens as usize),
        "bits of each token"
    );
    let (sizes, threads) = Machine::current().choose((&[16, 64, 512][..], 3), (&[16, 64], 1));
    for &step_tokens in sizes {
        for threads in 1..=threads {
            let what = format!("{step_tokens} tokens a step, {threads} threads");
            let tenant = Tenant::start(base(model.path(), step_tokens, threads));
            assert_same(&serve_staggered(&tenant, &wanted, &mut rng), &calm, &what);
            // Once more with a warm cache.
            assert_same(&serve_staggered(&tenant, &wanted, &mut rng), &calm, &format!("{what}, again"));
            tenant.assert_nothing_leaks(&what);
        }
    }
}

#[test]
fn log_probabilities_are_equal_when_requests_are_recomputed_in_the_middle() {
    let (model, wanted, mut rng) = (generate(&SHAPE), requests(), Rng::new(29));
    let calm = expected(&base(model.path(), 512, 1), &wanted);
    let kv_bytes = short_kv_bytes(1);
    let cases = [(16, true), (64, false), (512, true), (512, false)];
    for &(step_tokens, no_prefix_cache) in Machine::current().choose(&cases[..], &cases[..1]) {
        let mut config = base(model.path(), step_tokens, 2);
        config.debug.no_prefix_cache = no_prefix_cache;
        let what = format!("{step_tokens} tokens a step, short KV, cache off: {no_prefix_cache}");
        let tenant = Tenant::start(config_fitting_kv(&config, kv_bytes));
        assert_same(&serve_staggered(&tenant, &wanted, &mut rng), &calm, &what);
        let figures = tenant.assert_nothing_leaks(&what).figures;
        assert!(figures.preemptions_total > 0, "{what}: {figures:#?}");
        assert!(figures.recomputed_tokens_total > 0 || !no_prefix_cache, "{what}: {figures:#?}");
    }
}

/// Returns a tenant with little KV memory and a large host tier.
fn config_with_placement(model: &Path, policy: &str) -> SidecarConfig {
    let mut config = base(model, 64, 2);
    config.policy = policy.to_owned();
    config.memory.host_kv_bytes = 16 << 20;
    if policy == "Unified" {
        // Unified offloads KV only if no layer of its own may move.
        config.memory.max_remapped_percent = 0;
    }
    config_fitting_kv(&config, short_kv_bytes(2))
}

#[test]
fn log_probabilities_do_not_depend_on_kv_placement() {
    let (model, wanted, mut rng) = (generate(&SHAPE), requests(), Rng::new(31));
    let calm = expected(&base(model.path(), 512, 1), &wanted);
    for policy in ["FlexGen", "OrbitFlow", "Unified"] {
        let tenant = Tenant::start(config_with_placement(model.path(), policy));
        assert_same(&serve_staggered(&tenant, &wanted, &mut rng), &calm, policy);
        assert_same(&serve_staggered(&tenant, &wanted, &mut rng), &calm, &format!("{policy}, again"));
        let state = tenant.assert_nothing_leaks(policy);
        assert!(event_count(&state, "fetch") > 0, "{policy} fetches: {state:#?}");
    }
}

/// Pie starts with all layers resident and moves two layers only after two trials of 16 decode-only steps while KV is
/// short. So answers are long, and the same requests repeat until a layer has moved.
#[test]
fn log_probabilities_are_equal_while_pie_moves_layers() {
    let (model, mut rng) = (generate(&SHAPE), Rng::new(43));
    let answer = |number: u64| {
        let prompt = random_prompt(&mut rng, 12, 700);
        TestRequest { sampling: sampling(number), ..TestRequest::greedy(&prompt, 200) }
    };
    let wanted: Vec<_> = (0..6).map(answer).collect();
    let calm = expected(&base(model.path(), 512, 1), &wanted);
    let tenant = Tenant::start(config_with_placement(model.path(), "Pie"));
    let once = |round: u32| {
        assert_same(&serve_staggered(&tenant, &wanted, &mut rng), &calm, &format!("round {round}"));
        event_count(&tenant.state(), "fetch")
    };
    let fetches = (1..=20).map(once).find(|fetches| *fetches > 0);
    let state = tenant.assert_nothing_leaks("Pie");
    assert!(fetches.is_some(), "no layer moved in twenty rounds: {state:#?}");
}

/// Most tenants to start until one moves layers. A tenant whose first copies were timed on a busy machine correctly
/// declines; the next one measures again.
const MAX_TENANTS: u32 = 8;

#[test]
fn log_probabilities_are_equal_while_write_backs_hardly_move() {
    let (model, wanted, mut rng) = (generate(&SHAPE), requests(), Rng::new(37));
    let calm = expected(&base(model.path(), 512, 1), &wanted);
    let mut served = |policy: &str| {
        let mut config = config_with_placement(model.path(), policy);
        config.gpu.link_to_host_bytes_per_second = Some(1 << 10);
        config.memory.max_remapped_percent = base(model.path(), 64, 2).memory.max_remapped_percent;
        let tenant = Tenant::start(config);
        assert_same(&serve_staggered(&tenant, &wanted, &mut rng), &calm, policy);
        tenant.state()
    };
    for policy in ["FlexGen", "OrbitFlow"] {
        assert!(event_count(&served(policy), "write_back") > 0, "{policy} tries");
    }
    let moves_layers = |_: u32| {
        let state = served("Unified");
        assert_eq!(event_count(&state, "fetch"), 0, "layers move in place of KV: {state:#?}");
        event_count(&state, "remap_own") + event_count(&state, "remap_stalls") > 0
    };
    assert!((0..MAX_TENANTS).any(moves_layers), "{MAX_TENANTS} tenants with too little KV moved no layer");
}

#[test]
fn objectives_decide_if_requests_can_pause() {
    let (model, wanted, mut rng) = (generate(&SHAPE), requests(), Rng::new(41));
    let calm = expected(&base(model.path(), 512, 1), &wanted);
    let mut paused_in = |seconds: u32, rounds: u32| {
        let mut config = config_with_placement(model.path(), "OrbitFlow");
        // KV that cannot be written back in time leaves too little memory for all requests.
        config.gpu.link_to_host_bytes_per_second = Some(1 << 20);
        config.slo.max_pause_seconds = seconds;
        let tenant = Tenant::start(config);
        let once = |round: &u32| {
            let what = format!("round {round}, at most {seconds} s");
            assert_same(&serve_staggered(&tenant, &wanted, &mut rng), &calm, &what);
            let state = tenant.state();
            assert!(event_count(&state, "plan") > 0, "KV is short: {state:#?}");
            event_count(&state, "pause") > 0
        };
        (1..=rounds).find(once)
    };
    // On a busy machine the link keeps up with slow steps, and for some rounds no request is paused.
    let paused = paused_in(10, 20).expect("a request is one too many in twenty rounds");
    // Without pauses, a request is admitted only if no KV must leave the device for it.
    assert_eq!(paused_in(0, paused + 2), None, "no request may be paused");
}

#[test]
fn seed_determines_samples() {
    let (model, wanted) = (generate(&SHAPE), requests());
    let tenant = Tenant::start(base(model.path(), 512, 1));
    let mut other = wanted[1].clone();
    other.sampling.seed += 1;
    let answers = tenant.serve_in_order(&[wanted[1].clone(), other]);
    assert_ne!(answers[0].tokens, answers[1].tokens, "seeds are used at all");
}
