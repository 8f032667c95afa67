//! Which claim a GPU's slots are on, and when that is another one.

use std::collections::BTreeMap;

use serde_json::json;
use sluice_plan::accept::Cluster;
use sluice_plan::objects::claim_digest;
use sluice_plan::outage::Outage;
use sluice_plan::report::{pool_status, tenant_status};
use sluice_plan::seen::{ClaimSeen, DeviceSeen, NodeSeen, PodSeen, Report, Seen, SlotSeen};
use sluice_plan::told::report;
use sluice_plan::unit::{Given, plan};
use sluice_types::pool::Policy;
use sluice_types::{GpuPool, ModelTenant};
use sluice_wire::state::{Activity, State};

use super::world::{self, MIB, first, host_pool, tenant};

const GRACE: i64 = 60;
const NOW: i64 = 1_000_000;

/// A tenant that serves on `p-chat-0-e4`, on the node `a`.
pub fn settled(pool: &GpuPool) -> Seen {
    let device = DeviceSeen { node: Some("a".into()), name: "gpu-0".into(), ..DeviceSeen::default() };
    let claim = ClaimSeen {
        name: "p-chat-0-e4".into(),
        digest: claim_digest(pool, &first(pool)),
        device: Some(device),
        ..ClaimSeen::default()
    };
    Seen {
        claims: vec![claim],
        slots: vec![SlotSeen { tenant: "t".into(), index: 0, claim: "p-chat-0-e4".into() }],
        nodes: BTreeMap::from([(
            "a".to_owned(),
            NodeSeen { allocatable_bytes: u64::MAX, ..NodeSeen::default() },
        )]),
        ..Seen::default()
    }
}

pub fn inspected() -> ModelTenant {
    let mut tenant = tenant("t", json!({}));
    let model = json!({"weightsBytes": 9, "layers": 8, "kvBytesPerToken": 1024, "globalBytes": 1 << 20,
        "layerBytes": 1 << 20, "maxModelLen": 1024, "activationBytes": 65536, "stepActivationBytes": 65536,
        "threadBytes": 0, "stagingBytes": 0});
    tenant.status = Some(serde_json::from_value(json!({"model": model})).unwrap());
    tenant
}

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

pub fn given<'a>(pool: &'a GpuPool, tenants: &'a [&'a ModelTenant], seen: &'a Seen) -> Given<'a> {
    let cluster = Cluster { image_volumes: true };
    let outage = Outage::default();
    Given { pool: Some(pool), tenants, seen, cluster, grace_seconds: GRACE, outage, now: NOW }
}

#[test]
fn a_pool_tells_whom_it_would_ask_for_memory() {
    let mut pool = host_pool();
    let mut seen = settled(&pool);
    let names = ["busy", "old", "recent", "silent"];
    let tenants = names.map(|name| {
        let mut tenant = inspected();
        tenant.metadata.name = Some(name.into());
        tenant
    });
    seen.slots =
        names.map(|name| SlotSeen { tenant: name.into(), index: 0, claim: "p-chat-0-e4".into() }).into();
    let used = |inactive_since_unix_ms, last| Report {
        activity: Activity { inactive_since_unix_ms, last_used_unix_ms: Some(last), ..Activity::default() },
        ..report(&State::default())
    };
    let told = [("busy", used(None, 90)), ("old", used(Some(1), 10)), ("recent", used(Some(1), 50))];
    let told = told.map(|(name, report)| ((name.to_owned(), "p-chat-0".to_owned()), report));
    seen.reports = BTreeMap::from(told);
    let tenants: Vec<&ModelTenant> = tenants.iter().collect();
    let order = |pool: &GpuPool| {
        let given = given(pool, &tenants, &seen);
        pool_status(&given, &plan(&given), pool).gpus.remove(0).victim_order
    };
    assert_eq!(order(&pool), ["recent", "old"], "who is active or has said nothing is no victim yet");
    pool.spec.remap.victim = sluice_types::pool::VictimRule::FixedOrder;
    assert_eq!(order(&pool), ["old", "recent"]);
}

#[test]
fn what_a_gpus_tenants_own_is_told_and_does_not_fall_because_one_is_silent() {
    let mut pool = host_pool();
    let mut seen = settled(&pool);
    let names = ["a", "b"];
    seen.slots =
        names.map(|name| SlotSeen { tenant: name.into(), index: 0, claim: "p-chat-0-e4".into() }).into();
    let tenants = names.map(|name| {
        let mut tenant = inspected();
        tenant.metadata.name = Some(name.into());
        tenant
    });
    let tenants: Vec<&ModelTenant> = tenants.iter().collect();
    let mut used = |owned: &[(&str, u64)]| {
        let owned = owned.iter().map(|(name, bytes)| (((*name).to_owned(), "p-chat-0".to_owned()), *bytes));
        seen.owned = owned.collect();
        let given = given(&pool, &tenants, &seen);
        let status = pool_status(&given, &plan(&given), &pool);
        pool.status = Some(status.clone());
        status.gpus[0].used.as_ref().map(sluice_types::Quantity::bytes)
    };
    assert_eq!(used(&[]), None);
    assert_eq!(used(&[("a", 10)]), Some(10));
    assert_eq!(used(&[("a", 10), ("b", 30)]), Some(40));
    assert_eq!(used(&[("a", 10), ("b", 5)]), Some(15), "it gave some back");
    assert_eq!(used(&[]), Some(15), "nobody has told anything to a new leader");
    assert_eq!(used(&[("b", 5)]), Some(15), "nor has a yet");
    assert_eq!(used(&[("a", 1), ("b", 5)]), Some(6));
}

#[test]
fn a_tenant_whose_kv_fits_nowhere_is_not_accepted() {
    let reason = |change: &dyn Fn(&mut GpuPool, &mut ModelTenant)| {
        let (mut pool, mut tenant) = (host_pool(), inspected());
        change(&mut pool, &mut tenant);
        let (seen, tenants) = (Seen::default(), [&tenant]);
        let given = given(&pool, &tenants, &seen);
        let plan = plan(&given);
        let status = tenant_status(&given, &plan, &plan.tenants[0], None);
        let accepted = status.conditions.into_iter().find(|one| one.type_ == "Accepted").unwrap();
        (accepted.reason, accepted.message)
    };
    assert_eq!(reason(&|_, _| ()).0, "AsExpected");
    let (short, message) = reason(&|_, tenant| {
        tenant.spec.memory.kv_limit = Some(sluice_types::Quantity::from_bytes(1 << 16));
    });
    assert_eq!(short, "ContextDoesNotFit");
    assert!(message.contains("spec.memory.kvLimit") && message.contains("1024 tokens"), "{message}");
    let (small, _) = reason(&|pool, _| {
        let host = pool.spec.device.as_mut().unwrap().host.as_mut().unwrap();
        host.chunk_bytes = sluice_types::Quantity::from_bytes(1 << 10);
    });
    assert_eq!(small, "ChunkTooSmall");
}

/// A proxied tenant whose weights take 10 GiB and a bit, on a GPU whose size only its claim tells.
fn large() -> ModelTenant {
    let spec = json!({"engine": {"kind": "Vllm", "image": "example.org/vllm:1"}});
    let mut large = tenant("t", spec);
    let mut status = inspected().status.unwrap();
    let model = status.model.as_mut().unwrap();
    (model.layers, model.layer_bytes) = (10, 1 << 30);
    large.status = Some(status);
    large
}

/// What `Accepted` says, and the pool as its status leaves it.
fn told(pool: &GpuPool, seen: &Seen) -> (String, GpuPool) {
    let tenant = large();
    let tenants = [&tenant];
    let given = given(pool, &tenants, seen);
    let plan = plan(&given);
    let conditions = tenant_status(&given, &plan, &plan.tenants[0], None).conditions;
    let accepted = conditions.into_iter().find(|one| one.type_ == "Accepted").unwrap();
    (accepted.reason, GpuPool { status: Some(pool_status(&given, &plan, pool)), ..pool.clone() })
}

#[test]
fn a_model_that_its_gpu_turned_out_too_small_for_is_not_tried_again() {
    let mut pool = super::world::pool(json!({"hostMemoryPerGPU": "64Gi"}));
    pool.metadata.generation = Some(1);
    let (fits, pool) = told(&pool, &Seen::default());
    assert_eq!(fits, "AsExpected", "nobody knows the GPU's size");
    let mut seen = settled(&pool);
    seen.claims[0].device.as_mut().unwrap().capacity_bytes = Some(8 << 30);
    let (small, mut pool) = told(&pool, &seen);
    assert_eq!(small, "ModelLargerThanGpu");
    // Deployment and claim are gone.
    for _ in 0..3 {
        let (still, after) = told(&pool, &Seen::default());
        assert_eq!(still, "ModelLargerThanGpu");
        pool = after;
    }
    pool.metadata.generation = Some(2);
    assert_eq!(told(&pool, &Seen::default()).0, "AsExpected", "it may ask for another GPU now");
    seen.claims[0].device.as_mut().unwrap().capacity_bytes = Some(16 << 30);
    let (large, pool) = told(&pool, &seen);
    let gpu = &pool.status.unwrap().gpus[0];
    assert_eq!((large.as_str(), gpu.capacity.as_ref().unwrap().bytes()), ("AsExpected", 16 << 30));
}

/// Shares of tenants alike, bytes, on a GPU of that many bytes, where their sidecars tell these floors, in whichever order.
fn dealt_to(capacity: u64, floors: &[u64]) -> Vec<u64> {
    let pool = host_pool();
    let mut seen = settled(&pool);
    seen.claims[0].device.as_mut().unwrap().capacity_bytes = Some(capacity);
    let names: Vec<String> = (0..floors.len()).map(|at| format!("t{at}")).collect();
    let tenant = |name: &String| {
        let mut tenant = inspected();
        tenant.metadata.name = Some(name.clone());
        tenant
    };
    let tenants: Vec<ModelTenant> = names.iter().map(tenant).collect();
    let slot = |name: &String| SlotSeen { tenant: name.clone(), index: 0, claim: "p-chat-0-e4".into() };
    seen.slots = names.iter().map(slot).collect();
    let tells = |(name, floor): (&String, &u64)| ((name.clone(), "p-chat-0".to_owned()), *floor);
    seen.floors = names.iter().zip(floors).map(tells).collect();
    let tenants: Vec<&ModelTenant> = tenants.iter().collect();
    let plan = plan(&given(&pool, &tenants, &seen));
    assert!(plan.tenants.iter().all(|tenant| tenant.slots[0].dealt), "{:?}", plan.tenants);
    plan.tenants.iter().map(|tenant| tenant.slots[0].share_bytes).collect()
}

/// Of two tenants on a GPU of 96 MiB, all in MiB.
fn dealt_by(floors: [u64; 2]) -> [u64; 2] {
    let dealt = dealt_to(96 * MIB, &floors.map(|floor| floor * MIB));
    [dealt[0] / MIB, dealt[1] / MIB]
}

#[test]
fn memory_of_contexts_is_dealt_to_nobody() {
    let mut tenant = inspected();
    tenant.spec.engine =
        serde_json::from_value(json!({"kind": "Vllm", "image": "example.org/vllm:1"})).unwrap();
    let dealt = |reserve: &str| {
        let device = json!({"contextReserve": reserve});
        let spec = json!({"deviceClassName": "gpu.nvidia.com", "device": device, "hostMemoryPerGPU": "64Gi"});
        let pool = world::pool(spec);
        let mut seen = settled(&pool);
        seen.claims[0].device.as_mut().unwrap().capacity_bytes = Some(96 * MIB);
        let tenants = [&tenant];
        let plan = plan(&given(&pool, &tenants, &seen));
        let slot = &plan.tenants[0].slots[0];
        assert!(slot.dealt, "{slot:?}");
        slot.share_bytes / MIB
    };
    assert_eq!((dealt("8Mi"), dealt("16Mi")), (88, 80), "of 96");
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
fn neighbours_hear_of_floors_as_they_were_told() {
    let pool = host_pool();
    let mut seen = settled(&pool);
    let tenant = inspected();
    let floor = |seen: &Seen| plan(&given(&pool, &[&tenant], seen)).tenants[0].slots[0].floor_bytes;
    let foreseen = floor(&seen);
    let chunk = 64 << 10;
    seen.floors.insert(("t".to_owned(), "p-chat-0".to_owned()), foreseen + chunk);
    assert_eq!(floor(&seen), foreseen + chunk);
    seen.floors.insert(("t".to_owned(), "p-chat-0".to_owned()), 1);
    assert_eq!(floor(&seen), foreseen);
}

#[test]
fn what_sidecars_find_to_be_their_floors_is_dealt_to_them() {
    assert_eq!(dealt_by([0, 0]), [48, 48], "what was foreseen is less");
    assert_eq!((dealt_by([60, 20]), dealt_by([20, 60])), ([60, 36], [36, 60]));
    assert_eq!(dealt_by([90, 90]), [48, 48], "as far as it goes");
    assert_eq!(dealt_by([96, 0]), dealt_by([1 << 30, 0]), "whatever it says");
}

#[test]
fn what_is_told_takes_nothing_of_what_was_foreseen_for_others() {
    let (pool, tenant) = (host_pool(), inspected());
    let foreseen = plan(&given(&pool, &[&tenant], &settled(&pool))).tenants[0].slots[0].floor_bytes;
    assert!(foreseen > 0);
    for capacity in [96 * MIB, 96 * MIB + 1000] {
        for told in [[u64::MAX, 0, 0], [60 * MIB, 60 * MIB, 0], [u64::MAX, 60 * MIB, u64::MAX]] {
            let dealt = dealt_to(capacity, &told);
            assert!(
                dealt.iter().all(|share| *share >= foreseen),
                "{foreseen} each, of {capacity}: {dealt:?}"
            );
            assert!(dealt.iter().sum::<u64>() <= capacity, "{capacity}: {dealt:?}");
        }
    }
}

#[test]
fn a_pool_that_is_being_deleted_takes_nobody_new() {
    let mut pool = host_pool();
    let reason = |pool: &GpuPool, seen: &Seen| {
        let tenant = inspected();
        let tenants = [&tenant];
        let given = given(pool, &tenants, seen);
        let plan = plan(&given);
        let conditions = tenant_status(&given, &plan, &plan.tenants[0], None).conditions;
        let accepted = conditions.into_iter().find(|one| one.type_ == "Accepted").unwrap();
        (accepted.reason, plan.tenants[0].slots.len())
    };
    assert_eq!(reason(&pool, &Seen::default()), ("AsExpected".to_owned(), 1));
    pool.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    assert_eq!(reason(&pool, &Seen::default()), ("PoolTerminating".to_owned(), 0));
    assert_eq!(reason(&pool, &settled(&pool)), ("AsExpected".to_owned(), 1), "who is there stays");
}

#[test]
fn a_ready_slot_that_takes_no_directive_is_degraded() {
    let pool = host_pool();
    let tenant = inspected();
    let mut seen = settled(&pool);
    seen.slots = vec![SlotSeen { tenant: "t".into(), index: 0, claim: "p-chat-0-e4".into() }];
    seen.untold = BTreeMap::from([(("t".into(), "p-chat-0".into()), "no answer".into())]);
    let mut degraded = |ready| {
        let pod = PodSeen { tenant: "t".into(), claim: "p-chat-0-e4".into(), ready, ..PodSeen::default() };
        seen.pods = vec![pod];
        let tenants = [&tenant];
        let given = given(&pool, &tenants, &seen);
        let plan = plan(&given);
        let conditions = tenant_status(&given, &plan, &plan.tenants[0], None).conditions;
        let found = conditions.into_iter().find(|one| one.type_ == "Degraded").unwrap();
        (found.status, found.reason, found.message)
    };
    let told = ("True".to_owned(), "DirectiveNotTaken".to_owned(), "no answer".to_owned());
    assert_eq!(degraded(true), told);
    assert_eq!(degraded(false).0, "False", "who starts was not told yet");
}
