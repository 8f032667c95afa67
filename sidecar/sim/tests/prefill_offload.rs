//! eLLM's buffer in host memory: prompts without space for their KV are computed while it is offloaded layer by layer.

use std::sync::Arc;

use sluice_policy::ids::RequestId;
use sluice_policy::params::Slo;
use sluice_policy::reason::Reason;
use sluice_policy::reclaim::PolicyName;
use sluice_ports::sampling::Sampling;
use sluice_scheduler::{Event, Request};
use sluice_sim::simulation::Setup;
use sluice_sim::{SimFaults, Simulation};

use crate::support::{LIMIT, assert_same, expected, load, run, setup};

const LAYERS: u16 = 8;
/// First tokens miss their objective at once and other tokens never, so that the whole buffer is soon in use.
const EAGER: Slo = Slo { ttft_ns: 1, tbt_ns: 0, allowed_miss_permille: 0 };

fn request(id: u64, prompt: u32, max_tokens: u32) -> Request {
    let sampling = Arc::new(Sampling::default());
    let prompt = (0..prompt).collect();
    Request { id: RequestId(id), prompt, max_tokens, sampling, priority: 0, salt: id, paced: true }
}

/// Returns a tenant with space for two such requests on the device, and for `host_kv_blocks` in the host tier.
fn short(slo: Slo, host_kv_blocks: u64) -> Setup {
    let mut setup = setup(PolicyName::Ellm, LAYERS, 24, 5);
    setup.params.host_kv_bytes = host_kv_blocks * u64::from(LAYERS) * setup.geometry.layer_block_bytes;
    setup.params.slo = slo;
    setup
}

fn loaded(setup: Setup) -> Simulation {
    let mut world = Simulation::new(setup, None).unwrap();
    assert!(world.run_until_idle(LIMIT), "it loads");
    world
}

/// Returns the time of each request's first token and of the end of all requests, from the start of the load.
fn serve(world: &mut Simulation, load: impl Iterator<Item = Request>) -> (Vec<u64>, u64) {
    let begun = world.now();
    let load: Vec<_> = load.collect();
    let mut first = vec![0; load.len()];
    load.into_iter().for_each(|request| world.submit(request));
    while !world.driver.scheduler().is_idle() {
        assert!(world.tick(LIMIT) || world.driver.scheduler().is_idle(), "every request ends");
        for (at, (_, outcome)) in world.outcomes.iter().enumerate() {
            if first[at] == 0 && !outcome.tokens.is_empty() {
                first[at] = world.now().since(begun);
            }
        }
    }
    (first, world.now().since(begun))
}

fn counters(world: &Simulation) -> sluice_scheduler::snapshot::Counters {
    world.driver.scheduler().snapshot().counters.clone()
}

#[test]
fn request_without_free_blocks_still_gets_first_token() {
    let run = |host_kv_blocks| {
        let mut world = loaded(short(EAGER, host_kv_blocks));
        let (first, all_ns) = serve(&mut world, (1..=10).map(|id| request(id, 100, 40)));
        (counters(&world), first[9], all_ns)
    };
    let (with, without) = (run(200), run(0));
    eprintln!("with a buffer {with:?}, without {without:?}");
    assert!(with.0.prefills_offloaded > 0 && without.0.prefills_offloaded == 0);
    assert!(with.1 * 2 < without.1, "the last first token after {} and {} ns", with.1, without.1);
}

/// Returns a load with too little memory for all prompts at any time.
fn burst(seed: u64) -> Vec<(u64, Request)> {
    load(40, seed).into_iter().map(|(at, request)| (at / 8, request)).collect()
}

/// Serves a burst with `each` before every request, and checks that it has the tokens of a run with enough memory.
fn serve_burst(seed: u64, each: impl FnMut(&mut Simulation, u64)) -> Simulation {
    let load = burst(seed);
    let world = run(short(EAGER, 100), &load, each);
    assert_same(&world, &expected(&load, LAYERS), &format!("seed {seed}"));
    world
}

#[test]
fn prefill_offload_changes_no_token() {
    let mut out = 0;
    for seed in 0..6 {
        let mut world = serve_burst(seed, |world, _| world.driver.scheduler().check());
        out += counters(&world).prefills_offloaded;
        let kv = world.driver.scheduler().manager().figures().kv_counts();
        let cache = kv.idle_kv_blocks * u32::from(LAYERS);
        assert_eq!(
            (kv.used_layer_blocks, kv.host_kv_blocks),
            (cache, 0),
            "seed {seed}: everything is given back"
        );
        assert_eq!(world.driver.compute().wrong_reads(), 0, "seed {seed}");
    }
    assert!(out > 20, "{out} prompts went out");
}

#[test]
fn copy_failures_and_crashes_in_offloaded_prefill_change_no_token() {
    let (mut out, mut lost, mut replays) = (0, 0, 0);
    for seed in 0..8 {
        let faults = SimFaults { copy_fails_permille: 40, copy_slow_permille: 40, ..SimFaults::default() };
        let world = serve_burst(seed, |world, id| {
            world.device.borrow_mut().faults = faults;
            if id % 5 == seed % 5 {
                world.kill_engine();
            }
            world.driver.scheduler().check();
        });
        out += counters(&world).prefills_offloaded;
        replays += counters(&world).replays;
        lost += world.driver.scheduler().manager().figures().counted(Reason::SwapLost);
    }
    assert!(out > 20 && lost > 0 && replays > 0, "{out} went out, {lost} lost, {replays} replays");
}

#[test]
fn spill_before_its_step_is_detected() {
    let load = burst(1);
    let mut world = run(short(EAGER, 100), &load, |world, _| {
        world.device.borrow_mut().faults = SimFaults { spill_early: true, ..SimFaults::default() };
    });
    assert!(counters(&world).prefills_offloaded > 0, "prompts go out");
    let differs =
        world.outcomes.values().zip(expected(&load, LAYERS)).any(|(one, other)| one.tokens != other.tokens);
    assert!(differs || world.driver.compute().wrong_reads() > 0, "torn KV is read");
}

#[test]
fn policy_change_during_prefill_offload_changes_no_token() {
    let mut out = 0;
    for seed in 0..4 {
        let world = serve_burst(seed, |world, id| {
            let policy = PolicyName::ALL[(id + seed) as usize / 2 % PolicyName::ALL.len()];
            let policy = if id % 2 == 0 { PolicyName::Ellm } else { policy };
            world.driver.push(Event::Policy(policy));
        });
        out += counters(&world).prefills_offloaded;
    }
    assert!(out > 4, "{out} prompts went out");
}

/// Late first tokens enlarge the buffer, late other tokens shrink it, regardless of its contents.
#[test]
fn the_buffer_grows_with_late_first_tokens_and_shrinks_with_late_others() {
    let kv_blocks = |slo| {
        let mut world = loaded(short(slo, 200));
        serve(&mut world, (1..=10).map(|id| request(id, 100, 40)));
        let manager = world.driver.scheduler().manager();
        let buffer_bytes = manager.figures().prefill_buffer_bytes();
        (buffer_bytes / manager.geometry().kv_block_bytes(), counters(&world).prefills_offloaded)
    };
    assert_eq!(kv_blocks(EAGER).0, 200, "never more than there is");
    assert_eq!(kv_blocks(Slo { tbt_ns: 1, ..EAGER }).0, 1, "TPOT before TTFT");
    assert_eq!(kv_blocks(Slo::default()), (1, 0), "without objectives none is wanted");
}

/// A link on which offloading a prompt would take seconds. The policy measures it first, with one block.
#[test]
fn prompts_are_not_offloaded_over_slow_link() {
    let served = |bytes_per_second| {
        let mut setup = short(EAGER, 200);
        setup.profile.out_bytes_per_second = bytes_per_second;
        let mut world = loaded(setup);
        let (_, all_ns) = serve(&mut world, (1..=10).map(|id| request(id, 100, 40)));
        (counters(&world).prefills_offloaded, all_ns)
    };
    let (fast, slow) = (served(16_000_000_000), served(1 << 10));
    assert!(fast.0 > 0 && slow.0 == 0, "{fast:?} {slow:?}");
    assert!(slow.1 < 2 * fast.1, "no request waits for the measurement: {} and {} ns", slow.1, fast.1);
}

/// The step covers the whole prompt except its last token.
#[test]
fn a_prompt_one_token_longer_than_a_step_has_its_first_token_too() {
    let mut world = loaded(short(EAGER, 200));
    let (first, _) = serve(&mut world, (1..=12).map(|id| request(id, 65, 60)));
    assert!(counters(&world).prefills_offloaded > 3, "{:?}", counters(&world));
    let without = serve(&mut loaded(short(EAGER, 0)), (1..=12).map(|id| request(id, 65, 60))).0;
    assert!(first[11] * 2 < without[11], "the last first token after {} and {} ns", first[11], without[11]);
}

#[test]
fn cancel_during_prefill_offload_leaks_nothing() {
    for seed in 0..6 {
        let load = burst(seed);
        let mut world = run(short(EAGER, 60), &load, |world, id| {
            if id > 3 && id % 2 == seed % 2 {
                world.cancel(RequestId(id - 2));
            }
            world.driver.scheduler().check();
        });
        let kv = world.driver.scheduler().manager().figures().kv_counts();
        let cache = kv.idle_kv_blocks * u32::from(LAYERS);
        assert_eq!((kv.used_layer_blocks, kv.host_kv_blocks), (cache, 0), "seed {seed}");
        assert_eq!(world.driver.compute().wrong_reads(), 0, "seed {seed}");
    }
}

/// Idle activation chunks count as free memory, also after late first tokens.
#[test]
fn idle_activation_memory_is_lent_to_waiting_requests() {
    let mut world = loaded(short(EAGER, 200));
    serve(&mut world, (1..=10).map(|id| request(id, 100, 40)));
    assert!(world.driver.scheduler().manager().figures().counted(Reason::Inflate) > 0);
}
