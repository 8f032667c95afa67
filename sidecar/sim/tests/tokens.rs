//! Tokens never depend on memory decisions.

use sluice_policy::reason::Reason;
use sluice_policy::reclaim::PolicyName;
use sluice_ports::Memory;

use crate::support::{assert_same, expected, forced, load, run, setup, with_tier};

#[test]
fn tokens_are_the_same_under_every_policy_when_memory_is_short() {
    for seed in 0..6 {
        let load = load(30, seed);
        let expected = expected(&load, 6);
        for policy in PolicyName::ALL {
            let mut world = run(with_tier(setup(policy, 6, 18, seed)), &load, |_, _| {});
            assert_same(&world, &expected, &format!("{policy:?}, seed {seed}"));
            assert_eq!(world.driver.compute().wrong_reads(), 0);
        }
    }
}

#[test]
fn tokens_are_the_same_under_every_fixed_layout() {
    let load = load(12, 7);
    let expected = expected(&load, 6);
    for beta in 1..=2 {
        for alpha in 1..6 - u16::from(beta) {
            let mut world = run(forced(setup(PolicyName::Oneiros, 6, 14, 1), alpha, beta), &load, |_, _| {});
            assert_same(&world, &expected, &format!("alpha {alpha}, beta {beta}"));
            assert_eq!(world.driver.compute().wrong_reads(), 0);
            assert_eq!(world.driver.scheduler().manager().figures().layout().alpha(), alpha);
        }
    }
}

#[test]
fn memory_short_means_preemption_under_recompute_and_remapping_under_oneiros() {
    let load = load(30, 3);
    let recompute = run(setup(PolicyName::Recompute, 6, 18, 1), &load, |_, _| {});
    assert!(recompute.driver.scheduler().snapshot().counters.preemptions > 0);
    let oneiros = run(setup(PolicyName::Oneiros, 6, 18, 1), &load, |_, _| {});
    assert!(oneiros.driver.scheduler().manager().figures().counted(Reason::RemapOwn) > 0);
    assert!(
        oneiros.driver.scheduler().snapshot().counters.recomputed_tokens
            < recompute.driver.scheduler().snapshot().counters.recomputed_tokens
    );
}

#[test]
fn memory_returns_to_its_baseline_when_the_load_ends() {
    for policy in PolicyName::ALL {
        let mut world = run(with_tier(setup(policy, 6, 18, 5)), &load(30, 5), |_, _| {});
        let manager = world.driver.scheduler().manager();
        assert_eq!(manager.figures().kv_counts().used_kv_blocks, 0);
        assert!(manager.figures().layout().moving.is_empty(), "{policy:?}: all layers are resident again");
        let held = manager.figures().ledger().created_bytes();
        assert_eq!(world.driver.memory().used_bytes(), held);
    }
}
