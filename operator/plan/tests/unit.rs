//! Which claim a GPU's slots are on, and when that is another one.

use std::collections::BTreeMap;

use serde_json::json;
use sluice_plan::accept::Cluster;
use sluice_plan::objects::claim_digest;
use sluice_plan::seen::{ClaimSeen, DeviceSeen, NodeSeen, PodSeen, Seen, SlotSeen};
use sluice_plan::unit::{Given, plan};
use sluice_types::{GpuPool, ModelTenant};

use super::world::{first, host_pool, tenant};

const GRACE: i64 = 60;
const NOW: i64 = 1_000_000;

/// A tenant that serves on `p-chat-0-e4`, on the node `a`.
fn settled(pool: &GpuPool) -> Seen {
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

fn inspected() -> ModelTenant {
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
    let cluster = Cluster { image_volumes: true };
    let given =
        Given { pool: Some(pool), tenants: &[&tenant], seen, cluster, grace_seconds: GRACE, now: NOW };
    let plan = plan(&given);
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
    let gone = Seen { nodes: BTreeMap::new(), ..settled(&pool) };
    assert_eq!(epoch(&pool, &gone), Some((5, false, None)));
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
