//! The claim of a GPU's slots, and when it is replaced.

use std::collections::BTreeMap;

use sluice_plan::observed::{EndedPod, ObservedNode, ObservedPod, ObservedPool, ObservedSlot};
use sluice_plan::plan_context::PlanContext;
use sluice_plan::pool_plan::plan;
use sluice_plan::report::{pool_status, tenant_status};
use sluice_plan::zone_disruption::ZoneDisruption;
use sluice_types::pool::Policy;
use sluice_types::{GpuPool, ModelTenant};

use super::fixtures::{GRACE, MIB, NOW, host_pool, inspected, placed_and_ready, plan_context};

/// Returns the epoch of the first GPU, whether an update is pending, and when to check again.
fn epoch(pool: &GpuPool, seen: &ObservedPool) -> Option<(u32, bool, Option<i64>)> {
    let tenant = inspected();
    let tenants = [&tenant];
    let plan = plan(&plan_context(pool, &tenants, seen));
    plan.gpus[0].epoch.map(|epoch| (epoch.number, epoch.is_update_pending, plan.requeue_after_seconds()))
}

fn lost_for(seconds: i64) -> ObservedPool {
    let mut seen = placed_and_ready(&host_pool());
    seen.nodes.get_mut("a").unwrap().lost_since = Some(NOW - seconds);
    seen
}

#[test]
fn a_claim_stays_for_as_long_as_its_node_may_come_back() {
    let pool = host_pool();
    assert_eq!(epoch(&pool, &placed_and_ready(&pool)), Some((4, false, None)));
    assert_eq!(epoch(&pool, &lost_for(GRACE - 1)), Some((4, false, Some(1))));
    assert_eq!(epoch(&pool, &lost_for(GRACE)), Some((5, false, None)));
}

#[test]
fn missing_node_is_lost_after_grace_and_unknown_node_is_not() {
    let pool = host_pool();
    let gone = |seconds: i64| ObservedPool {
        nodes: BTreeMap::new(),
        missing_nodes: BTreeMap::from([("a".to_owned(), NOW - seconds)]),
        ..placed_and_ready(&pool)
    };
    assert_eq!(epoch(&pool, &gone(GRACE - 1)), Some((4, false, Some(1))));
    assert_eq!(epoch(&pool, &gone(GRACE)), Some((5, false, None)));
    let unheard = ObservedPool { nodes: BTreeMap::new(), ..placed_and_ready(&pool) };
    assert_eq!(epoch(&pool, &unheard), Some((4, false, Some(GRACE))));
}

#[test]
fn no_claim_leaves_its_node_while_most_nodes_are_lost_at_once() {
    let (pool, tenant) = (host_pool(), inspected());
    let tenants = [&tenant];
    let with = |seen: &ObservedPool, outage: ZoneDisruption| {
        let given = PlanContext { disruption: outage, ..plan_context(&pool, &tenants, seen) };
        let plan = plan(&given);
        let status = pool_status(&given, &plan, &pool);
        let degraded = status.conditions.into_iter().find(|one| one.type_ == "Degraded").unwrap();
        (plan.gpus[0].epoch.unwrap().number, plan.requeue_after_seconds(), degraded.reason)
    };
    let lost = lost_for(10 * GRACE);
    let outage = ZoneDisruption { nodes: 9, claim_nodes: 5, not_ready: 3, last_active: NOW };
    assert_eq!(with(&lost, outage), (4, Some(GRACE), "NodesNotReady".to_owned()));
    assert_eq!(
        with(&placed_and_ready(&pool), outage),
        (4, None, "AsExpected".to_owned()),
        "its own node is fine"
    );
    // The disruption has ended: the grace period restarts.
    let over = |last: i64| ZoneDisruption { not_ready: 2, last_active: last, ..outage };
    assert_eq!(with(&lost, over(NOW - GRACE + 1)), (4, Some(1), "AsExpected".to_owned()));
    assert_eq!(with(&lost, over(NOW - GRACE)), (5, None, "AsExpected".to_owned()));
    // A deleted node is not part of it.
    let missing = BTreeMap::from([("a".to_owned(), 0)]);
    let deleted = ObservedPool { nodes: BTreeMap::new(), missing_nodes: missing, ..placed_and_ready(&pool) };
    assert_eq!(with(&deleted, outage).0, 5);
}

#[test]
fn a_cordoned_node_is_left_when_it_keeps_a_pod_from_every_other() {
    let pool = host_pool();
    let mut seen = placed_and_ready(&pool);
    seen.nodes.get_mut("a").unwrap().is_cordoned = true;
    assert_eq!(epoch(&pool, &seen), Some((4, false, None)));
    let stuck = ObservedPod {
        claim: "p-chat-0-e4".into(),
        unschedulable_reason: Some("no node".into()),
        ..ObservedPod::default()
    };
    seen.pods = vec![ObservedPod { is_deleting: true, ..stuck.clone() }];
    assert_eq!(epoch(&pool, &seen), Some((4, false, None)));
    seen.pods = vec![stuck];
    assert_eq!(epoch(&pool, &seen), Some((5, false, None)));
}

#[test]
fn plan_depends_only_on_cluster_state() {
    let pool = host_pool();
    let full = placed_and_ready(&pool);
    // The claim was deleted: while it is being deleted its name is taken, and afterwards free again.
    let mut deleting = full.clone();
    deleting.claims[0].is_deleting = true;
    assert_eq!(epoch(&pool, &deleting), Some((5, false, None)));
    let deleted = ObservedPool { claims: Vec::new(), ..full.clone() };
    assert_eq!(epoch(&pool, &deleted), Some((4, false, None)));
    // The GPU never had a slot.
    assert_eq!(epoch(&pool, &ObservedPool::default()), Some((1, false, None)));
}

#[test]
fn update_waits_for_tenants_unless_disruptive() {
    let mut pool = host_pool();
    let mut seen = placed_and_ready(&pool);
    seen.claims[0].digest = "another".into();
    assert_eq!(epoch(&pool, &seen), Some((4, true, None)));
    let empty = ObservedPool { slots: Vec::new(), ..seen.clone() };
    assert_eq!(epoch(&pool, &empty), Some((5, false, None)));
    pool.spec.update_policy = sluice_types::pool::UpdatePolicy::Disruptive;
    assert_eq!(epoch(&pool, &seen), Some((5, false, None)));
}

#[test]
fn other_pods_of_node_reduce_host_memory_and_own_pods_do_not() {
    let (pool, tenant) = (host_pool(), inspected());
    let tenants = [&tenant];
    let needs = {
        let seen = placed_and_ready(&pool);
        let planned = plan(&plan_context(&pool, &tenants, &seen));
        planned.tenants[0].slots[0].demand.pod.bytes()
    };
    let fits = |requested_bytes: u64, own: &ObservedPod| {
        let mut seen = placed_and_ready(&pool);
        let allocatable_bytes = needs + 100;
        seen.nodes.insert(
            "a".into(),
            ObservedNode { allocatable_bytes, requested_bytes, lost_since: None, is_cordoned: false },
        );
        seen.pods = vec![own.clone()];
        let plan = plan(&plan_context(&pool, &tenants, &seen));
        let fits = plan.tenants[0].slots[0].gpu_index.is_ok();
        assert_eq!(
            plan.requeue_after_seconds(),
            (!fits).then_some(60),
            "what others give back is looked for"
        );
        fits
    };
    let none = ObservedPod::default();
    assert!(fits(100, &none));
    assert!(!fits(101, &none), "the node has no room for it");
    let own = ObservedPod {
        claim: "p-chat-0-e3".into(),
        node: Some("a".into()),
        memory_bytes: needs,
        ..ObservedPod::default()
    };
    assert!(fits(100 + needs, &own), "its own pod, of whichever epoch, is no other");
    assert!(
        !fits(100 + needs, &ObservedPod { is_deleting: true, ..own.clone() }),
        "what leaves is not in the sum either"
    );
    assert!(!fits(100 + needs, &ObservedPod { node: Some("b".into()), ..own }));
}

/// Returns which of two tenants have a GPU, the first with higher priority, and the message about the second one's
/// placement.
fn after(edit: impl Fn(&mut GpuPool, &mut ModelTenant), ready: bool) -> ([bool; 2], String) {
    after_in(edit, ready, placed_and_ready(&host_pool()))
}

fn after_in(
    edit: impl Fn(&mut GpuPool, &mut ModelTenant),
    ready: bool,
    mut seen: ObservedPool,
) -> ([bool; 2], String) {
    let mut pool = host_pool();
    let slot = |name: &str| ObservedSlot { tenant: name.into(), index: 0, claim: "p-chat-0-e4".into() };
    let pod = |name: &str| ObservedPod {
        tenant: name.into(),
        claim: "p-chat-0-e4".into(),
        node: Some("a".into()),
        is_ready: ready,
        ..ObservedPod::default()
    };
    let names = ["first", "second"];
    (seen.slots, seen.pods) = (names.map(slot).into(), names.map(pod).into());
    let mut tenants = names.map(|name| {
        let mut tenant = inspected();
        tenant.metadata.name = Some(name.into());
        tenant.spec.memory.guaranteed_kv = Some(sluice_types::Quantity::from_bytes(41 * MIB));
        tenant
    });
    tenants[0].spec.priority = 500;
    edit(&mut pool, &mut tenants[0]);
    let tenants: Vec<&ModelTenant> = tenants.iter().collect();
    let given = plan_context(&pool, &tenants, &seen);
    let plan = plan(&given);
    let status = tenant_status(&given, &plan, &plan.tenants[1], None);
    let placed = status.conditions.into_iter().find(|one| one.type_ == "Placed").unwrap();
    ([0, 1].map(|tenant| plan.tenants[tenant].slots[0].gpu_index.is_ok()), placed.message)
}

#[test]
fn immediate_edit_keeps_gpu_of_serving_slot() {
    let policy = |pool: &mut GpuPool, _: &mut ModelTenant| pool.spec.policy = Policy::Recompute;
    let cap = |_: &mut GpuPool, tenant: &mut ModelTenant| tenant.spec.memory.max_remapped_percent = 0;
    let host = |pool: &mut GpuPool, _: &mut ModelTenant| {
        pool.spec.host_memory_per_gpu = sluice_types::Quantity::from_bytes(200 * MIB);
    };
    assert_eq!(after(|_, _| (), true), ([true, true], String::new()));
    for edit in [&policy as &dyn Fn(&mut GpuPool, &mut ModelTenant), &cap] {
        let (on, said) = after(edit, true);
        assert_eq!(on, [true, true]);
        assert!(said.contains("floors of tenants on p-chat-0 exceed its memory"), "{said}");
        assert_eq!(after(edit, false).0, [true, false], "no pod has started there");
        let silent = after_in(edit, false, lost_for(GRACE - 1)).0;
        assert_eq!(silent, [true, true], "who is on a node that says nothing may serve on");
    }
    for ready in [true, false] {
        assert_eq!(after(host, ready), ([true, true], String::new()), "they were admitted");
    }
}

#[test]
fn ended_pod_does_not_count_and_does_not_move_claim() {
    let (pool, tenant) = (host_pool(), inspected());
    let mut seen = placed_and_ready(&pool);
    let pod = |name: &str| ObservedPod {
        name: name.into(),
        tenant: "t".into(),
        claim: "p-chat-0-e4".into(),
        ..ObservedPod::default()
    };
    let over = ObservedPod { ended: Some(EndedPod::default()), ..pod("a") };
    seen.pods = vec![over.clone(), pod("b")];
    let tenants = [&tenant];
    let place = |seen: &ObservedPool| {
        plan(&plan_context(&pool, &tenants, seen)).pod("t", 0, "p-chat-0-e4").map(|pod| pod.name.clone())
    };
    assert_eq!(place(&seen).as_deref(), Some("b"));
    seen.pods = vec![ObservedPod { unschedulable_reason: Some("no node".into()), ..over }];
    assert_eq!(place(&seen), None);
    seen.nodes.get_mut("a").unwrap().is_cordoned = true;
    assert_eq!(epoch(&pool, &seen), Some((4, false, None)));
}
