//! Directives: what a sidecar receives about its peers.

use serde_json::json;
use sluice_plan::directives::{GpuPeers, MIN_REORDER_SECONDS, PeerSidecar, SlotPeer, next_directive};
use sluice_policy::ids::Nanos;
use sluice_policy::peers::{Peer, victim};
use sluice_types::ModelTenant;
use sluice_wire::Directive;
use sluice_wire::directive::Sharing;
use sluice_wire::state::Activity;

use super::fixtures::{MIB, host_pool, tenant};

fn slot_peer(tenant: &ModelTenant, host: u8) -> SlotPeer<'_> {
    let name = tenant.metadata.name.as_deref().unwrap();
    SlotPeer {
        tenant,
        share_bytes: 48 * MIB,
        is_share_assigned: true,
        floor_bytes: 25 * MIB,
        sidecar: PeerSidecar {
            pod_uid: Some(format!("pod-of-{name}")),
            admin: ([10, 0, 0, host], 8001).into(),
            activity: None,
        },
    }
}

fn used(inactive: Option<u64>, last: u64) -> Option<Activity> {
    let activity = Activity { inactive_since_unix_ms: inactive, ..Activity::default() };
    Some(Activity { last_used_unix_ms: Some(last), ..activity })
}

/// Returns the directive of `chat` with four peers: two idle ones, a busy one and one without a report.
fn directive_for(victim: &str, change: impl FnOnce(&mut Vec<SlotPeer<'_>>)) -> Directive {
    let mut pool = host_pool();
    pool.spec.remap =
        serde_json::from_value(json!({"victim": victim, "minResidenceMilliseconds": 700})).unwrap();
    let names = ["chat", "silent", "busy", "old", "recent"];
    let idle = json!({"priority": 3, "idle": {"afterSeconds": 20, "hibernateAfterSeconds": 90}});
    let tenants: Vec<_> = names.map(|name| tenant(name, idle.clone())).into();
    let mut members: Vec<_> = tenants.iter().zip(1..).map(|(tenant, host)| slot_peer(tenant, host)).collect();
    members[2].sidecar.activity = used(None, 90);
    members[3].sidecar.activity = used(Some(10), 10);
    members[4].sidecar.activity = used(Some(50), 50);
    change(&mut members);
    let (sharing, claim_uid, gpu_uuid) = (Sharing::Spatial, Some("claim"), Some("GPU-1"));
    GpuPeers { pool: &pool, sharing, claim_uid, gpu_uuid, peers: members }.directive(0)
}

#[test]
fn a_directive_names_the_others_with_their_addresses_and_is_what_a_sidecar_reads() {
    let directive = directive_for("MostRecentlyUsed", |_| ());
    let names: Vec<_> = directive.peers.iter().map(|peer| peer.name.as_str()).collect();
    assert_eq!(names, ["busy", "old", "recent", "silent"], "by name, and never itself");
    let old = &directive.peers[1];
    assert_eq!((old.pod_uid.as_deref(), old.claim_uid.as_deref()), (Some("pod-of-old"), Some("claim")));
    assert_eq!((old.admin, old.priority), (([10, 0, 0, 4], 8001).into(), 3));
    assert_eq!((old.share_bytes, old.floor_bytes), (48 * MIB, 25 * MIB));
    let rule = &directive.tenant;
    assert_eq!((rule.priority, rule.max_remapped_percent, rule.share_bytes), (3, 60, Some(48 * MIB)));
    assert_eq!((rule.idle_after_seconds, rule.hibernate_after_seconds), (20, Some(90)));
    assert_eq!((directive.policy.as_str(), directive.min_residence_ms), ("Unified", 700));
    assert_eq!(directive.gpu_uuid.as_deref(), Some("GPU-1"));
    let text = serde_json::to_vec(&directive).unwrap();
    assert_eq!(Directive::from_json(&text).unwrap(), directive);
}

/// Returns these peers, by name, activity and priority, in the order in which a sidecar that knows their states asks
/// them.
fn asked_by_a_sidecar(peers: &[(String, Activity, i32)], rule: victim::VictimRule) -> Vec<String> {
    let nanos = |unix_ms: Option<u64>| Nanos(unix_ms.unwrap_or(0) * 1_000_000);
    let view = |(index, (_, activity, priority)): (u32, &(String, Activity, i32))| victim::PeerView {
        peer: Peer { index, instance: 1 },
        priority: *priority,
        reachable: true,
        live: Some(victim::PeerState {
            active: activity.inactive_since_unix_ms.is_none(),
            last_used: nanos(activity.last_used_unix_ms),
            lendable_chunks: 1,
            ..victim::PeerState::default()
        }),
    };
    let views: Vec<_> = (0..).zip(peers).map(view).collect();
    let asker =
        victim::Borrower { priority: i32::MAX, need_chunks: u32::MAX, rule, ..victim::Borrower::default() };
    let asked = victim::order(&views, &asker, nanos(Some(1000)));
    asked.into_iter().map(|one| peers[one.peer.index as usize].0.clone()).collect()
}

#[test]
fn order_without_live_state_is_that_of_a_sidecar_with_live_state() {
    let mut peers = Vec::new();
    for (at, priority) in [(1, 7), (2, 3), (3, 7), (4, 3)] {
        for (suffix, inactive) in [("busy", None), ("idle", Some(5))] {
            peers.push((
                format!("t{at}-{suffix}"),
                used(inactive, 100 + at * 10 + priority).unwrap(),
                priority,
            ));
        }
    }
    let peers: Vec<(String, Activity, i32)> =
        peers.into_iter().map(|(name, activity, priority)| (name, activity, priority as i32)).collect();
    let tenants: Vec<_> =
        peers.iter().map(|(name, _, priority)| tenant(name, json!({"priority": priority}))).collect();
    for (written, rule) in [
        ("MostRecentlyUsed", victim::VictimRule::MostRecentlyUsed),
        ("LeastRecentlyUsed", victim::VictimRule::LeastRecentlyUsed),
    ] {
        let directive = directive_for(written, |members| {
            members.truncate(1);
            for (tenant, (_, activity, _)) in tenants.iter().zip(&peers) {
                let mut peer = slot_peer(Box::leak(Box::new(tenant.clone())), 9);
                peer.sidecar.activity = Some(activity.clone());
                members.push(peer);
            }
        });
        assert_eq!(directive.fallback_order, asked_by_a_sidecar(&peers, rule), "{written}");
    }
}

#[test]
fn inactive_peers_come_first_then_priority_then_victim_rule() {
    let order = |victim| directive_for(victim, |_| ()).fallback_order;
    assert_eq!(order("MostRecentlyUsed"), ["recent", "old", "busy", "silent"]);
    assert_eq!(order("LeastRecentlyUsed"), ["old", "recent", "busy", "silent"]);
    assert_eq!(order("FixedOrder"), ["busy", "old", "recent", "silent"]);
    let mut low = tenant("busy", json!({"priority": 1}));
    low.spec.priority = 1;
    let directive = directive_for("MostRecentlyUsed", |members| {
        members[2].sidecar.activity = used(Some(1), 1);
        members[2].tenant = Box::leak(Box::new(low));
    });
    assert_eq!(directive.fallback_order, ["busy", "recent", "old", "silent"]);
}

#[test]
fn floor_above_share_is_sent_as_share() {
    let directive = directive_for("MostRecentlyUsed", |members| members[1].share_bytes = MIB);
    let silent = directive.peers.iter().find(|peer| peer.name == "silent").unwrap();
    assert_eq!((silent.share_bytes, silent.floor_bytes), (MIB, MIB));
}

#[test]
fn unknown_share_is_not_sent() {
    let own = |change: &dyn Fn(&mut SlotPeer<'_>)| {
        directive_for("FixedOrder", |members| change(&mut members[0])).tenant
    };
    assert_eq!(own(&|_| ()).share_bytes, Some(48 * MIB));
    assert_eq!(own(&|member| member.is_share_assigned = false).share_bytes, None);
    let proxied = tenant("chat", json!({"engine": {"kind": "Vllm"}}));
    let proxied: &ModelTenant = Box::leak(Box::new(proxied));
    assert_eq!(own(&|member| member.tenant = proxied).share_bytes, None, "its memory is its own");
}

#[test]
fn changed_share_or_cap_is_sent_immediately() {
    let first = next_directive(None, directive_for("FixedOrder", |_| ()), 1000).unwrap();
    let share = directive_for("FixedOrder", |members| members[0].share_bytes = MIB);
    assert_eq!(next_directive(Some(&first), share, 1001).unwrap().directive.tenant.share_bytes, Some(MIB));
    let capped = tenant("chat", json!({"memory": {"maxRemappedPercent": 0}}));
    let capped: &ModelTenant = Box::leak(Box::new(capped));
    let cap = directive_for("FixedOrder", |members| members[0].tenant = capped);
    assert_eq!(next_directive(Some(&first), cap, 1001).unwrap().directive.tenant.max_remapped_percent, 0);
}

#[test]
fn order_changes_at_most_every_half_minute() {
    let first = next_directive(None, directive_for("MostRecentlyUsed", |_| ()), 1000).unwrap();
    assert_eq!(next_directive(Some(&first), (*first.directive).clone(), 9000), None);
    let other = directive_for("MostRecentlyUsed", |members| members[3].sidecar.activity = used(Some(99), 99));
    assert_ne!(other.fallback_order, first.directive.fallback_order);
    assert_eq!(next_directive(Some(&first), other.clone(), 1000 + MIN_REORDER_SECONDS - 1), None);
    let second = next_directive(Some(&first), other, 1000 + MIN_REORDER_SECONDS).unwrap();
    assert_eq!(second.order_changed_at, 1000 + MIN_REORDER_SECONDS);
    // Any other change is sent at once, and does not delay a change of the order.
    let moved =
        directive_for("MostRecentlyUsed", |members| members[1].sidecar.admin = ([10, 0, 0, 99], 8001).into());
    let at_once = next_directive(Some(&first), moved, 1001).unwrap();
    assert_eq!(at_once.order_changed_at, 1000);
}
