//! A pending update of the pool restarts no pod before its GPU has no tenant.

use serde_json::{Value, json};
use sluice_plan::gpu_settings::GpuSettings;
use sluice_plan::objects::{SETTINGS, claim, slot_children};
use sluice_plan::observed::ObservedPool;
use sluice_plan::pool_plan::{PoolPlan, plan};
use sluice_plan::report::pool_status;
use sluice_types::conditions::Reason;
use sluice_types::pool::UpdatePolicy;
use sluice_types::{GpuPool, ModelTenant};

use super::fixtures::{first_gpu, host_pool, pool, release};
use super::fixtures::{inspected, placed_and_ready, plan_context};

/// Updates of the pool of the tests that running pods cannot take up.
const CHANGES: [&str; 9] = [
    r#"{"device": {"host": {"memory": "128Mi"}}}"#,
    r#"{"device": {"host": {"chunkBytes": "128Ki"}}}"#,
    r#"{"device": {"host": {"linkBytesPerSecond": "1Gi"}}}"#,
    r#"{"gpus": [{"name": "chat", "sharing": {"mode": "Spatial"}}]}"#,
    r#"{"gpus": [{"name": "chat", "sharing": {"temporal": {"maxQuantumMilliseconds": 70}}}]}"#,
    r#"{"gpus": [{"name": "chat", "sharing": {"temporal": {"order": "Priority"}}}]}"#,
    r#"{"nodeSelector": {"disk": "fast"}}"#,
    r#"{"tolerations": [{"key": "gpu", "operator": "Exists"}]}"#,
    r#"{"runtimeClassName": "nvidia"}"#,
];

fn parse(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// A pool of host memory with an update.
fn changed(change: Value, update: UpdatePolicy) -> GpuPool {
    let host = json!({"memory": "96Mi"});
    let mut spec = json!({"deviceClassName": "host.sluice.dev", "device": {"host": host}});
    for (key, value) in change.as_object().expect("an object") {
        match spec[key]["host"].as_object_mut().zip(value["host"].as_object()) {
            Some((host, more)) => host.extend(more.clone()),
            None => spec[key] = value.clone(),
        }
    }
    let mut pool = pool(spec);
    pool.spec.update_policy = update;
    pool
}

/// A tenant that serves on a claim built from `pool`.
fn serving(pool: &GpuPool) -> ObservedPool {
    let mut seen = placed_and_ready(pool);
    let made = claim(pool, &first_gpu(pool), 4);
    let kept = made.metadata.annotations.expect("annotations");
    seen.claims[0].settings = GpuSettings::from_json(&kept[SETTINGS]);
    seen.claims[0].mode = Some(first_gpu(pool).settings.sharing.mode);
    seen
}

/// Configuration and Deployment of every slot.
fn rendered(pool: &GpuPool, seen: &ObservedPool) -> Vec<Value> {
    let tenant = inspected();
    let tenants = [&tenant];
    let plan = plan(&plan_context(pool, &tenants, seen));
    slots(&plan, pool)
}

fn slots(plan: &PoolPlan<'_>, pool: &GpuPool) -> Vec<Value> {
    let all = plan.tenants.iter().flat_map(|tenant| tenant.slots.iter().map(move |slot| (tenant, slot)));
    let placed = all.map(|(tenant, slot)| plan.placed_slot(pool, tenant, slot).expect("a placed slot"));
    placed.flat_map(|placed| slot_children(&placed, &release())).map(|child| child.body).collect()
}

#[test]
fn pods_stay_as_they_are_until_the_change_is_carried_out() {
    let before = host_pool();
    let seen = serving(&before);
    let now = rendered(&before, &seen);
    assert_eq!(now.len(), 2);
    for change in CHANGES {
        let later = changed(parse(change), UpdatePolicy::WhenEmpty);
        assert_eq!(rendered(&later, &seen), now, "{change}");
        let at_once = changed(parse(change), UpdatePolicy::Disruptive);
        let other = rendered(&at_once, &seen);
        assert_eq!(other[1]["metadata"]["annotations"]["sluice.dev/claim"], "p-chat-0-e5", "{change}");
        // On a GPU without tenants the result is the same, except for the claim.
        let fresh = rendered(&at_once, &ObservedPool::default());
        let pod = |all: &[Value]| {
            let mut pod = all[1]["spec"]["template"]["spec"].clone();
            pod["resourceClaims"] = Value::Null;
            pod
        };
        assert_eq!(pod(&other), pod(&fresh), "{change}");
    }
}

#[test]
fn pool_reports_pending_update_until_gpu_is_empty() {
    let seen = serving(&host_pool());
    let empty = ObservedPool { slots: Vec::new(), ..seen.clone() };
    let tenant = inspected();
    let tenants = [&tenant];
    let degraded = |pool: &GpuPool, seen: &ObservedPool| {
        let given = plan_context(pool, &tenants, seen);
        let plan = plan(&given);
        let status = pool_status(&given, &plan, pool);
        let found = status.conditions.into_iter().find(|one| one.type_ == "Degraded").expect("Degraded");
        (found.reason, plan.gpus[0].epoch.expect("an epoch").number)
    };
    assert_eq!(degraded(&host_pool(), &seen), ("AsExpected".to_owned(), 4));
    for change in CHANGES {
        let pool = changed(parse(change), UpdatePolicy::WhenEmpty);
        assert_eq!(degraded(&pool, &seen), ("UpdateWaits".to_owned(), 4), "{change}");
        assert_eq!(degraded(&pool, &empty), ("AsExpected".to_owned(), 5), "{change}");
    }
}

#[test]
fn a_default_that_is_written_out_is_no_change() {
    let seen = serving(&host_pool());
    let same = r#"{"gpus": [{"name": "chat", "sharing": {"mode": "Temporal", "temporal": {"minQuantumMilliseconds": 5}}}]}"#;
    for update in [UpdatePolicy::WhenEmpty, UpdatePolicy::Disruptive] {
        let pool = changed(parse(same), update);
        let tenant = inspected();
        let tenants = [&tenant];
        let plan = plan(&plan_context(&pool, &tenants, &seen));
        let epoch = plan.gpus[0].epoch.expect("an epoch");
        assert_eq!((epoch.number, epoch.is_update_pending), (4, false));
    }
}

#[test]
fn claim_without_settings_uses_current_settings() {
    let mut seen = serving(&host_pool());
    seen.claims[0].settings = None;
    let pool = changed(parse(r#"{"runtimeClassName": "nvidia"}"#), UpdatePolicy::Disruptive);
    let deployment = &rendered(&pool, &seen)[1];
    assert_eq!(deployment["metadata"]["annotations"]["sluice.dev/claim"], "p-chat-0-e4");
    assert_eq!(deployment["spec"]["template"]["spec"]["runtimeClassName"], "nvidia");
}

/// Whether a serving and a new tenant have the GPU, and the chunk sizes in their configuration.
fn with_pending_small_chunks(update: UpdatePolicy) -> (Vec<bool>, Vec<Value>) {
    let seen = serving(&host_pool());
    let mut new = inspected();
    new.metadata.name = Some("u".into());
    let (old, pool) = (inspected(), changed(parse(r#"{"device": {"host": {"chunkBytes": "1Ki"}}}"#), update));
    let tenants: [&ModelTenant; 2] = [&old, &new];
    let plan = plan(&plan_context(&pool, &tenants, &seen));
    let has = |tenant: &sluice_plan::pool_plan::TenantPlan<'_>| {
        tenant.slots.iter().any(|slot| slot.gpu_index.is_ok())
    };
    let text = |body: &Value| parse(body["data"]["sidecar.json"].as_str().expect("a configuration"));
    let configs = slots(&plan, &pool).into_iter().filter(|body| body["kind"] == "ConfigMap");
    let chunks = configs.map(|body| text(&body)["gpu"]["chunk_bytes"].clone()).collect();
    (plan.tenants.iter().map(has).collect(), chunks)
}

#[test]
fn tenant_is_validated_by_settings_in_force() {
    // A block of 16 tokens takes 2 KiB and does not fit into a new chunk.
    let (placed, chunks) = with_pending_small_chunks(UpdatePolicy::WhenEmpty);
    assert_eq!((placed, chunks), (vec![true, false], vec![json!(64 << 10)]));
    assert_eq!(with_pending_small_chunks(UpdatePolicy::Disruptive).0, [false, false]);
}

/// A pool of two GPUs of `chat`. A tenant, which may name the group, serves on the second.
fn two(named: bool) -> (ModelTenant, ObservedPool) {
    let pool = changed(parse(r#"{"gpus": [{"name": "chat", "count": 2}]}"#), UpdatePolicy::WhenEmpty);
    let mut seen = serving(&pool);
    seen.claims[0].name = "p-chat-1-e4".into();
    seen.slots[0].claim = "p-chat-1-e4".into();
    let mut tenant = inspected();
    tenant.spec.gpu_group = named.then(|| "chat".to_owned());
    (tenant, seen)
}

/// Updates of that pool that remove the second GPU of `chat`.
const SMALLER: [&str; 3] = [
    r#"{"gpus": [{"name": "chat"}]}"#,
    r#"{"gpus": [{"name": "other"}]}"#,
    r#"{"gpus": [{"name": "chat", "sharing": {"mode": "Spatial"}}], "runtimeClassName": "nvidia"}"#,
];

#[test]
fn removed_gpu_stays_until_empty() {
    for named in [false, true] {
        let (tenant, seen) = two(named);
        let tenants = [&tenant];
        let before = changed(parse(r#"{"gpus": [{"name": "chat", "count": 2}]}"#), UpdatePolicy::WhenEmpty);
        let now = slots(&plan(&plan_context(&before, &tenants, &seen)), &before);
        assert_eq!(now.len(), 2);
        for change in SMALLER {
            let later = changed(parse(change), UpdatePolicy::WhenEmpty);
            let given = plan_context(&later, &tenants, &seen);
            let plan = plan(&given);
            assert_eq!(slots(&plan, &later), now, "{change}");
            let status = pool_status(&given, &plan, &later);
            let degraded = status.conditions.iter().find(|one| one.type_ == "Degraded").expect("Degraded");
            assert_eq!(degraded.reason, "UpdateWaits", "{change}");
            let last = status.gpus.last().expect("a GPU");
            assert_eq!((last.name.as_str(), last.tenants.len()), ("p-chat-1", 1));
        }
    }
}

#[test]
fn removed_gpu_accepts_no_slot_and_is_deleted_with_last_slot() {
    let names = |pool: &GpuPool, seen: &ObservedPool, tenants: &[&ModelTenant]| -> Vec<String> {
        let plan = plan(&plan_context(pool, tenants, seen));
        let on = plan
            .tenants
            .iter()
            .flat_map(|tenant| tenant.slots.iter().map(|slot| slot.gpu_index.as_ref().ok()));
        on.map(|at| at.map(|at| plan.gpus[*at].gpu.name.clone()).unwrap_or_default()).collect()
    };
    let (tenant, seen) = two(false);
    let mut new = tenant.clone();
    new.metadata.name = Some("u".into());
    new.spec.replicas = 2;
    let smaller = changed(parse(SMALLER[1]), UpdatePolicy::WhenEmpty);
    assert_eq!(names(&smaller, &seen, &[&tenant, &new]), ["p-chat-1", "p-other-0", ""]);
    let empty = ObservedPool { slots: Vec::new(), ..seen.clone() };
    assert_eq!(names(&smaller, &empty, &[&tenant, &new]), ["p-other-0", "p-other-0", ""]);
    let at_once = changed(parse(SMALLER[1]), UpdatePolicy::Disruptive);
    assert_eq!(names(&at_once, &seen, &[&tenant, &new]), ["p-other-0", "p-other-0", ""]);
    let (named, _) = two(true);
    let mut late = named.clone();
    late.metadata.name = Some("u".into());
    let found = plan(&plan_context(&smaller, &[&named, &late], &seen))
        .tenants
        .iter()
        .map(|one| one.accepted().reason)
        .collect::<Vec<_>>();
    assert_eq!(found, [Reason::AsExpected, Reason::GroupNotFound], "who is not there has no such group");
    assert!(names(&at_once, &seen, &[&named]).is_empty());
}

#[test]
fn removed_gpu_is_not_recreated() {
    let lost = |seen: &mut ObservedPool| seen.nodes.get_mut("a").expect("its node").lost_since = Some(0);
    let deleted = |seen: &mut ObservedPool| seen.claims.clear();
    for gone in [&lost as &dyn Fn(&mut ObservedPool), &deleted] {
        let (tenant, mut seen) = two(true);
        gone(&mut seen);
        let tenants = [&tenant];
        for (change, goes) in [(SMALLER[0], Some("p-chat-0")), (SMALLER[1], None)] {
            let pool = changed(parse(change), UpdatePolicy::WhenEmpty);
            let plan = plan(&plan_context(&pool, &tenants, &seen));
            let on = plan.tenants[0].slots.iter().filter_map(|slot| slot.gpu_index.as_ref().ok());
            let on: Vec<&str> = on.map(|at| plan.gpus[*at].gpu.name.as_str()).collect();
            assert_eq!(on, Vec::from_iter(goes), "{change}");
            assert!(plan.gpus.iter().all(|planned| planned.gpu.name != "p-chat-1"), "{change}");
            let reason = plan.tenants[0].accepted().reason;
            let expected = if goes.is_some() { Reason::AsExpected } else { Reason::GroupNotFound };
            assert_eq!(reason, expected, "{change}");
        }
    }
}
