//! Faults of the backend, and planted bugs that must be detected.

use sluice_policy::reclaim::PolicyName;
use sluice_scheduler::{Finish, Request};
use sluice_sim::{SimFaults, Simulation};

use crate::support::{assert_same, expected, forced, load, run, setup};

#[test]
fn tokens_survive_engines_that_are_killed() {
    for policy in [PolicyName::Recompute, PolicyName::Oneiros, PolicyName::Ellm] {
        let load = load(24, 11);
        let expected = expected(&load, 6);
        let kill = |world: &mut Simulation, id: u64| {
            if id.is_multiple_of(3) {
                world.kill_engine();
            }
        };
        let mut world = run(setup(policy, 6, 18, 11), &load, kill);
        assert!(world.driver.scheduler().snapshot().counters.replays > 0, "a step was replayed");
        assert_same(&world, &expected, &format!("{policy:?}"));
        assert_eq!(world.driver.compute().wrong_reads(), 0);
    }
}

#[test]
fn tokens_survive_kills_at_any_moment_of_a_drain_that_spans_steps() {
    for seed in 0..12 {
        let load = load(20, 50 + seed);
        let expected = expected(&load, 6);
        let mut setup = setup(PolicyName::Oneiros, 6, 18, seed);
        // One layer block per step boundary, so that chunks drain over many steps and kills happen between these.
        setup.params.compact_budget_bytes = 12_000;
        let mut rng = sluice_common::random::Rng::new(seed);
        let mut world = Simulation::new(setup, None).unwrap();
        load.iter().for_each(|(_, request)| world.submit(request.clone()));
        for _ in 0..30 {
            let now = world.now();
            world.run_until(sluice_policy::ids::Nanos(now.0 + 6_000_000 + rng.below(20_000_000)));
            world.kill_engine();
        }
        assert!(world.run_until_idle(crate::support::LIMIT));
        assert_same(&world, &expected, &format!("seed {seed}"));
        assert_eq!(world.driver.compute().wrong_reads(), 0, "seed {seed}");
    }
}

#[test]
fn tokens_survive_failing_copies_and_refused_mappings() {
    for seed in 0..4 {
        let load = load(24, 20 + seed);
        let expected = expected(&load, 6);
        let mut setup = setup(PolicyName::Oneiros, 6, 18, seed);
        setup.params.stall_allowance_permille = 1000;
        let world = {
            let mut world = Simulation::new(setup, None).unwrap();
            world.run_until(sluice_policy::ids::Nanos(50_000_000));
            world.device.borrow_mut().faults = SimFaults {
                copy_fails_permille: 30,
                copy_slow_permille: 50,
                refused_permille: 50,
                ..SimFaults::default()
            };
            for (at, request) in &load {
                world.run_until(sluice_policy::ids::Nanos(50_000_000 + at));
                world.submit(request.clone());
            }
            assert!(world.run_until_idle(crate::support::LIMIT), "every request ends");
            world
        };
        assert_same(&world, &expected, &format!("seed {seed}"));
    }
}

#[test]
fn only_row_without_candidates_fails() {
    let load = load(8, 31);
    let expected = expected(&load, 6);
    let mut world = Simulation::new(setup(PolicyName::Oneiros, 6, 100, 1), None).unwrap();
    load.iter().for_each(|(_, request)| world.submit(request.clone()));
    world.run_until(sluice_policy::ids::Nanos(20_000_000));
    world.device.borrow_mut().faults.no_candidate = true;
    assert!(world.run_until_idle(crate::support::LIMIT));
    let mut failed = 0;
    for (outcome, expected) in world.outcomes.values().zip(&expected) {
        if let Some(Finish::Failed(reason)) = &outcome.finish {
            failed += 1;
            assert!(reason.contains("not numbers"), "{reason}");
            assert!(expected.tokens.starts_with(&outcome.tokens), "what came before the failure stands");
        } else {
            assert_eq!(outcome, expected, "the others go on as if nothing had happened");
        }
    }
    assert_eq!(failed, 1);
    assert_eq!(world.driver.scheduler().snapshot().counters.refused_steps, 0);
    assert_eq!(world.driver.scheduler().manager().figures().kv_counts().used_kv_blocks, 0);
}

/// Returns the requests of `load` that get a token unknown to the engine, at different positions: the first token, the
/// last one, or a later part of a long prompt.
fn spoiled(load: &[(u64, Request)]) -> Vec<u64> {
    load.iter().map(|(_, request)| request.id.0).filter(|id| id % 3 == 1).collect()
}

#[test]
fn token_beyond_vocabulary_ends_only_its_request() {
    for policy in [PolicyName::Recompute, PolicyName::Oneiros, PolicyName::Unified] {
        let load = load(12, 33);
        let expected = expected(&load, 6);
        let mut world = Simulation::new(setup(policy, 6, 14, 1), None).unwrap();
        let vocab = setup(policy, 6, 14, 1).vocab;
        let bad = spoiled(&load);
        for (place, (_, request)) in load.iter().enumerate() {
            let mut request = request.clone();
            if bad.contains(&request.id.0) {
                let tokens = request.prompt.len();
                request.prompt[[0, tokens - 1, tokens / 2][place % 3]] = vocab + place as u32;
            }
            world.submit(request);
        }
        assert!(world.run_until_idle(crate::support::LIMIT), "{policy:?}: every request ends");
        for ((id, outcome), expected) in world.outcomes.iter().zip(&expected) {
            if bad.contains(&id.0) {
                let failed =
                    matches!(&outcome.finish, Some(Finish::Failed(why)) if why.contains("vocabulary"));
                assert!(failed && outcome.tokens.is_empty(), "{policy:?}, {id:?}: {outcome:?}");
            } else {
                let (found, unspoiled) =
                    ((&outcome.tokens, &outcome.finish), (&expected.tokens, &expected.finish));
                assert_eq!(found, unspoiled, "{policy:?}, {id:?}: the others have what they have alone");
            }
        }
        assert_eq!(world.driver.scheduler().snapshot().counters.refused_steps, 0, "{policy:?}");
        assert_eq!(world.driver.scheduler().manager().figures().kv_counts().used_kv_blocks, 0, "{policy:?}");
    }
}

#[test]
fn refused_sequences_do_not_update_step_times() {
    let good = load(12, 33);
    let (setup, mut worlds) = (setup(PolicyName::Oneiros, 6, 100, 1), Vec::new());
    for refused in [false, true] {
        let mut world = Simulation::new(setup.clone(), None).unwrap();
        good.iter().for_each(|(_, request)| world.submit(request.clone()));
        assert!(world.run_until_idle(crate::support::LIMIT));
        for id in 100..if refused { 140 } else { 100 } {
            let (_, mut request) = good[0].clone();
            request.id = sluice_policy::ids::RequestId(id);
            request.prompt[0] = setup.vocab;
            world.submit(request);
            assert!(world.run_until_idle(crate::support::LIMIT));
        }
        worlds.push(world);
    }
    let failed = worlds[1].outcomes.values().filter(|one| matches!(one.finish, Some(Finish::Failed(_))));
    assert_eq!(failed.count(), 40);
    let [without, with] = [0, 1].map(|one: usize| {
        let measures = worlds[one].driver.scheduler().manager().timing().step_stats();
        (
            measures.compute_ns(),
            measures.overhead_ns(),
            measures.prefill_token_ns(),
            measures.read_kv_blocks(),
        )
    });
    assert_eq!(with, without);
}

#[test]
fn cancelled_request_frees_memory_within_one_step() {
    let load = load(6, 30);
    let mut world = Simulation::new(setup(PolicyName::Oneiros, 6, 60, 1), None).unwrap();
    for (_, request) in &load {
        world.submit(request.clone());
    }
    world.run_until(sluice_policy::ids::Nanos(20_000_000));
    load.iter().for_each(|(_, request)| world.cancel(request.id));
    let steps = world.driver.scheduler().snapshot().counters.steps;
    assert!(world.run_until_idle(crate::support::LIMIT));
    assert!(world.driver.scheduler().snapshot().counters.steps <= steps + 1);
    assert_eq!(world.driver.scheduler().manager().figures().kv_counts().used_kv_blocks, 0);
    assert!(world.outcomes.values().any(|o| o.finish == Some(Finish::Cancelled)));
}

/// Returns the wrong reads of a run with a planted bug, over a slow link.
fn wrong_reads(faults: SimFaults) -> u64 {
    run_planted(faults, 500_000_000).0
}

/// Returns the wrong reads of a run with a planted bug, and whether all requests ended within half a second.
fn run_planted(faults: SimFaults, link_bytes_per_second: u64) -> (u64, bool) {
    let mut setup = forced(setup(PolicyName::Oneiros, 6, 14, 1), 3, 1);
    setup.profile.link_bytes_per_second = link_bytes_per_second;
    let mut world = Simulation::new(setup, None).unwrap();
    world.run_until(sluice_policy::ids::Nanos(50_000_000));
    world.device.borrow_mut().faults = faults;
    // The policy's own checks would detect some of these bugs first; this test needs the reads to detect them.
    world.checked = false;
    load(6, 40).into_iter().for_each(|(_, request)| world.submit(request));
    world.run_until(sluice_policy::ids::Nanos(500_000_000));
    let ended = world.outcomes.values().all(|outcome| outcome.finish.is_some());
    (world.driver.compute().wrong_reads(), ended)
}

#[test]
fn early_slot_reuse_over_fast_link_is_caught_without_hang() {
    for link in [16_000_000_000, 1_000_000_000_000] {
        let (wrong, ended) = run_planted(SimFaults { ignore_after: true, ..SimFaults::default() }, link);
        assert!(wrong > 0 && ended, "{link} bytes per second: {wrong} wrong reads, ended: {ended}");
        assert_eq!(run_planted(SimFaults::default(), link), (0, true), "without the bug");
    }
}

#[test]
fn without_a_planted_bug_nothing_is_read_wrong() {
    assert_eq!(wrong_reads(SimFaults::default()), 0);
}

#[test]
fn a_slot_that_is_reused_before_its_reader_is_done_is_caught() {
    assert!(wrong_reads(SimFaults { ignore_after: true, ..SimFaults::default() }) > 0);
}

#[test]
fn a_slab_that_is_called_ready_too_early_is_caught() {
    assert!(wrong_reads(SimFaults { publish_early: true, ..SimFaults::default() }) > 0);
}

#[test]
fn a_flipped_byte_in_a_filled_slot_is_caught() {
    assert!(wrong_reads(SimFaults { flip_next_fill: true, ..SimFaults::default() }) > 0);
}
