use alloc::vec::Vec;

use super::*;
use crate::cost::price::{LateTokens, ReclaimCost, ReclaimKind, ReclaimOption};
use crate::geometry::StepShape;
use crate::ids::RequestId;

/// The steps that a policy proposes while none of them frees anything.
fn steps(policy: PolicyName, view: ReclaimView) -> Vec<ReclaimStep> {
    let mut view = view;
    let mut steps = Vec::new();
    while steps.last() != Some(&ReclaimStep::ShrinkBatch) {
        assert!(steps.len() < 5, "{policy:?} ends: {steps:?}");
        let step = policy.policy().next(&view);
        steps.push(step);
        view.tried = Some(step);
    }
    steps
}

const VIEW: ReclaimView = ReclaimView {
    missing_layer_blocks: 40,
    tried: None,
    in_backoff: false,
    is_layout_forced: false,
    settings: PolicySettings {
        may_move_weights: true,
        has_objectives: true,
        pause_bound_ns: 7,
        reclaim_by_cost: true,
        next_use_by_arrivals: true,
    },
};

#[test]
fn each_policy_tries_what_its_paper_names_and_shrinks_the_batch_last() {
    use ReclaimStep::{EvictPaused, InflateKv, RemapWeights, ShrinkBatch};
    for (policy, expected) in [
        (PolicyName::Recompute, &[ShrinkBatch][..]),
        (PolicyName::Oneiros, &[RemapWeights, ShrinkBatch]),
        (PolicyName::Ellm, &[InflateKv, ShrinkBatch]),
        (PolicyName::FlexGen, &[ShrinkBatch]),
        (PolicyName::Pie, &[ShrinkBatch]),
        (PolicyName::OrbitFlow, &[EvictPaused, ShrinkBatch]),
        (PolicyName::Unified, &[InflateKv, EvictPaused, RemapWeights, ShrinkBatch]),
    ] {
        assert_eq!(steps(policy, VIEW), expected, "{policy:?}");
    }
}

#[test]
fn fixed_layout_is_not_remapped() {
    let forced = ReclaimView { is_layout_forced: true, ..VIEW };
    for policy in PolicyName::ALL {
        assert!(!steps(policy, forced).contains(&ReclaimStep::RemapWeights), "{policy:?}");
    }
}

#[test]
fn paused_kv_stays_during_a_backoff() {
    let failed = ReclaimView { in_backoff: true, ..VIEW };
    for policy in PolicyName::ALL {
        assert!(!steps(policy, failed).contains(&ReclaimStep::EvictPaused), "{policy:?}");
    }
}

#[test]
fn layers_and_activations_move_only_under_policies_that_reclaim_them() {
    let smallest = StepShape { tokens: 3, sequences: 2, logit_rows: 1 };
    for name in PolicyName::ALL {
        let (moves, inflates) = match name {
            PolicyName::Unified => (true, true),
            PolicyName::Oneiros => (true, false),
            PolicyName::Ellm => (false, true),
            PolicyName::Recompute | PolicyName::FlexGen | PolicyName::Pie | PolicyName::OrbitFlow => {
                (false, false)
            }
        };
        assert_eq!(name.policy().movable_layers(9), moves.then_some(9), "{name:?}");
        assert_eq!(name.policy().kept_activations(smallest), inflates.then_some(smallest), "{name:?}");
    }
}

#[test]
fn unified_moves_layers_or_places_kv() {
    let unified = PolicyName::Unified.policy();
    assert_eq!(unified.kv_placement(&VIEW.settings), KvPlacementMode::Device);
    let fixed = PolicySettings { may_move_weights: false, has_objectives: false, ..VIEW.settings };
    assert_eq!(unified.kv_placement(&fixed), KvPlacementMode::PerRequest);
    assert_eq!(unified.longest_pause_ns(&fixed), Some(7));
    assert_eq!(unified.longest_pause_ns(&VIEW.settings), Some(7));
    let moving = PolicySettings { has_objectives: false, ..VIEW.settings };
    assert_eq!(unified.longest_pause_ns(&moving), None, "a plan's pauses delay the queue");
}

#[test]
fn names_are_those_of_configurations_in_the_order_of_journals() {
    let names = PolicyName::ALL.map(PolicyName::name);
    assert_eq!(names, ["Recompute", "Oneiros", "Ellm", "FlexGen", "Pie", "OrbitFlow", "Unified"]);
    assert_eq!(PolicyName::default(), PolicyName::Oneiros);
}

#[test]
fn unified_takes_smallest_loss_and_others_pause_before_preempting() {
    let option = |kind, late| ReclaimOption {
        kind,
        request: Some(RequestId(late)),
        priority: 0,
        cost: ReclaimCost { loss: LateTokens { late, lost: late }, freed_bytes: 10 },
    };
    let options =
        [option(ReclaimKind::Pause, 9), option(ReclaimKind::Pause, 5), option(ReclaimKind::Preempt, 2)];
    let by_cost = PolicySettings { reclaim_by_cost: true, ..VIEW.settings };
    for policy in PolicyName::ALL {
        let expected = if policy == PolicyName::Unified { options[2] } else { options[0] };
        assert_eq!(policy.policy().choose_victim(&by_cost, &options), Some(expected), "{policy:?}");
        let fixed = PolicySettings { reclaim_by_cost: false, ..by_cost };
        assert_eq!(policy.policy().choose_victim(&fixed, &options), Some(options[0]), "{policy:?}");
        assert_eq!(policy.policy().choose_victim(&by_cost, &options[2..]), Some(options[2]), "{policy:?}");
        assert_eq!(policy.policy().choose_victim(&by_cost, &[]), None, "{policy:?}");
    }
}
