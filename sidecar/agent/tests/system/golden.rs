//! Tests that greedy tokens equal those of an independent implementation, under every memory decision.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sluice_agent::gateway::detok::{DecodeOptions, Detokenizer};
use sluice_agent::model::text::Text;
use sluice_wire::config::SidecarConfig;
use sluice_wire::state::Residency;

use crate::machine::HOST_CHUNK;
use crate::support::{Tenant, TestRequest, config, config_fitting_kv, event_count, shared};

/// Layers of the reference model.
const LAYERS: u16 = 5;

#[derive(serde::Deserialize)]
struct Golden {
    prompt: String,
    text: String,
    prompt_ids: Vec<u32>,
    greedy_ids: Vec<u32>,
}

/// Returns the reference model's folder.
pub fn reference() -> Option<PathBuf> {
    shared("models/stories260k")
}

/// Returns its golden requests.
pub fn requests(folder: &Path) -> Vec<TestRequest> {
    let wanted = |golden: Golden| TestRequest::greedy(&golden.prompt_ids, golden.greedy_ids.len() as u32);
    read(folder).into_iter().map(wanted).collect()
}

fn read(folder: &Path) -> Vec<Golden> {
    serde_json::from_slice(&std::fs::read(folder.join("golden.json")).unwrap()).unwrap()
}

/// Returns the golden tokens of each request.
pub fn greedy_tokens(folder: &Path) -> Vec<Vec<u32>> {
    read(folder).into_iter().map(|golden| golden.greedy_ids).collect()
}

/// Asserts that all tokens are the golden ones.
pub fn check(answers: &[crate::support::Answer], folder: &Path, what: &str) {
    for (request, (answer, golden)) in answers.iter().zip(read(folder)).enumerate() {
        assert_eq!(answer.tokens, golden.greedy_ids, "{what}: request {request}");
    }
}

#[test]
fn prompt_and_answer_joined_are_the_text_of_the_reference() {
    let Some(folder) = reference() else { return };
    let text = Arc::new(Text::open(&folder).unwrap());
    for golden in read(&folder) {
        let mut detokenizer = Detokenizer::new(text.clone(), DecodeOptions::default(), &golden.prompt_ids);
        let answer: String = golden.greedy_ids.iter().map(|id| detokenizer.push(*id)).collect();
        assert_eq!(golden.prompt + &answer + &detokenizer.finish(), golden.text);
    }
}

/// Serves all golden requests at once; panics on the first token that differs.
fn check_together(tenant: &Tenant, folder: &Path, what: &str) {
    check(&tenant.serve_concurrently(&requests(folder)), folder, what);
    tenant.assert_nothing_leaks(what);
}

/// Returns a tenant with KV for two of the six golden requests and a large activation range that can lend memory.
pub fn short(folder: &Path, policy: &str) -> SidecarConfig {
    let mut config = config(folder, 0, policy);
    config.max_model_len = Some(192);
    config.limits.max_step_tokens = 512;
    config_fitting_kv(&config, 8 * HOST_CHUNK)
}

/// Returns the same tenant under `policy`, with host memory for all KV and this limit on remapped layers.
pub fn tiered(short: &SidecarConfig, policy: &str, most_remapped_percent: u32) -> SidecarConfig {
    let mut config = short.clone();
    config.policy = policy.into();
    config.memory.host_kv_bytes = 16 << 20;
    config.memory.max_remapped_percent = most_remapped_percent;
    config
}

#[test]
fn greedy_tokens_equal_the_reference_under_every_policy() {
    let Some(folder) = reference() else { return };
    for policy in ["Recompute", "Oneiros", "Ellm"] {
        check_together(&Tenant::start(config(&folder, 16 << 20, policy)), &folder, policy);
    }
}

#[test]
fn greedy_tokens_equal_the_reference_under_every_policy_with_every_layout_of_moving_layers() {
    let Some(folder) = reference() else { return };
    for policy in ["Recompute", "Oneiros", "Ellm"] {
        for (alpha, beta) in [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2)] {
            let what = format!("{policy}, alpha {alpha}, beta {beta}");
            assert!(alpha + beta < LAYERS, "{what}: one layer at least is resident");
            let mut config = config(&folder, 16 << 20, policy);
            config.debug.force_remap = Some((alpha, beta as u8));
            let tenant = Tenant::start(config);
            let before = tenant.state();
            assert_eq!((before.remap.alpha, u16::from(before.remap.beta)), (alpha, beta), "{what}");
            check_together(&tenant, &folder, &what);
            let copied = tenant.state().figures.copied_bytes_total - before.figures.copied_bytes_total;
            let steps = tenant.state().figures.steps_total;
            // Each step copies every moving layer, except a layer that has one of two slots to itself.
            let least = steps * u64::from(alpha + beta - beta / 2) * (HOST_CHUNK * 2);
            assert!(copied >= least, "{what}: {copied} bytes copied in {steps} steps, at least {least}");
        }
    }
}

#[test]
fn every_layout_is_forced_or_refused() {
    let Some(folder) = reference() else { return };
    for (alpha, beta) in [(4, 1), (3, 2), (0, 1), (1, 3)] {
        let mut config = config(&folder, 16 << 20, "Oneiros");
        config.debug.force_remap = Some((alpha, beta));
        let refused = Tenant::begin(config, crate::support::poisoned());
        assert!(refused.is_err(), "alpha {alpha}, beta {beta} of {LAYERS} layers");
    }
}

/// Most tenants to start until one remaps.
const MAX_TENANTS: u32 = 8;

/// Returns a tenant that has remapped layers on its own. A tenant whose first copies were timed on a busy machine
/// correctly declines; the next one measures again.
fn remapped(folder: &Path) -> Tenant {
    for _ in 0..MAX_TENANTS {
        let tenant = Tenant::start(short(folder, "Oneiros"));
        assert_eq!(tenant.state().remap.alpha, 0, "all layers are resident at first");
        check_together(&tenant, folder, "first burst");
        let state = tenant.state();
        if event_count(&state, "remap_own") > 0 {
            return tenant;
        }
        assert!(event_count(&state, "declined_stall") > 0, "it says why not: {:#?}", state.figures);
    }
    panic!("{MAX_TENANTS} tenants with too little KV found that remapping does not pay");
}

#[test]
fn oneiros_remaps_under_kv_shortage_and_reverts() {
    let Some(folder) = reference() else { return };
    let tenant = remapped(&folder);
    let reverted = tenant.state_when("reversion", |s| s.remap.alpha == 0 && s.remap.beta == 0);
    assert!(event_count(&reverted, "revert") > 0);
    let home = tenant.state_when("layers", |s| s.layers.iter().all(|l| *l == Residency::Resident));
    assert_eq!(home.layers.len(), usize::from(LAYERS));
    check_together(&tenant, &folder, "second burst");
}

#[test]
fn ellm_lends_activations_when_kv_is_short() {
    let Some(folder) = reference() else { return };
    let tenant = Tenant::start(short(&folder, "Ellm"));
    let before = tenant.state().memory.owners;
    check_together(&tenant, &folder, "Ellm");
    let after = tenant.state();
    assert!(event_count(&after, "inflate") > 0, "{:#?}", after.figures);
    assert!(after.memory.owners.activation_bytes < before.activation_bytes, "lent until asked for");
    // A prompt as long as a step needs the activations again.
    let long = TestRequest::greedy(&[7; 150], 8);
    tenant.serve_concurrently(&vec![long; 6]);
    assert!(event_count(&tenant.state(), "deflate") > 0, "{:#?}", tenant.state().figures);
    check_together(&tenant, &folder, "Ellm, after giving back");
}

#[test]
fn recompute_preempts_when_kv_is_short() {
    let Some(folder) = reference() else { return };
    let tenant = Tenant::start(short(&folder, "Recompute"));
    check_together(&tenant, &folder, "Recompute");
    let figures = tenant.state().figures;
    assert!(figures.preemptions_total > 0, "{figures:#?}");
    assert!(figures.recomputed_tokens_total > 0, "{figures:#?}");
}
