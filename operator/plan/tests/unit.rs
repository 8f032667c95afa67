//! Which claim a GPU's slots are on, and when that is another one.

use std::collections::BTreeMap;

use sluice_plan::outage::Outage;
use sluice_plan::report::{pool_status, tenant_status};
use sluice_plan::seen::{Ended, NodeSeen, PodSeen, Seen, SlotSeen};
use sluice_plan::unit::{Given, plan};
use sluice_types::pool::Policy;
use sluice_types::{GpuPool, ModelTenant};

use super::world::{GRACE, MIB, NOW, given, host_pool, inspected, settled};

/// Epoch of the first GPU, whether a change waits, and when to look again.
fn epoch(pool: &GpuPool, seen: &Seen) -> Option<(u32, bool, Option<i64>)> {
    let tenant = inspected();
    let tenants = [&tenant];
    let plan = plan(&given(pool, &tenants, seen));
    plan.gpus[0].epoch.map(|epoch| (epoch.number, epoch.waits, plan.look_again()))
}

fn lost_for(seconds: i64) -> Seen {
    let mut seen = settled(&host_pool());
    seen.nodes.get_mut("a").unwrap().lost_since = Some(NOW - seconds);
    seen
}

#[test]
fn a_claim_stays_for_as_long_as_its_node_may_come_back() {
    let pool = host_pool();
    assert_eq!(epoch(&pool, &settled(&pool)), Some((4, false, None)));
    assert_eq!(epoch(&pool, &lost_for(GRACE - 1)), Some((4, false, Some(1))));
    assert_eq!(epoch(&pool, &lost_for(GRACE)), Some((5, false, None)));
}

#[test]
fn a_node_that_is_not_there_is_lost_after_the_grace_and_one_that_nobody_has_heard_of_is_not() {
    let pool = host_pool();
    let gone = |seconds: i64| Seen {
        nodes: BTreeMap::new(),
        missing: BTreeMap::from([("a".to_owned(), NOW - seconds)]),
        ..settled(&pool)
    };
    assert_eq!(epoch(&pool, &gone(GRACE - 1)), Some((4, false, Some(1))));
    assert_eq!(epoch(&pool, &gone(GRACE)), Some((5, false, None)));
    let unheard = Seen { nodes: BTreeMap::new(), ..settled(&pool) };
    assert_eq!(epoch(&pool, &unheard), Some((4, false, Some(GRACE))));
}

#[test]
fn no_claim_leaves_its_node_while_most_nodes_are_lost_at_once() {
    let (pool, tenant) = (host_pool(), inspected());
    let tenants = [&tenant];
    let with = |seen: &Seen, outage: Outage| {
        let given = Given { outage, ..given(&pool, &tenants, seen) };
        let plan = plan(&given);
        let status = pool_status(&given, &plan, &pool);
        let degraded = status.conditions.into_iter().find(|one| one.type_ == "Degraded").unwrap();
        (plan.gpus[0].epoch.unwrap().number, plan.look_again(), degraded.reason)
    };
    let lost = lost_for(10 * GRACE);
    let outage = Outage { nodes: 9, holding: 5, not_ready: 3, last: NOW };
    assert_eq!(with(&lost, outage), (4, Some(GRACE), "NodesNotReady".to_owned()));
    assert_eq!(with(&settled(&pool), outage), (4, None, "AsExpected".to_owned()), "its own node is fine");
    // It is over: the grace begins anew.
    let over = |last: i64| Outage { not_ready: 2, last, ..outage };
    assert_eq!(with(&lost, over(NOW - GRACE + 1)), (4, Some(1), "AsExpected".to_owned()));
    assert_eq!(with(&lost, over(NOW - GRACE)), (5, None, "AsExpected".to_owned()));
    // A node that was deleted is no part of it.
    let missing = BTreeMap::from([("a".to_owned(), 0)]);
    let deleted = Seen { nodes: BTreeMap::new(), missing, ..settled(&pool) };
    assert_eq!(with(&deleted, outage).0, 5);
}

#[test]
fn a_cordoned_node_is_left_when_it_keeps_a_pod_from_every_other() {
    let pool = host_pool();
    let mut seen = settled(&pool);
    seen.nodes.get_mut("a").unwrap().cordoned = true;
    assert_eq!(epoch(&pool, &seen), Some((4, false, None)));
    let stuck =
        PodSeen { claim: "p-chat-0-e4".into(), unscheduled: Some("no node".into()), ..PodSeen::default() };
    seen.pods = vec![PodSeen { deleting: true, ..stuck.clone() }];
    assert_eq!(epoch(&pool, &seen), Some((4, false, None)));
    seen.pods = vec![stuck];
    assert_eq!(epoch(&pool, &seen), Some((5, false, None)));
}

#[test]
fn what_the_cluster_keeps_decides_and_nothing_else() {
    let pool = host_pool();
    let full = settled(&pool);
    // The claim was deleted: while it still goes its name is taken, and afterwards it is free again.
    let mut deleting = full.clone();
    deleting.claims[0].deleting = true;
    assert_eq!(epoch(&pool, &deleting), Some((5, false, None)));
    let deleted = Seen { claims: Vec::new(), ..full.clone() };
    assert_eq!(epoch(&pool, &deleted), Some((4, false, None)));
    // Nobody was ever there.
    assert_eq!(epoch(&pool, &Seen::default()), Some((1, false, None)));
}

#[test]
fn a_change_waits_for_tenants_unless_it_may_disturb_them() {
    let mut pool = host_pool();
    let mut seen = settled(&pool);
    seen.claims[0].digest = "another".into();
    assert_eq!(epoch(&pool, &seen), Some((4, true, None)));
    let empty = Seen { slots: Vec::new(), ..seen.clone() };
    assert_eq!(epoch(&pool, &empty), Some((5, false, None)));
    pool.spec.update_policy = sluice_types::pool::UpdatePolicy::Disruptive;
    assert_eq!(epoch(&pool, &seen), Some((5, false, None)));
}

#[test]
fn other_pods_of_a_node_take_host_memory_and_those_of_the_gpu_do_not() {
    let (pool, tenant) = (host_pool(), inspected());
    let tenants = [&tenant];
    let needs = {
        let seen = settled(&pool);
        let planned = plan(&given(&pool, &tenants, &seen));
        planned.tenants[0].slots[0].demand.pod.bytes()
    };
    let fits = |requested_bytes: u64, own: &PodSeen| {
        let mut seen = settled(&pool);
        let allocatable_bytes = needs + 100;
        seen.nodes.insert(
            "a".into(),
            NodeSeen { allocatable_bytes, requested_bytes, lost_since: None, cordoned: false },
        );
        seen.pods = vec![own.clone()];
        let plan = plan(&given(&pool, &tenants, &seen));
        let fits = plan.tenants[0].slots[0].on.is_ok();
        assert_eq!(plan.look_again(), (!fits).then_some(60), "what others give back is looked for");
        fits
    };
    let none = PodSeen::default();
    assert!(fits(100, &none));
    assert!(!fits(101, &none), "the node has no room for it");
    let own = PodSeen {
        claim: "p-chat-0-e3".into(),
        node: Some("a".into()),
        memory_bytes: needs,
        ..PodSeen::default()
    };
    assert!(fits(100 + needs, &own), "its own pod, of whichever epoch, is no other");
    assert!(
        !fits(100 + needs, &PodSeen { deleting: true, ..own.clone() }),
        "what leaves is not in the sum either"
    );
    assert!(!fits(100 + needs, &PodSeen { node: Some("b".into()), ..own }));
}

/// GPUs of two tenants, of whom the first is more important, and what is said of where the second one is.
fn after(edit: impl Fn(&mut GpuPool, &mut ModelTenant), ready: bool) -> ([bool; 2], String) {
    after_in(edit, ready, settled(&host_pool()))
}

fn after_in(
    edit: impl Fn(&mut GpuPool, &mut ModelTenant),
    ready: bool,
    mut seen: Seen,
) -> ([bool; 2], String) {
    let mut pool = host_pool();
    let slot = |name: &str| SlotSeen { tenant: name.into(), index: 0, claim: "p-chat-0-e4".into() };
    let pod = |name: &str| PodSeen {
        tenant: name.into(),
        claim: "p-chat-0-e4".into(),
        node: Some("a".into()),
        ready,
        ..PodSeen::default()
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
    let given = given(&pool, &tenants, &seen);
    let plan = plan(&given);
    let status = tenant_status(&given, &plan, &plan.tenants[1], None);
    let placed = status.conditions.into_iter().find(|one| one.type_ == "Placed").unwrap();
    ([0, 1].map(|tenant| plan.tenants[tenant].slots[0].on.is_ok()), placed.message)
}

#[test]
fn an_edit_that_takes_effect_at_once_takes_no_gpu_from_who_serves() {
    let policy = |pool: &mut GpuPool, _: &mut ModelTenant| pool.spec.policy = Policy::Recompute;
    let cap = |_: &mut GpuPool, tenant: &mut ModelTenant| tenant.spec.memory.max_remapped_percent = 0;
    let host = |pool: &mut GpuPool, _: &mut ModelTenant| {
        pool.spec.host_memory_per_gpu = sluice_types::Quantity::from_bytes(200 * MIB);
    };
    assert_eq!(after(|_, _| (), true), ([true, true], String::new()));
    for edit in [&policy as &dyn Fn(&mut GpuPool, &mut ModelTenant), &cap] {
        let (on, said) = after(edit, true);
        assert_eq!(on, [true, true]);
        assert!(said.contains("floors on p-chat-0 have grown") && said.contains("beyond it"), "{said}");
        assert_eq!(after(edit, false).0, [true, false], "nobody has started there");
        let silent = after_in(edit, false, lost_for(GRACE - 1)).0;
        assert_eq!(silent, [true, true], "who is on a node that says nothing may serve on");
    }
    for ready in [true, false] {
        assert_eq!(after(host, ready), ([true, true], String::new()), "they were admitted");
    }
}

#[test]
fn a_pod_that_has_ended_has_no_place_and_makes_no_claim_leave_its_node() {
    let (pool, tenant) = (host_pool(), inspected());
    let mut seen = settled(&pool);
    let pod = |name: &str| PodSeen {
        name: name.into(),
        tenant: "t".into(),
        claim: "p-chat-0-e4".into(),
        ..PodSeen::default()
    };
    let over = PodSeen { ended: Some(Ended::default()), ..pod("a") };
    seen.pods = vec![over.clone(), pod("b")];
    let tenants = [&tenant];
    let place = |seen: &Seen| {
        plan(&given(&pool, &tenants, seen)).pod("t", 0, "p-chat-0-e4").map(|pod| pod.name.clone())
    };
    assert_eq!(place(&seen).as_deref(), Some("b"));
    seen.pods = vec![PodSeen { unscheduled: Some("no node".into()), ..over }];
    assert_eq!(place(&seen), None);
    seen.nodes.get_mut("a").unwrap().cordoned = true;
    assert_eq!(epoch(&pool, &seen), Some((4, false, None)));
}
