//! KV so short that memory moves by itself, under every policy and while engines die: the books balance at every moment
//! and not one token changes.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;

use crate::support::pressure::{self, MEMORY, MODEL, Seen, poll_while};
use crate::support::{Answer, Tenant, Up, World, Yaml, processes};

/// A tenant under pressure and what its load is answered without any.
async fn start<'a>(world: &'a World, policy: &'static str) -> (Up<'a>, Tenant, Vec<Answer>) {
    let model = world.model("model", MODEL);
    let immediate = "pacing: {mode: Immediate}";
    let mut yaml =
        Yaml::pool(MEMORY).tenant("short", &model, "", immediate).tenant("ample", &model, "", immediate);
    (yaml.gpus, yaml.policy) = (2, policy);
    let mut up = world.up(&yaml, &["--poison"]);
    let (tenant, other) = (up.ready("short").await, up.ready("ample").await);
    let alone = pressure::alone(&other).await;
    let figures = other.state().await.figures;
    assert_eq!(
        (figures.preemptions_total, figures.recomputed_tokens_total),
        (0, 0),
        "alone nothing is short"
    );
    (up, tenant, alone)
}

/// Answers of the load and what was seen meanwhile; kills `kills` engines, each in the middle of a batch.
async fn run(tenant: &Tenant, kills: usize) -> (Vec<Answer>, Seen) {
    let on = AtomicBool::new(true);
    let load = async {
        let answers = pressure::load(tenant).await;
        on.store(false, Ordering::Relaxed);
        answers
    };
    let killing = async {
        let mut steps = 0;
        for _ in 0..kills {
            let further = |state: &sluice_wire::State| {
                state.engine.pid.is_some()
                    && state.queue.running > 1
                    && state.figures.steps_total > steps + 20
            };
            let state = tenant.until("a batch runs", further).await;
            steps = state.figures.steps_total;
            processes::signal(state.engine.pid.unwrap(), Signal::KILL);
        }
    };
    let (answers, seen, ()) = tokio::join!(load, poll_while(tenant, &on), killing);
    assert!(seen.most_running > 1 && seen.polls > 20, "{seen:?}");
    (answers, seen)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_books_balance_while_layers_become_kv_and_all_returns_at_the_end() {
    let world = World::new();
    let (up, tenant, alone) = start(&world, "Oneiros").await;
    let before = tenant.state().await;
    let (answers, seen) = run(&tenant, 0).await;
    assert_eq!(answers, alone, "memory moved and not one token changed");
    assert!(seen.most_alpha > 0, "KV was never so short that a layer was remapped: {seen:?}");
    let returned =
        |state: &sluice_wire::State| (state.remap.alpha, state.remap.beta, state.kv.blocks_used) == (0, 0, 0);
    let after = tenant.until("everything returns", returned).await;
    Seen::default().check(&after);
    assert_eq!(after.memory.owners.weights_layers_bytes, before.memory.owners.weights_layers_bytes);
    assert_eq!((after.queue, after.streams), (before.queue, before.streams));
    assert_eq!(answers[0], tenant.complete(&pressure::request(0)).await.unwrap());
    up.end_cleanly().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_that_die_while_memory_moves_change_no_token_under_any_policy() {
    for policy in ["Recompute", "Oneiros", "Ellm"] {
        let world = World::new();
        let (up, tenant, alone) = start(&world, policy).await;
        let (answers, seen) = run(&tenant, 3).await;
        assert_eq!(answers, alone, "{policy}");
        let state =
            tenant.until("all ends", |state| state.kv.blocks_used == 0 && state.queue.running == 0).await;
        Seen::default().check(&state);
        assert_eq!(state.engine.restarts, 3, "{policy}");
        assert_eq!(seen.most_alpha > 0, policy == "Oneiros", "{policy}: {seen:?}");
        let short = state.figures.preemptions_total > 0 || seen.most_alpha > 0 || policy == "Ellm";
        assert!(short, "{policy}: KV was never short: {:?}", state.figures);
        up.end_cleanly().await;
    }
}
