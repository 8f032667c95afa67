//! Admission, order, refusal and preemption of requests.

use std::sync::Arc;

use sluice_policy::geometry::StepShape;
use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::reason::Reason;
use sluice_policy::reclaim::PolicyName;
use sluice_ports::sampling::Sampling;
use sluice_scheduler::{Finish, QueueOrder, RejectReason, Request};
use sluice_sim::Simulation;
use sluice_sim::simulation::Setup;

use crate::support::{LIMIT, setup};

fn setup_with_ample_memory() -> Setup {
    setup(PolicyName::Recompute, 4, 200, 1)
}

fn request(id: u64, prompt_tokens: u32, max_tokens: u32) -> Request {
    let prompt = (0..prompt_tokens).map(|i| (id as u32) * 1000 + i).collect();
    let sampling = Arc::new(Sampling::default());
    Request { id: RequestId(id), prompt, max_tokens, sampling, priority: 0, salt: 0, paced: true }
}

/// Returns the requests in the order in which they ended.
fn order_of_ending(setup: Setup, requests: Vec<Request>) -> Vec<u64> {
    let mut world = Simulation::new(setup, None).unwrap();
    requests.into_iter().for_each(|request| world.submit(request));
    let mut ended = Vec::new();
    while ended.len() < world.outcomes.len() {
        world.tick(LIMIT);
        let new = world.outcomes.iter().filter(|(id, o)| o.finish.is_some() && !ended.contains(&id.0));
        let new: Vec<_> = new.map(|(id, _)| id.0).collect();
        ended.extend(new);
    }
    ended
}

fn one_at_a_time(order: QueueOrder) -> Setup {
    let mut setup = setup_with_ample_memory();
    setup.config.max_sequences = 1;
    setup.config.order = order;
    setup
}

#[test]
fn first_come_is_first_served() {
    let requests = vec![request(1, 20, 40), request(2, 10, 10), request(3, 10, 2)];
    assert_eq!(order_of_ending(one_at_a_time(QueueOrder::FirstCome), requests), [1, 2, 3]);
}

#[test]
fn shortest_remaining_runs_first_when_asked_for() {
    let requests = vec![request(1, 20, 40), request(2, 10, 10), request(3, 10, 2)];
    assert_eq!(order_of_ending(one_at_a_time(QueueOrder::ShortestRemaining), requests), [3, 2, 1]);
}

#[test]
fn a_higher_priority_is_admitted_first() {
    let mut requests = vec![request(1, 20, 20), request(2, 20, 20), request(3, 20, 20)];
    requests[2].priority = 5;
    requests[1].priority = 1;
    assert_eq!(order_of_ending(one_at_a_time(QueueOrder::FirstCome), requests), [3, 2, 1]);
}

#[test]
fn request_beyond_context_is_refused_with_numbers() {
    let mut world = Simulation::new(setup_with_ample_memory(), None).unwrap();
    world.submit(request(1, 100, 61));
    world.submit(request(2, 100, 60));
    assert!(world.run_until_idle(LIMIT));
    let expected =
        RejectReason::ContextLengthExceeded { prompt_tokens: 100, max_tokens: 61, limit_tokens: 160 };
    assert_eq!(world.outcomes[&RequestId(1)].refusal, Some(expected));
    assert_eq!(world.outcomes[&RequestId(2)].finish, Some(Finish::Length));
}

#[test]
fn a_full_queue_refuses_and_an_empty_request_too() {
    let mut setup = setup_with_ample_memory();
    setup.config.max_queued = 2;
    let mut world = Simulation::new(setup, None).unwrap();
    world.submit(request(1, 0, 5));
    (2..=4).for_each(|id| world.submit(request(id, 5, 5)));
    assert!(world.run_until_idle(LIMIT));
    assert_eq!(world.outcomes[&RequestId(1)].refusal, Some(RejectReason::Empty));
    assert_eq!(world.outcomes[&RequestId(4)].refusal, Some(RejectReason::QueueFull { queued: 2 }));
    assert_eq!(world.outcomes[&RequestId(3)].finish, Some(Finish::Length));
}

/// Number of layers, time of a layer, and time of a token in it, nanoseconds: a step of `tokens` takes `LAYERS * (LAYER
/// + tokens * TOKEN)`.
const STEP: (u64, u64, u64) = (4, 10_000_000, 500_000);

fn step_ns(tokens: usize) -> u64 {
    STEP.0 * (STEP.1 + tokens as u64 * STEP.2)
}

/// Two requests decode when four prompts of 60 tokens arrive. Returns the longest time between two tokens of one of
/// them, nanoseconds, and the largest ratio of it to a step of the requests that decode by then.
fn longest_gap(tbt_ns: u64) -> (u64, f64) {
    let mut setup = setup_with_ample_memory();
    (setup.profile.layer_ns, setup.profile.layer_token_ns) = (STEP.1, STEP.2);
    setup.params.slo.tbt_ns = tbt_ns;
    let mut world = Simulation::new(setup, None).unwrap();
    (1..=2).for_each(|id| world.submit(request(id, 16, 100)));
    let tokens = |world: &Simulation, id| world.outcomes[&RequestId(id)].tokens.len();
    while tokens(&world, 1) < 20 {
        assert!(world.tick(LIMIT));
    }
    (3..=6).for_each(|id| world.submit(request(id, 60, 8)));
    let (mut longest_ns, mut most) = (0, 0.0_f64);
    let (mut seen, mut since, mut decoding) = (tokens(&world, 1), world.now(), 2);
    while (3..=6).any(|id| tokens(&world, id) == 0) {
        assert!(world.tick(LIMIT));
        if tokens(&world, 1) > seen {
            let gap_ns = world.now().since(since);
            (longest_ns, most) = (longest_ns.max(gap_ns), most.max(gap_ns as f64 / step_ns(decoding) as f64));
            (seen, since) = (tokens(&world, 1), world.now());
            decoding = 2 + (3..=6).filter(|id| (1..8).contains(&tokens(&world, *id))).count();
        }
    }
    (longest_ns, most)
}

#[test]
fn a_burst_of_prompts_leaves_decodes_half_of_their_pace() {
    for tbt_ns in [0, 1] {
        let (_, most) = longest_gap(tbt_ns);
        // The average time per token lags slightly. Without the bound the ratio is 168 ms to 44 ms, nearly four.
        assert!((1.7..=2.4).contains(&most), "{most} decode steps where the objective is {tbt_ns} ns");
    }
    let (gap_ns, _) = longest_gap(130_000_000);
    assert!((88_000_001..=130_000_000).contains(&gap_ns), "{gap_ns} ns where the objective is 130 ms");
    assert_eq!(longest_gap(1_000_000_000).0, step_ns(64), "the objective leaves room for whole prompts");
}

#[test]
fn youngest_request_is_preempted_and_oldest_never() {
    let mut world = Simulation::new(setup(PolicyName::Recompute, 4, 14, 1), None).unwrap();
    (1..=4).for_each(|id| world.submit(request(id, 40, 60)));
    assert!(world.run_until_idle(LIMIT));
    let preemptions: Vec<_> = world.outcomes.values().map(|o| o.preemptions).collect();
    assert_eq!(preemptions[0], 0, "{preemptions:?}");
    assert!(preemptions.iter().sum::<u32>() > 0, "memory was short");
    assert!(preemptions[3] >= preemptions[1], "{preemptions:?}");
}

#[test]
fn requests_are_served_in_sequence_when_activations_are_small() {
    let mut setup = setup_with_ample_memory();
    setup.geometry.activation.chunk_per_token_bytes = 19_500;
    setup.params.max_step = StepShape { tokens: 2, sequences: 2, logit_rows: 2 };
    setup.params.min_step = setup.params.max_step;
    let mut world = Simulation::new(setup, None).unwrap();
    (1..=6).for_each(|id| world.submit(request(id, 4, 40)));
    while world.outcomes.values().all(|o| o.finish.is_none()) {
        world.tick(LIMIT);
    }
    let tokens: Vec<_> = world.outcomes.values().map(|o| o.tokens.len()).collect();
    assert!(tokens.iter().all(|tokens| *tokens > 30), "the first has its 40 tokens: {tokens:?}");
}

#[test]
fn request_of_full_length_runs_in_guaranteed_memory() {
    let mut world = Simulation::new(setup(PolicyName::Recompute, 4, 11, 1), None).unwrap();
    (1..=3).for_each(|id| world.submit(request(id, 100, 60)));
    assert!(world.run_until_idle(LIMIT));
    assert!(world.outcomes.values().all(|o| o.finish == Some(Finish::Length) && o.tokens.len() == 60));
}

#[test]
fn a_prompt_seen_before_is_found_in_the_cache_and_gives_the_same_tokens() {
    let mut world = Simulation::new(setup_with_ample_memory(), None).unwrap();
    let again = Request { id: RequestId(2), ..request(1, 60, 20) };
    world.submit(request(1, 60, 20));
    assert!(world.run_until_idle(LIMIT));
    world.submit(again);
    assert!(world.run_until_idle(LIMIT));
    assert_eq!(world.driver.scheduler().snapshot().counters.cached_tokens, 48, "three whole KV blocks of 16");
    assert_eq!(world.outcomes[&RequestId(1)].tokens, world.outcomes[&RequestId(2)].tokens);
}

#[test]
fn another_salt_finds_nothing_in_the_cache() {
    let mut world = Simulation::new(setup_with_ample_memory(), None).unwrap();
    for (id, salt) in [(1, 0), (2, 1)] {
        world.submit(Request { id: RequestId(id), salt, ..request(1, 60, 20) });
        assert!(world.run_until_idle(LIMIT));
    }
    assert_eq!(world.driver.scheduler().snapshot().counters.cached_tokens, 0);
}

/// Returns the tokens and the end of one request with this sampling.
fn run_with(sampling: Sampling) -> (Vec<u32>, Option<Finish>) {
    let mut world = Simulation::new(setup_with_ample_memory(), None).unwrap();
    world.submit(Request { sampling: Arc::new(sampling), ..request(1, 20, 30) });
    assert!(world.run_until_idle(LIMIT));
    let outcome = world.outcomes.remove(&RequestId(1)).unwrap();
    (outcome.tokens, outcome.finish)
}

#[test]
fn stop_tokens_end_request_unless_ignored() {
    let (all, finish) = run_with(Sampling::default());
    assert_eq!((all.len(), finish), (30, Some(Finish::Length)));
    let stop = |sampling| run_with(Sampling { stop_tokens: vec![all[4]], ..sampling });
    let first = all.iter().position(|t| *t == all[4]).unwrap() + 1;
    assert_eq!(stop(Sampling::default()), (all[..first].to_vec(), Some(Finish::Stop)));
    let ignored = Sampling { ignore_stop: true, ..Sampling::default() };
    assert_eq!(stop(ignored), (all.clone(), Some(Finish::Length)));
    let later = Sampling { min_tokens: 10, ..Sampling::default() };
    assert!(stop(later).0.len() > 10, "a stop token among the first ten does not count");
}

#[test]
fn reversion_and_remapping_never_alternate_within_one_step() {
    for patience in [0, 1, 2] {
        let mut setup = setup(PolicyName::Oneiros, 6, 14, 1);
        setup.params.revert_patience_steps = patience;
        setup.params.revert_reserve_permille = 0;
        let mut world = Simulation::new(setup, None).unwrap();
        (1..=6).for_each(|id| world.submit(request(id, 60, 60)));
        assert!(world.run_until_idle(Nanos(5_000_000_000)), "patience {patience}: every request ends");
        let manager = world.driver.scheduler().manager();
        assert!(manager.figures().counted(Reason::RemapOwn) > 0, "patience {patience}: memory was short");
        let steps = world.driver.scheduler().snapshot().counters.steps;
        assert!(manager.figures().counted(Reason::RemapOwn) <= steps, "at most once for each step");
    }
}

#[test]
fn a_remapping_declined_before_any_decode_was_measured_says_so() {
    let mut setup = setup(PolicyName::Oneiros, 6, 14, 1);
    setup.params.layer_compute_ns = 0;
    let mut world = Simulation::new(setup, None).unwrap();
    // One token each: all steps are prefills, so decodes are never measured.
    (1..=6).for_each(|id| world.submit(request(id, 120, 1)));
    assert!(world.run_until_idle(LIMIT));
    let manager = world.driver.scheduler().manager();
    assert!(manager.figures().counted(Reason::DeclinedUnmeasured) > 0, "memory was short");
    assert_eq!(
        (manager.figures().counted(Reason::DeclinedStall), manager.figures().counted(Reason::RemapOwn)),
        (0, 0)
    );
}

#[test]
fn remapped_layers_stay_within_new_cap() {
    for (permille, cap_layers) in [(0, 0), (200, 0), (400, 1), (600, 2), (1000, 4)] {
        let mut setup = setup(PolicyName::Oneiros, 6, 14, 1);
        setup.params.remap_cap_permille = permille;
        setup.params.stall_allowance_permille = 1_000_000;
        let mut world = Simulation::new(setup, None).unwrap();
        assert_eq!(
            world.driver.scheduler().manager().figures().cap_layers(),
            cap_layers,
            "{permille} permille"
        );
        (1..=8).for_each(|id| world.submit(request(id, 60, 60)));
        let mut most = 0;
        while world.outcomes.values().any(|o| o.finish.is_none()) {
            world.tick(LIMIT);
            most = most.max(world.driver.scheduler().manager().figures().layout().alpha());
        }
        assert_eq!(most, cap_layers, "{permille} permille: all that is allowed was needed");
    }
}

#[test]
fn idle_ticks_return_borrowed_memory() {
    let mut setup = setup(PolicyName::Oneiros, 6, 14, 1);
    setup.params.revert_patience_steps = 4;
    let mut world = Simulation::new(setup, None).unwrap();
    (1..=6).for_each(|id| world.submit(request(id, 60, 60)));
    let mut remapped = false;
    while world.outcomes.values().any(|o| o.finish.is_none()) {
        world.tick(LIMIT);
        remapped |= !world.driver.scheduler().manager().figures().layout().moving.is_empty();
    }
    assert!(remapped, "memory was short");
    let now = world.now();
    world.run_until(Nanos(now.0 + 1_000_000_000));
    assert!(
        world.driver.scheduler().manager().figures().layout().moving.is_empty(),
        "ticks alone bring the layers back"
    );
}

#[test]
fn requeued_request_is_admitted_again_when_nothing_runs() {
    let mut setup = setup(PolicyName::Ellm, 4, 11, 1);
    let large = StepShape { tokens: 256, sequences: 8, logit_rows: 8 };
    let chunks = |step| setup.geometry.chunks_for(setup.geometry.activation.bytes(step));
    // A step smaller than the largest leaves activations idle, which become the missing KV.
    setup.geometry.capacity_chunks += chunks(large) - chunks(setup.params.max_step);
    (setup.params.max_step, setup.config.max_step_tokens) = (large, large.tokens);
    let mut world = Simulation::new(setup, None).unwrap();
    (1..=8).for_each(|id| world.submit(request(id, 40, 20)));
    assert!(world.run_until_idle(LIMIT), "a request is admitted");
    assert!(world.outcomes.values().all(|o| o.finish == Some(Finish::Length)));
}
