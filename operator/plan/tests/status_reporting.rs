//! Statuses of observed pools and tenants.

use std::collections::BTreeMap;

use sluice_plan::observed::{ObservedPod, ObservedSlot, SidecarReport};
use sluice_plan::pool_plan::plan;
use sluice_plan::report::{pool_status, tenant_status};
use sluice_plan::sidecar_report::report;
use sluice_types::{GpuPool, ModelTenant};
use sluice_wire::state::{Activity, State};

use super::fixtures::{host_pool, inspected, placed_and_ready, plan_context};

#[test]
fn pool_status_lists_victim_order() {
    let mut pool = host_pool();
    let mut seen = placed_and_ready(&pool);
    let names = ["busy", "old", "recent", "silent"];
    let tenants = names.map(|name| {
        let mut tenant = inspected();
        tenant.metadata.name = Some(name.into());
        tenant
    });
    seen.slots =
        names.map(|name| ObservedSlot { tenant: name.into(), index: 0, claim: "p-chat-0-e4".into() }).into();
    let used = |inactive_since_unix_ms, last| SidecarReport {
        activity: Activity { inactive_since_unix_ms, last_used_unix_ms: Some(last), ..Activity::default() },
        ..report(&State::default())
    };
    let reports = [("busy", used(None, 90)), ("old", used(Some(1), 10)), ("recent", used(Some(1), 50))];
    let reports = reports.map(|(name, report)| ((name.to_owned(), "p-chat-0".to_owned()), report));
    seen.reports = BTreeMap::from(reports);
    let tenants: Vec<&ModelTenant> = tenants.iter().collect();
    let order = |pool: &GpuPool| {
        let given = plan_context(pool, &tenants, &seen);
        pool_status(&given, &plan(&given), pool).gpus.remove(0).victim_order
    };
    assert_eq!(order(&pool), ["recent", "old"], "who is active or has said nothing is no victim yet");
    pool.spec.remap.victim = sluice_types::pool::VictimRule::FixedOrder;
    assert_eq!(order(&pool), ["old", "recent"]);
}

#[test]
fn used_memory_does_not_drop_while_one_sidecar_is_silent() {
    let mut pool = host_pool();
    let mut seen = placed_and_ready(&pool);
    let names = ["a", "b"];
    seen.slots =
        names.map(|name| ObservedSlot { tenant: name.into(), index: 0, claim: "p-chat-0-e4".into() }).into();
    let tenants = names.map(|name| {
        let mut tenant = inspected();
        tenant.metadata.name = Some(name.into());
        tenant
    });
    let tenants: Vec<&ModelTenant> = tenants.iter().collect();
    let mut used = |owned: &[(&str, u64)]| {
        let owned = owned.iter().map(|(name, bytes)| (((*name).to_owned(), "p-chat-0".to_owned()), *bytes));
        seen.owned = owned.collect();
        let given = plan_context(&pool, &tenants, &seen);
        let status = pool_status(&given, &plan(&given), &pool);
        pool.status = Some(status.clone());
        status.gpus[0].used.as_ref().map(sluice_types::Quantity::bytes)
    };
    assert_eq!(used(&[]), None);
    assert_eq!(used(&[("a", 10)]), Some(10));
    assert_eq!(used(&[("a", 10), ("b", 30)]), Some(40));
    assert_eq!(used(&[("a", 10), ("b", 5)]), Some(15), "it gave some back");
    assert_eq!(used(&[]), Some(15), "no sidecar has reported to a new leader");
    assert_eq!(used(&[("b", 5)]), Some(15), "nor has a yet");
    assert_eq!(used(&[("a", 1), ("b", 5)]), Some(6));
}

#[test]
fn a_ready_slot_that_takes_no_directive_is_degraded() {
    let pool = host_pool();
    let tenant = inspected();
    let mut seen = placed_and_ready(&pool);
    seen.slots = vec![ObservedSlot { tenant: "t".into(), index: 0, claim: "p-chat-0-e4".into() }];
    seen.directive_errors = BTreeMap::from([(("t".into(), "p-chat-0".into()), "no answer".into())]);
    let mut degraded = |ready| {
        let pod = ObservedPod {
            tenant: "t".into(),
            claim: "p-chat-0-e4".into(),
            is_ready: ready,
            ..ObservedPod::default()
        };
        seen.pods = vec![pod];
        let tenants = [&tenant];
        let given = plan_context(&pool, &tenants, &seen);
        let plan = plan(&given);
        let conditions = tenant_status(&given, &plan, &plan.tenants[0], None).conditions;
        let found = conditions.into_iter().find(|one| one.type_ == "Degraded").unwrap();
        (found.status, found.reason, found.message)
    };
    let expected = ("True".to_owned(), "DirectiveNotTaken".to_owned(), "no answer".to_owned());
    assert_eq!(degraded(true), expected);
    assert_eq!(degraded(false).0, "False", "a sidecar that starts has no directive yet");
}

#[test]
fn a_status_names_no_more_gpus_than_it_may() {
    let mut pool = host_pool();
    let seen = placed_and_ready(&pool);
    (pool.spec.gpus[0].name, pool.spec.gpus[0].count) = ("a".into(), 1024);
    let tenant = inspected();
    let tenants = [&tenant];
    let given = plan_context(&pool, &tenants, &seen);
    let plan = plan(&given);
    assert_eq!(plan.gpus.len(), 1025, "one stays until it is empty");
    assert_eq!(pool_status(&given, &plan, &pool).gpus.len(), 1024);
}
