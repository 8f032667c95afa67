//! The step model at work: at a link with r of about 7.5 own layers are remapped, at r of about 70 that is declined.

use sluice_wire::State;
use sluice_wire::config::SidecarConfig;

use crate::models::{Shape, generate};
use crate::random::expected;
use crate::support::{Answer, CHUNK, Rng, Tenant, Wanted, assert_same, config, fitting, times};

/// With 48 layers, two of which share a slot 24 apart, a copy is hidden up to r = 23: three times away from either r.
const SHAPE: Shape = Shape { family: "llama", dtype: "bf16", layers: 48, hidden: 96, vocab: 512 };

/// Runs until one finds the machine as quiet as the measurement before it did.
const TRIES: u32 = 8;

fn requests() -> Vec<Wanted> {
    let mut rng = Rng(17);
    (0..6).map(|_| Wanted::greedy(&rng.prompt(10, 512), 60)).collect()
}

/// Compute time of a layer at the moment when KV runs short for the first time.
fn measured_compute_ns(config: &SidecarConfig, wanted: &[Wanted]) -> u64 {
    let mut config = config.clone();
    config.policy = "Recompute".into();
    let tenant = Tenant::start(config);
    let _tickets: Vec<_> = wanted.iter().map(|wanted| tenant.submit(wanted)).collect();
    let short = tenant.state_when("short", |s| s.figures.preemptions_total > 0);
    short.figures.t_compute_ns.unwrap()
}

/// A layer's slab: 2 matrices for queries and outputs, 2 of half their size, 3 of the MLP, 2 norms.
fn slab_bytes() -> u64 {
    let hidden = u64::from(SHAPE.hidden);
    2 * (3 * hidden * hidden + 3 * hidden * 4 * hidden + 2 * hidden)
}

/// A run over a link on which a layer's copy takes about `r` times its compute when KV runs short. Other work on the
/// machine may make compute slower or faster than it was a moment ago: then the run says nothing and is made again.
fn run(config: &SidecarConfig, r_permille: u64, wanted: &[Wanted], calm: &[Answer]) -> State {
    for _ in 0..TRIES {
        let (then, state) = try_run(config, r_permille, wanted, calm);
        eprintln!("asked for r = {r_permille} permille, measured {then} when KV was short");
        if (r_permille / 2..r_permille * 2).contains(&then) {
            return state;
        }
    }
    panic!("the machine is too busy: r is never near {r_permille} permille")
}

/// r when KV was short for the first time, and the state at the end.
fn try_run(config: &SidecarConfig, r_permille: u64, wanted: &[Wanted], calm: &[Answer]) -> (u64, State) {
    let transfer_ns = measured_compute_ns(config, wanted) * r_permille / 1000;
    let mut config = config.clone();
    config.gpu.link_bytes_per_second = Some(slab_bytes() * 1_000_000_000 / transfer_ns);
    let tenant = Tenant::start(config);
    let tickets: Vec<_> = wanted.iter().map(|wanted| tenant.submit(wanted)).collect();
    let decided = |s: &State| times(s, "remap_own") + times(s, "declined_stall") > 0;
    let then = tenant.state_when("a decision", decided).figures.r_permille.unwrap();
    let answers: Vec<_> = tickets.into_iter().map(|ticket| tenant.collect(ticket)).collect();
    assert_same(&answers, calm, &format!("r {r_permille} permille"));
    (then, tenant.assert_nothing_leaks("a slow link"))
}

#[test]
fn own_layers_are_remapped_where_copies_hide_and_not_where_they_would_stall() {
    let (model, wanted) = (generate(&SHAPE), requests());
    let mut config = config(model.path(), 0, "Oneiros");
    config.max_model_len = Some(192);
    let calm = expected(&config, &wanted);
    let config = fitting(&config, SHAPE.kv_bytes(192).next_multiple_of(CHUNK) + CHUNK);
    let fast = run(&config, 7_500, &wanted, &calm);
    assert!(times(&fast, "remap_own") > 0, "{:#?}", fast.figures);
    let slow = run(&config, 70_000, &wanted, &calm);
    assert_eq!(times(&slow, "remap_own"), 0, "{:#?}", slow.figures);
    assert!(times(&slow, "declined_stall") > 0, "{:#?}", slow.figures);
    assert!(slow.figures.preemptions_total > 0, "then requests are recomputed: {:#?}", slow.figures);
}
