//! Small tenants and random loads.

use std::sync::Arc;

use sluice_common::random::Rng;
use sluice_policy::geometry::{ActivationCost, Geometry, StepShape};
use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::params::{ForcedRemap, Params};
use sluice_policy::reclaim::{PlacementRule, PolicyName};
use sluice_ports::sampling::Sampling;
use sluice_scheduler::{Config, Request};
use sluice_sim::simulation::{RequestResult, Setup};
use sluice_sim::{Profile, Simulation};

/// One hour: no test needs as long.
pub const LIMIT: Nanos = Nanos(3_600_000_000_000);
/// Size of the vocabulary, tokens.
pub const VOCAB: u32 = 50_000;
const MAX_TOKENS: u32 = 160;

/// Returns a model of `layers` layers on a GPU whose KV holds about `kv_blocks` KV blocks when no layer is remapped.
pub fn setup(policy: PolicyName, layers: u16, kv_blocks: u32, seed: u64) -> Setup {
    let chunk_bytes = 1 << 16;
    let mut geometry = Geometry {
        chunk_bytes,
        capacity_chunks: 0,
        global_bytes: 3 * chunk_bytes - 100,
        slab_bytes: vec![4 * chunk_bytes - 7; usize::from(layers)],
        layer_block_bytes: 12_000,
        activation: ActivationCost {
            fixed_bytes: 1000,
            stream_per_token_bytes: 500,
            chunk_per_token_bytes: 3500,
            chunk_tokens: 64,
            per_sequence_bytes: 100,
            per_logit_row_bytes: 2000,
        },
        staging_chunks: 0,
    };
    let max_step = StepShape { tokens: 64, sequences: 8, logit_rows: 8 };
    let activation = geometry.chunks_for(geometry.activation.bytes(max_step));
    let weights = 3 + 4 * u32::from(layers);
    let kv = geometry.kv_chunks_for(kv_blocks);
    geometry.capacity_chunks = weights + activation + kv;
    let guaranteed = geometry.kv_chunks_for(MAX_TOKENS.div_ceil(16) + 1);
    let params = Params {
        policy,
        max_model_tokens: MAX_TOKENS,
        guaranteed_kv_bytes: u64::from(guaranteed) * chunk_bytes,
        max_step,
        min_step: StepShape { tokens: 8, sequences: 8, logit_rows: 8 },
        revert_patience_steps: 8,
        ..Params::default()
    };
    let config =
        Config { max_model_tokens: MAX_TOKENS, max_step_tokens: 64, max_sequences: 8, ..Config::default() };
    Setup { config, params, geometry, profile: Profile::default(), vocab: VOCAB, seed }
}

/// Adds a host tier for KV if the policy uses one; without it, the policy would neither offload nor pause.
pub fn with_tier(mut setup: Setup) -> Setup {
    if setup.params.placement_rule() != PlacementRule::Device {
        setup.params.host_kv_bytes =
            200 * u64::from(setup.geometry.layers()) * setup.geometry.layer_block_bytes;
    }
    setup
}

/// Sets a fixed layout of moving layers.
pub fn forced(mut setup: Setup, alpha: u16, beta: u8) -> Setup {
    setup.params.forced = Some(ForcedRemap { alpha, beta });
    setup
}

/// Returns a request whose prompt begins with one of a few common prefixes.
pub fn request(id: u64, rng: &mut Rng) -> Request {
    let common = rng.below(3);
    let shared = 16 * rng.below(3);
    let own = rng.between(1, 40);
    let prefix = (0..shared).map(|i| (common * 1000 + i) as u32);
    let prompt: Vec<u32> = prefix.chain((0..own).map(|_| rng.below(u64::from(VOCAB)) as u32)).collect();
    let max_tokens = rng.between(1, 60) as u32;
    let sampling = Arc::new(Sampling::default());
    Request {
        id: RequestId(id),
        prompt,
        max_tokens,
        sampling,
        priority: rng.below(2) as i32,
        salt: rng.below(2),
        paced: id.is_multiple_of(2),
    }
}

/// Returns a load: requests with their arrival times.
pub fn load(count: u64, seed: u64) -> Vec<(u64, Request)> {
    let mut rng = Rng::new(seed);
    let mut at = 0;
    let next = |id| {
        at += rng.below(8_000_000);
        (at, request(id, &mut rng))
    };
    (1..=count).map(next).collect()
}

/// Runs a load to its end, with `each` called before every request.
pub fn run(setup: Setup, load: &[(u64, Request)], mut each: impl FnMut(&mut Simulation, u64)) -> Simulation {
    let mut world = Simulation::new(setup, None).unwrap_or_else(|refused| panic!("{refused}"));
    for (at, request) in load {
        world.run_until(Nanos(*at));
        each(&mut world, request.id.0);
        world.submit(request.clone());
    }
    assert!(world.run_until_idle(LIMIT), "every request ends");
    world
}

/// Returns the tokens by request of a run with enough memory for all.
pub fn expected(load: &[(u64, Request)], layers: u16) -> Vec<RequestResult> {
    let world = run(setup(PolicyName::Recompute, layers, 400, 1), load, |_, _| {});
    assert!(world.outcomes.values().all(|o| o.preemptions == 0), "the reference never runs short");
    world.outcomes.into_values().collect()
}

/// Panics if any token differs.
pub fn assert_same(world: &Simulation, expected: &[RequestResult], what: &str) {
    for (outcome, expected) in world.outcomes.values().zip(expected) {
        assert_eq!(outcome.tokens, expected.tokens, "{what}");
        assert_eq!(outcome.finish, expected.finish, "{what}");
    }
}
