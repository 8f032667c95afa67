//! Tests of a tenant that releases all device memory, with a real engine: its conversations continue.

use std::time::Duration;

use rustix::process::{Pid, Signal};
use sluice_agent::peers::admin_call::{AdminCall, SleepLevel};
use sluice_scheduler::{Finish, UnavailableReason};
use sluice_wire::config::SidecarConfig;
use sluice_wire::state::{Phase, State};
use tempfile::TempDir;

use crate::machine::Machine;
use crate::models::{Shape, generate};
use crate::support::{Tenant, TestRequest, assert_same, config, config_fitting_kv, event_count, slowed};

const HOST_KV: u64 = 4 << 20;

/// As large as the reference model; answers are compared with those of a tenant that does not sleep.
const SHAPE: Shape = Shape { family: "llama", dtype: "f32", layers: 5, hidden: 64, vocab: 512 };

/// Returns a model, and a tenant with host memory for its KV.
fn hibernating_config() -> (TempDir, SidecarConfig) {
    let model = generate(&SHAPE);
    let mut config = config(model.path(), 16 << 20, "Oneiros");
    config.memory.host_kv_bytes = HOST_KV;
    (model, config)
}

/// Returns the tokens of an answer for which a tenant of the host generates `tokens`.
fn answer(tokens: u32) -> u32 {
    Machine::current().choose(tokens, tokens / 2)
}

fn prompt(seed: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|at| (at * 7 + seed * 31) % 400 + 5).collect()
}

fn is_asleep(state: &State) -> bool {
    state.phase == Phase::Hibernated
}

/// Asserts that it holds no device memory and that its accounting agrees.
fn assert_nothing_mapped(state: &State) {
    let owners = &state.memory.owners;
    assert_eq!(owners.free_bytes, state.memory.capacity_bytes, "{owners:?}");
    assert!(state.memory.balances(), "{:?}", state.memory);
    assert_eq!(state.kv.layer_blocks_total, 0);
}

fn sleep(tenant: &Tenant, level: SleepLevel) -> State {
    tenant.call(|answer| AdminCall::Sleep(level, answer)).unwrap();
    let state = tenant.state();
    assert!(tenant.call(AdminCall::IsSleeping).unwrap());
    assert_nothing_mapped(&state);
    // Repeated commands succeed, because an earlier reply may have been lost.
    tenant.call(|answer| AdminCall::Sleep(level, answer)).unwrap();
    state
}

fn wake(tenant: &Tenant) {
    tenant.call(AdminCall::WakeUp).unwrap();
    tenant.call(AdminCall::WakeUp).unwrap();
    assert!(!tenant.call(AdminCall::IsSleeping).unwrap());
}

#[test]
fn idle_tenant_hibernates_and_resumes_without_recompute() {
    let (_model, mut config) = hibernating_config();
    let first = TestRequest::greedy(&prompt(1, 70), 40);
    let (answer, expected, question) = {
        let tenant = Tenant::start(config.clone());
        let answer = tenant.collect(tenant.submit(&first));
        let tokens: Vec<_> = first.prompt.iter().chain(&answer.tokens).copied().chain(prompt(2, 9)).collect();
        let question = TestRequest::greedy(&tokens, 30);
        (answer, tenant.collect(tenant.submit(&question)), question)
    };
    config.hibernate_after_seconds = Some(1);
    let tenant = Tenant::start(config);
    assert_same(&[tenant.collect(tenant.submit(&first))], &[answer], "before");
    let state = tenant.state_when("hibernated", is_asleep);
    assert_nothing_mapped(&state);
    assert_eq!(state.kv.host_layer_blocks_used, 6 * 5, "the six full columns of 110 tokens, in five layers");
    let before = state.figures.prefill_tokens_total;
    assert_same(&[tenant.collect(tenant.submit(&question))], &[expected], "after");
    let state = tenant.state_when("hibernated again", is_asleep);
    let computed = state.figures.prefill_tokens_total - before;
    assert_eq!(
        computed,
        question.prompt.len() as u64 - 6 * 16,
        "what was said before was not computed again"
    );
    assert_eq!((event_count(&state, "swap_in"), event_count(&state, "swap_out")), (1, 2));
    tenant.assert_nothing_leaks("after two naps");
}

#[test]
fn commanded_sleep_suspends_requests_with_kv() {
    let (_model, config) = hibernating_config();
    let wanted: Vec<_> =
        (0..4).map(|seed| TestRequest::greedy(&prompt(seed, 40 + seed), answer(60))).collect();
    let expected = Tenant::start(config.clone()).serve_concurrently(&wanted);
    let tenant = Tenant::start_with(config, slowed(Duration::from_millis(2)));
    let mut tickets: Vec<_> = wanted.iter().map(|wanted| tenant.submit(wanted)).collect();
    tenant.state_when("they run", |state| state.figures.steps_total > 10);
    let state = sleep(&tenant, SleepLevel::One);
    assert_eq!((state.queue.waiting, state.queue.running), (4, 0));
    tickets.push(tenant.submit(&wanted[0]));
    let engine = tenant.state().engine.pid.expect("it has an engine");
    rustix::process::kill_process(Pid::from_raw(engine.cast_signed()).unwrap(), Signal::KILL).unwrap();
    tenant.state_when("another engine", |state| state.engine.pid.is_some_and(|pid| pid != engine));
    assert!(is_asleep(&tenant.state()), "neither a request nor a new engine wakes it");
    wake(&tenant);
    let mut answers: Vec<_> = tickets.into_iter().map(|ticket| tenant.collect(ticket)).collect();
    assert_same(&[answers.pop().unwrap()], &expected[..1], "the request that came while it slept");
    assert_same(&answers, &expected, "those that ran before");
    let figures = tenant.assert_nothing_leaks("awake").figures;
    assert_eq!((figures.preemptions_total, figures.recomputed_tokens_total), (0, 0));
}

#[test]
fn hibernation_counts_all_moved_bytes() {
    let (_model, config) = hibernating_config();
    let tenant = Tenant::start(config);
    let held = |state: &State| state.memory.owners.total().unwrap() - state.memory.owners.free_bytes;
    let moved = |state: &State, reason: &str| -> u64 {
        state.moves.iter().filter(|one| one.reason == reason).map(|one| one.bytes).sum()
    };
    let awake =
        tenant.state_when("all is there", |state| held(state) > 0 && moved(state, "load") == held(state));
    let weights = awake.memory.owners.weights_layers_bytes + awake.memory.owners.weights_global_bytes;
    assert!(weights > 0 && held(&awake) > weights, "{:?}", awake.memory);
    let slept = sleep(&tenant, SleepLevel::One);
    assert_eq!(moved(&slept, "hibernate"), held(&awake), "{:?}", slept.moves);
    wake(&tenant);
    let woken = tenant.state_when("all is back", |state| moved(state, "wake") == held(state));
    assert!(moved(&woken, "wake") > weights, "{:?}", woken.moves);
}

#[test]
fn level_two_keeps_no_kv_and_no_token_changes() {
    let (_model, config) = hibernating_config();
    let wanted: Vec<_> = (0..3).map(|seed| TestRequest::greedy(&prompt(seed, 40), answer(60))).collect();
    let expected = Tenant::start(config.clone()).serve_concurrently(&wanted);
    let tenant = Tenant::start_with(config, slowed(Duration::from_millis(2)));
    let tickets: Vec<_> = wanted.iter().map(|wanted| tenant.submit(wanted)).collect();
    tenant.state_when("they run", |state| state.figures.steps_total > 10);
    let state = sleep(&tenant, SleepLevel::Two);
    assert_eq!(state.kv.host_layer_blocks_used, 0);
    wake(&tenant);
    let answers: Vec<_> = tickets.into_iter().map(|ticket| tenant.collect(ticket)).collect();
    assert_same(&answers, &expected, "computed again");
    assert!(tenant.assert_nothing_leaks("awake").figures.recomputed_tokens_total > 0);
}

/// Tests the comparison: KV of which one block comes back with other bits changes an answer.
#[test]
fn a_block_that_comes_back_spoilt_changes_an_answer() {
    let (_model, config) = hibernating_config();
    let wanted: Vec<_> = (0..2).map(|seed| TestRequest::greedy(&prompt(seed, 40), answer(60))).collect();
    let expected = Tenant::start(config.clone()).serve_concurrently(&wanted);
    let mut faults = slowed(Duration::from_millis(2));
    faults.memory.corrupt_layer_block = Some(1);
    let tenant = Tenant::start_with(config, faults);
    let tickets: Vec<_> = wanted.iter().map(|wanted| tenant.submit(wanted)).collect();
    tenant.state_when("they run", |state| state.figures.steps_total > 10);
    sleep(&tenant, SleepLevel::One);
    wake(&tenant);
    // Where no logit is a number, the request fails.
    let answers: Vec<_> = tickets.into_iter().map(|ticket| tenant.finish(ticket).0).collect();
    assert_ne!(answers, expected);
}

#[test]
fn sleep_under_pressure_changes_no_bit() {
    let (_model, config) = hibernating_config();
    let wanted: Vec<_> = (0..6).map(|seed| TestRequest::greedy(&prompt(seed, 50), answer(80))).collect();
    let expected = Tenant::start(config.clone()).serve_concurrently(&wanted);
    let short = config_fitting_kv(&config, 640 << 10);
    let tenant = Tenant::start_with(short, slowed(Duration::from_micros(200)));
    let tickets: Vec<_> = wanted.iter().map(|wanted| tenant.submit(wanted)).collect();
    let naps_after = Machine::current().choose(15, 6);
    for nap in 1..=4 {
        tenant.state_when("they run", |state| state.figures.steps_total > naps_after * nap);
        sleep(&tenant, SleepLevel::One);
        wake(&tenant);
    }
    let answers: Vec<_> = tickets.into_iter().map(|ticket| tenant.collect(ticket)).collect();
    assert_same(&answers, &expected, "four naps");
    tenant.assert_nothing_leaks("after four naps");
}

#[test]
fn hold_while_asleep_times_out() {
    let (_model, mut config) = hibernating_config();
    config.limits.hold_seconds = 1;
    let tenant = Tenant::start(config);
    sleep(&tenant, SleepLevel::One);
    let (answer, finish) = tenant.finish(tenant.submit(&TestRequest::greedy(&prompt(1, 20), 5)));
    assert!(answer.tokens.is_empty());
    let outage = UnavailableReason::Asleep { held_seconds: 1, by_hand: true };
    assert_eq!(outage.to_string(), "the tenant was put to sleep by hand and was not woken within 1 s");
    assert_eq!(finish, Finish::Unavailable(outage));
    wake(&tenant);
    assert_eq!(tenant.collect(tenant.submit(&TestRequest::greedy(&prompt(1, 20), 5))).tokens.len(), 5);
}

#[test]
fn insufficient_host_memory_is_refused_by_name() {
    let (_model, mut config) = hibernating_config();
    config.gpu.host_memory_bytes = Some(HOST_KV);
    let error = sluice_agent::engine_loop::load(config).map(drop).expect_err("too little").to_string();
    assert!(error.contains("memory.host_kv_bytes") && error.contains("4194304"), "{error}");
}
