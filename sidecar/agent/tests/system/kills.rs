//! Tests of engines killed with SIGKILL during generation: the streams continue with the same tokens.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sluice_common::random::Rng;
use sluice_wire::State;

use crate::golden::{reference, requests, short, tiered};
use crate::machine::Machine;
use crate::models::{Shape, generate};
use crate::random::expected;
use crate::support::{Answer, Tenant, TestRequest, assert_same, config, event_count, random_prompt, slowed};

/// Kills the engine `kills` times at random times while `wanted` are served.
fn serve_with_kills(tenant: &Tenant, wanted: &[TestRequest], kills: u64, rng: &mut Rng) -> Vec<Answer> {
    let tickets: Vec<_> = wanted.iter().map(|wanted| tenant.submit(wanted)).collect();
    let mut killed = Vec::new();
    for _ in 0..kills {
        let fresh = |pid: &Option<u32>| pid.is_some_and(|pid| !killed.contains(&pid));
        let state = tenant.state_when("a new engine", |s| fresh(&s.engine.pid) && s.queue.running > 0);
        std::thread::sleep(Duration::from_micros(rng.between(0, 59_999)));
        let pid = state.engine.pid.unwrap();
        kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
        assert!(tenant.state().queue.running > 0, "it was killed while it generated");
        killed.push(pid);
    }
    let answers = tickets.into_iter().map(|ticket| tenant.collect(ticket)).collect();
    let state = tenant.assert_nothing_leaks("after the kills");
    assert_eq!(state.engine.restarts, kills, "every kill was a loss");
    assert!(!killed.contains(&state.engine.pid.unwrap()));
    answers
}

/// Most loads of a tenant until KV has moved. `Pie` tries for some steps whether offloading pays and then pauses for
/// hundreds of steps.
const MAX_LOADS: u32 = 12;

/// Kills the engine at most `kills` times while `wanted` are served: each time some steps after the last, once KV was
/// fetched since. Also returns the number of kills.
fn serve_while_kv_moves(
    tenant: &Tenant,
    wanted: &[TestRequest],
    kills: u64,
    rng: &mut Rng,
) -> (Vec<Answer>, u64) {
    let mut before = tenant.state();
    let (begun, losses) = (before.figures.steps_total, before.engine.restarts);
    let tickets: Vec<_> = wanted.iter().map(|wanted| tenant.submit(wanted)).collect();
    let over = |s: &State| s.figures.steps_total > begun && s.queue.running + s.queue.waiting == 0;
    let mut killed = 0;
    while killed < kills {
        let moves = |s: &State| event_count(s, "fetch") > event_count(&before, "fetch");
        let works = |s: &State| {
            let steps = s.figures.steps_total - before.figures.steps_total;
            s.engine.pid.is_some() && s.queue.running > 0 && steps > 20
        };
        let state = tenant.state_when("KV moves", |s| over(s) || (works(s) && moves(s)));
        if over(&state) {
            break;
        }
        // At a random time of a step.
        std::thread::sleep(Duration::from_micros(rng.between(0, 2_999)));
        let pid = state.engine.pid.unwrap();
        kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
        killed += 1;
        before = tenant.state_when("the loss is known", |s| s.engine.restarts == losses + killed);
    }
    let answers = tickets.into_iter().map(|ticket| tenant.collect(ticket)).collect();
    let state = tenant.assert_nothing_leaks("after the kills");
    assert_eq!(state.engine.restarts, losses + killed, "every kill was a loss, and nothing else was");
    (answers, killed)
}

#[test]
fn streams_survive_repeated_kills_in_every_layout() {
    let Some(folder) = reference() else { return };
    let (wanted, mut rng) = (requests(&folder), Rng::new(31));
    for (alpha, beta) in [(1, 1), (3, 1), (2, 2)] {
        let mut config = config(&folder, 16 << 20, "Oneiros");
        config.debug.force_remap = Some((alpha, beta));
        // A layer's copy takes 2 ms, so that copies are running at any time.
        config.gpu.link_bytes_per_second = Some(90 << 20);
        let tenant = Tenant::start_with(config, slowed(Duration::from_micros(500)));
        let answers = serve_with_kills(&tenant, &wanted, 3, &mut rng);
        crate::golden::check(&answers, &folder, &format!("alpha {alpha}, beta {beta}"));
    }
}

#[test]
fn streams_survive_an_engine_killed_while_memory_moves_under_every_policy_that_keeps_kv_on_the_device() {
    let Some(folder) = reference() else { return };
    let (wanted, mut rng) = (requests(&folder), Rng::new(37));
    for policy in ["Recompute", "Oneiros", "Ellm", "Unified"] {
        for _ in 0..2 {
            let tenant = Tenant::start_with(short(&folder, policy), slowed(Duration::from_micros(400)));
            let answers = serve_with_kills(&tenant, &wanted, 4, &mut rng);
            crate::golden::check(&answers, &folder, policy);
        }
    }
}

/// When the engine is killed, fetches for its step and write-backs are queued or running.
#[test]
fn streams_survive_an_engine_killed_while_kv_moves_under_every_policy_that_moves_it() {
    let Some(folder) = reference() else { return };
    let (short, wanted, mut rng) = (short(&folder, "Recompute"), requests(&folder), Rng::new(47));
    // Unified moves KV if no layer may move.
    for (policy, percent) in [("FlexGen", 60), ("Pie", 60), ("OrbitFlow", 60), ("Unified", 0)] {
        let config = tiered(&short, policy, percent);
        let tenant = Tenant::start_with(config, slowed(Duration::from_micros(400)));
        let moves = |_: u32| {
            let (answers, killed) = serve_while_kv_moves(&tenant, &wanted, 3, &mut rng);
            crate::golden::check(&answers, &folder, policy);
            killed > 0
        };
        assert!((0..MAX_LOADS).any(moves), "{policy}: no engine died while KV moved");
        let written_bytes = tenant.metric("sluice_kv_writeback_bytes_total");
        assert!(written_bytes > 0.0, "{policy}: only what was written back can be fetched");
    }
}

#[test]
fn sampled_streams_with_log_probabilities_survive_an_engine_killed_while_layers_move() {
    let shape = Shape { family: "opt", dtype: "f16", layers: 8, hidden: 64, vocab: 512 };
    let (model, mut rng) = (generate(&shape), Rng::new(41));
    let (requests, tokens, kills) = Machine::current().choose((8, 60, 4), (3, 20, 2));
    let mut wanted: Vec<_> =
        (1..=requests).map(|n| TestRequest::greedy(&random_prompt(&mut rng, n * 12, 512), tokens)).collect();
    for (seed, wanted) in wanted.iter_mut().enumerate() {
        (wanted.sampling.temperature, wanted.sampling.seed) = (0.8, seed as u64);
    }
    let mut config = config(model.path(), 64 << 20, "Oneiros");
    config.max_model_len = Some(192);
    let calm = expected(&config, &wanted);
    config.debug.force_remap = Some((4, 2));
    config.gpu.link_bytes_per_second = Some(50 << 20);
    let tenant = Tenant::start_with(config, slowed(Duration::from_micros(300)));
    assert_same(&serve_with_kills(&tenant, &wanted, kills, &mut rng), &calm, "killed");
}

/// The supervisor's back-off (50 ms, doubled up to 5 s) takes about 22 s of the minute.
#[test]
fn ten_kills_in_a_minute_are_survived() {
    let Some(folder) = reference() else { return };
    let (wanted, begun) = (requests(&folder), Instant::now());
    let mut config = config(&folder, 16 << 20, "Oneiros");
    config.debug.force_remap = Some((2, 1));
    let tenant = Tenant::start_with(config, slowed(Duration::from_millis(1)));
    let answers = serve_with_kills(&tenant, &wanted, 10, &mut Rng::new(43));
    crate::golden::check(&answers, &folder, "ten kills");
    assert!(begun.elapsed() < Duration::from_secs(60), "within a minute");
    assert!(event_count(&tenant.state(), "rebuild") >= 10, "slots were rebuilt");
}
