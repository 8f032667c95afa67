//! Tests steps of whole prompts while weights load: the memory they take, its owners, and its return.

use sluice_policy::geometry::StepShape;
use sluice_policy::ids::RequestId;
use sluice_policy::memory_manager::{Prepared, StepNeed};
use sluice_policy::params::ForcedRemap;
use sluice_policy::reason::Reason;
use sluice_policy::reclaim::PolicyName;

use super::cases::{guaranteed_chunks, tenant};
use super::device::Faults;
use super::random::MODEL_TOKENS;
use super::world::World;

const POLICIES: [PolicyName; 3] = [PolicyName::Recompute, PolicyName::Oneiros, PolicyName::Ellm];

/// Returns a tenant whose layers are restored from slots, with `extra_kv` chunks of KV beyond the guarantee.
fn arriving(policy: PolicyName, extra_kv: u32) -> World {
    let (params, _) = tenant(policy, &[4; 8], 0, MODEL_TOKENS);
    let kv = guaranteed_chunks(&params) + extra_kv;
    let (mut params, geometry) = tenant(policy, &[4; 8], kv, MODEL_TOKENS);
    params.forced = Some(ForcedRemap { alpha: 2, beta: 1 });
    let mut world = World::new(params, geometry, 3, Faults::default());
    assert!(world.load());
    world.manager.force_layout(None).expect("no layout is a layout");
    for _ in 0..10_000 {
        if world.manager.status().weights_loading() && !world.manager.status().is_blocked() {
            return world;
        }
        world.tick();
    }
    panic!("{policy:?}: layers never came back");
}

fn need(tokens: u32) -> StepNeed {
    StepNeed { shape: StepShape { tokens, sequences: 1, logit_rows: 1 }, ..StepNeed::default() }
}

fn activation_max(world: &World) -> u32 {
    let (geometry, params) = (world.manager.geometry(), world.manager.params());
    geometry.chunks_for(geometry.activation.bytes(params.max_step))
}

#[test]
fn prompts_take_free_memory_and_return_it() {
    for policy in POLICIES {
        let mut world = arriving(policy, 20);
        let tokens = world.manager.whole_prompt_tokens(&need(0));
        assert!(tokens >= MODEL_TOKENS, "{policy:?}: {tokens} tokens");
        world.submit(1, 0, (0..MODEL_TOKENS - 6).collect(), 4);
        world.run();
        assert_eq!(world.manager.figures().counted(Reason::WholePrompt), 2, "{policy:?}: there and back");
        world.run_idle(1000);
        assert_eq!(world.manager.figures().activation_chunks(), activation_max(&world), "{policy:?}");
        assert_eq!(world.manager.whole_prompt_tokens(&need(0)), 0, "{policy:?}: nothing arrives any more");
    }
}

#[test]
fn guarantee_is_kept_and_usual_step_runs() {
    for policy in POLICIES {
        // The two layers that are restored take all that the guarantee leaves.
        let mut world = arriving(policy, 0);
        let now = world.now;
        let wide = need(MODEL_TOKENS);
        let answer = world.send_event(|manager, out| manager.prepare(now, &wide, out));
        assert_eq!(answer, Prepared::Short { missing_kv_blocks: 0, activation: true }, "{policy:?}");
        assert_eq!(world.manager.figures().counted(Reason::WholePrompt), 0);
        assert!(world.manager.whole_prompt_tokens(&wide) < MODEL_TOKENS);
        let usual = world.send_event(|manager, out| manager.prepare(now, &need(8), out));
        assert_eq!(usual, Prepared::Ready, "{policy:?}");
        assert_eq!(world.manager.kv_of(RequestId(1)).kv_blocks(), 0);
    }
}

#[test]
fn longer_step_is_refused_without_arrivals() {
    let (params, _) = tenant(PolicyName::Oneiros, &[4; 8], 0, MODEL_TOKENS);
    let kv = guaranteed_chunks(&params) + 20;
    let (params, geometry) = tenant(PolicyName::Oneiros, &[4; 8], kv, MODEL_TOKENS);
    let mut world = World::new(params, geometry, 3, Faults::default());
    assert!(world.load());
    let now = world.now;
    let answer = world.send_event(|manager, out| manager.prepare(now, &need(MODEL_TOKENS), out));
    assert_eq!(answer, Prepared::Short { missing_kv_blocks: 0, activation: true });
}
