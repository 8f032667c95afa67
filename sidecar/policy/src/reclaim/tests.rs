use super::*;
use crate::cost::price::{LateTokens, ReclaimCost, ReclaimKind, ReclaimOption};
use crate::geometry::StepShape;
use crate::ids::RequestId;

const SETTINGS: PolicySettings = PolicySettings {
    may_move_weights: true,
    has_objectives: true,
    pause_bound_ns: 7,
    ablations: Ablations { reclaim_by_cost: true, next_use_by_arrivals: true },
};

#[test]
fn each_policy_reclaims_what_its_paper_names() {
    use ReclaimStep::{EvictPaused, InflateKv, RemapWeights};
    for (policy, expected) in [
        (PolicyName::Recompute, &[][..]),
        (PolicyName::Oneiros, &[RemapWeights]),
        (PolicyName::Ellm, &[InflateKv]),
        (PolicyName::FlexGen, &[]),
        (PolicyName::Pie, &[]),
        (PolicyName::OrbitFlow, &[EvictPaused]),
        (PolicyName::Unified, &[InflateKv, EvictPaused, RemapWeights]),
    ] {
        assert_eq!(policy.policy().steps(), expected, "{policy:?}");
    }
}

/// Oneiros 4.3 turns own layers into KV, up to the bound of the tenant, 9. eLLM (Algorithm 1) turns activations into KV
/// and keeps those of the smallest step. vLLM reclaims neither; FlexGen, Pie and OrbitFlow move KV alone.
#[test]
fn layers_move_as_in_oneiros_and_activations_become_kv_as_in_ellm() {
    let smallest = StepShape { tokens: 3, sequences: 2, logit_rows: 1 };
    let rows = [
        (PolicyName::Recompute, None, None),
        (PolicyName::Oneiros, Some(9), None),
        (PolicyName::Ellm, None, Some(smallest)),
        (PolicyName::FlexGen, None, None),
        (PolicyName::Pie, None, None),
        (PolicyName::OrbitFlow, None, None),
        (PolicyName::Unified, Some(9), Some(smallest)),
    ];
    assert_eq!(rows.map(|(policy, ..)| policy), PolicyName::ALL, "a row for each");
    for (name, layers, activations) in rows {
        let moved = (name.policy().movable_layers(9), name.policy().kept_activations(smallest));
        assert_eq!(moved, (layers, activations), "{name:?}");
    }
}

/// KV that leaves the device is written back, a layer is not: KV stays where layers may move. Pauses are OrbitFlow's
/// (section 5), for at most 7 ns here. A plan that orders them delays the queue, so where layers may move they need
/// the order by deadline.
#[test]
fn unified_moves_kv_where_no_layer_may_and_pauses_under_a_plan_or_deadlines() {
    use PlacementRule::{Device, PerRequest};
    let rows = [
        (["layers may move", "objectives"], Device, Some(7)),
        (["layers may move", "none"], Device, None),
        (["layers stay", "objectives"], PerRequest, Some(7)),
        (["layers stay", "none"], PerRequest, Some(7)),
    ];
    for (case, placement, pause_ns) in rows {
        let [may_move_weights, has_objectives] = [case[0] == "layers may move", case[1] == "objectives"];
        let settings = PolicySettings { may_move_weights, has_objectives, ..SETTINGS };
        let unified = PolicyName::Unified.policy();
        assert_eq!(
            (unified.placement_rule(&settings), unified.longest_pause_ns(&settings)),
            (placement, pause_ns),
            "{case:?}"
        );
    }
}

#[test]
fn names_are_those_of_configurations_in_the_order_of_journals() {
    let names = PolicyName::ALL.map(PolicyName::name);
    assert_eq!(names, ["Recompute", "Oneiros", "Ellm", "FlexGen", "Pie", "OrbitFlow", "Unified"]);
    assert_eq!(PolicyName::default(), PolicyName::Oneiros);
}

/// Request 1 loses 9 tokens in a pause and frees 30 bytes, request 2 loses 5 and frees 10, request 3 loses 4 when it is
/// preempted and frees 20: 0.3, 0.5 and 0.2 tokens a byte. OrbitFlow (section 5) pauses before it preempts, and takes
/// the first of equals; the loss in tokens decides under `Unified` alone.
#[test]
fn unified_takes_least_loss_for_a_byte_and_others_pause_before_preempting() {
    let option = |kind, request, late, freed_bytes| ReclaimOption {
        kind,
        request: Some(RequestId(request)),
        priority: 0,
        cost: ReclaimCost { loss: LateTokens { late, lost: late }, freed_bytes },
    };
    let options = [
        option(ReclaimKind::Pause, 1, 9, 30),
        option(ReclaimKind::Pause, 2, 5, 10),
        option(ReclaimKind::Preempt, 3, 4, 20),
    ];
    let evicted = |name: PolicyName, reclaim_by_cost, options: &[ReclaimOption]| {
        let ablations = Ablations { reclaim_by_cost, ..SETTINGS.ablations };
        let settings = PolicySettings { ablations, ..SETTINGS };
        name.policy()
            .cost_rule(&settings)
            .choose(options)
            .and_then(|option| option.request)
            .map(|request| request.0)
    };
    assert_eq!(evicted(PolicyName::Unified, true, &options), Some(3));
    assert_eq!(evicted(PolicyName::Unified, true, &options[..2]), Some(1));
    assert_eq!(evicted(PolicyName::Unified, false, &options), Some(1), "its ablation is OrbitFlow's order");
    for policy in PolicyName::ALL.into_iter().filter(|policy| *policy != PolicyName::Unified) {
        assert_eq!(evicted(policy, true, &options), Some(1), "{policy:?}");
    }
    for policy in PolicyName::ALL {
        assert_eq!(evicted(policy, true, &options[2..]), Some(3), "{policy:?}: nothing is left to pause");
        assert_eq!(evicted(policy, true, &[]), None, "{policy:?}");
    }
}
