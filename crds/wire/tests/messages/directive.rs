//! The directive.

use serde_json::{Value, json};
use sluice_wire::directive::{
    CurrentFence, Directive, Fence, MAX_PEERS, PeerInfo, Sharing, SliceOrder, TenantRule, VERSION, VictimRule,
};
use sluice_wire::message::ReadError;

use super::golden;

const GOLDEN: &str = include_str!("../golden/directive-v2.json");
const V1: &str = include_str!("../golden/directive-v1.json");

fn directive() -> Directive {
    let peer = |name: &str, host: u8, pod: Option<&str>| PeerInfo {
        namespace: "default".into(),
        name: name.into(),
        pod_uid: pod.map(Into::into),
        claim_uid: pod.map(|_| "0d0a5a0e-7a52-4b5e-a9b0-0f0c5a1e2d3c".into()),
        admin: ([10, 1, 0, host], 8001).into(),
        priority: -5,
        share_bytes: 67_108_864,
        floor_bytes: 33_554_432,
    };
    Directive {
        version: VERSION,
        epoch: 3,
        sequence: 18_446_744_073_709_551_615,
        policy: "Oneiros".into(),
        tenant: TenantRule {
            priority: 100,
            max_remapped_percent: 60,
            share_bytes: Some(50_331_648),
            hibernate_after_seconds: Some(600),
            idle_after_seconds: 30,
        },
        gpu_uuid: Some("GPU-5c2f6a1e-8a53-4b6e-9d0f-2f1d9b11e2a4".into()),
        sharing: Sharing::Temporal { order: SliceOrder::RoundRobin, min_quantum_ms: 5, max_quantum_ms: 50 },
        victim: VictimRule::MostRecentlyUsed,
        min_residence_ms: 500,
        revoke_bound_ms: 200,
        peers: vec![peer("code", 7, Some("6f4de2a1-5d0b-4a53-9f0e-3f6b2f1d9b11")), peer("chat", 9, None)],
        fallback_order: vec!["chat".into()],
    }
}

#[test]
fn the_directive_is_written_and_read_as_committed() {
    golden::written_as(&directive(), GOLDEN);
    assert_eq!(Directive::from_json(GOLDEN.as_bytes()).expect("golden"), directive());
    assert_eq!(directive().fence(), Fence { epoch: 3, sequence: u64::MAX });
    let current = serde_json::to_string(&CurrentFence { current: Fence { epoch: 3, sequence: 4 } });
    assert_eq!(current.expect("it serialises"), r#"{"current":{"epoch":3,"sequence":4}}"#);
}

#[test]
fn version_1_is_read_and_written() {
    let older = Directive { version: 1, ..directive() };
    assert_eq!(Directive::from_json(V1.as_bytes()).expect("golden"), older);
    let written: Value =
        serde_json::from_slice(&directive().to_json_v1().expect("it serialises")).expect("JSON");
    assert_eq!(written, serde_json::from_str::<Value>(V1).expect("golden"));
}

#[test]
fn the_epoch_counts_before_the_sequence() {
    let fence = |epoch, sequence| Fence { epoch, sequence };
    assert!(fence(2, 0) > fence(1, u64::MAX) && fence(2, 1) > fence(2, 0));
    assert_eq!(fence(7, 9).to_string(), "(7, 9)");
}

#[test]
fn every_sharing_mode_is_read() {
    for (json, sharing) in [
        (json!("Spatial"), Sharing::Spatial),
        (json!("Isolated"), Sharing::Isolated),
        (
            json!({"Temporal": {"order": "Priority", "min_quantum_ms": 7, "max_quantum_ms": 7}}),
            Sharing::Temporal { order: SliceOrder::Priority, min_quantum_ms: 7, max_quantum_ms: 7 },
        ),
    ] {
        let read = Directive::from_json(&golden::with(GOLDEN, "/sharing", json)).expect("readable");
        assert_eq!(read, Directive { sharing, ..directive() });
    }
}

#[test]
fn a_newer_writer_may_add_fields_and_not_a_major() {
    for at in ["/added", "/tenant/added", "/peers/0/added", "/sharing/Temporal/added"] {
        let read = Directive::from_json(&golden::with(GOLDEN, at, json!({"x": 1}))).expect(at);
        assert_eq!(read, directive());
    }
    for text in [golden::with(GOLDEN, "/version", 3.into()), br#"{"version": 3, "policy": []}"#.to_vec()] {
        let error = Directive::from_json(&text).expect_err("newer");
        assert!(matches!(error, ReadError::NewerVersion { version: 3, known: 2 }), "{error}");
        assert_eq!(error.field(), Some("version"));
    }
}

#[test]
fn every_field_of_the_first_version_must_be_there_but_those_that_may_be_null() {
    fn walk(json: &Value, pointer: &str, seen: &mut Vec<String>) {
        for (name, value) in json.as_object().into_iter().flatten() {
            seen.push(format!("{pointer}/{name}"));
            walk(value, &format!("{pointer}/{name}"), seen);
        }
        for (index, value) in json.as_array().into_iter().flatten().enumerate() {
            walk(value, &format!("{pointer}/{index}"), seen);
        }
    }
    let mut fields = Vec::new();
    walk(&serde_json::from_str(GOLDEN).expect("golden"), "", &mut fields);
    assert_eq!(fields.len(), 12 + 5 + 4 + 16, "{fields:?}");
    for field in fields {
        let read = Directive::from_json(&golden::without(GOLDEN, &field));
        if ["_uid", "gpu_uuid", "hibernate_after_seconds", "tenant/share_bytes"]
            .iter()
            .any(|end| field.ends_with(end))
        {
            read.expect(&field);
            continue;
        }
        let error = read.expect_err(&field);
        let name = field.rsplit('/').next().expect("a name");
        // A union that lost its member is at fault itself.
        let named = if name == "Temporal" { "sharing" } else { name };
        assert!(error.field().expect("a field").ends_with(named), "{field}: {error}");
    }
}

#[test]
fn a_value_that_cannot_be_is_refused_by_its_path() {
    let long = "x".repeat(64);
    for (pointer, value, field) in [
        ("/epoch", json!(-1), "epoch"),
        ("/sequence", json!(1.5), "sequence"),
        ("/policy", json!(""), "policy"),
        ("/policy", json!("One iros"), "policy"),
        ("/policy", json!(long), "policy"),
        ("/tenant/priority", json!(1_u64 << 40), "tenant.priority"),
        ("/tenant/max_remapped_percent", json!(101), "tenant.max_remapped_percent"),
        ("/tenant/idle_after_seconds", json!(0), "tenant.idle_after_seconds"),
        ("/tenant/idle_after_seconds", json!(600), "tenant.hibernate_after_seconds"),
        ("/tenant/hibernate_after_seconds", json!(604_801), "tenant.hibernate_after_seconds"),
        ("/sharing", json!("Alone"), "sharing"),
        ("/sharing/Temporal/order", json!("Random"), "sharing.Temporal.order"),
        ("/sharing/Temporal/min_quantum_ms", json!(0), "sharing.Temporal.min_quantum_ms"),
        ("/sharing/Temporal/min_quantum_ms", json!(51), "sharing.Temporal.min_quantum_ms"),
        ("/sharing/Temporal/max_quantum_ms", json!(10_001), "sharing.Temporal.max_quantum_ms"),
        ("/victim", json!("Anyone"), "victim"),
        ("/min_residence_ms", json!(600_001), "min_residence_ms"),
        ("/revoke_bound_ms", json!(0), "revoke_bound_ms"),
        ("/peers/1/name", json!("code"), "peers[1].name"),
        ("/peers/1/name", json!("../code"), "peers[1].name"),
        ("/peers/1/namespace", json!(""), "peers[1].namespace"),
        ("/peers/0/pod_uid", json!("a b"), "peers[0].pod_uid"),
        ("/peers/0/claim_uid", json!("-"), "peers[0].claim_uid"),
        ("/peers/1/admin", json!("10.1.0.7:8001"), "peers[1].admin"),
        ("/peers/1/admin", json!("10.1.0.8:0"), "peers[1].admin"),
        ("/peers/1/admin", json!("0.0.0.0:8001"), "peers[1].admin"),
        ("/peers/1/admin", json!("localhost:8001"), "peers[1].admin"),
        ("/peers/0/share_bytes", json!(33_554_431), "peers[0].share_bytes"),
        ("/fallback_order/0", json!("nobody"), "fallback_order[0]"),
        ("/gpu_uuid", json!("u".repeat(65)), "gpu_uuid"),
    ] {
        let error = Directive::from_json(&golden::with(GOLDEN, pointer, value.clone())).expect_err(pointer);
        assert!(matches!(&error, ReadError::Invalid(_)), "{pointer} = {value}: {error}");
        assert_eq!(error.field(), Some(field), "{pointer} = {value}: {error}");
    }
    let mut twice = directive();
    twice.fallback_order.push("chat".into());
    assert_eq!(twice.check().expect_err("twice").field, "fallback_order[1]");
}

#[test]
fn directive_without_share_is_read_as_none() {
    let older = Directive::from_json(&golden::without(GOLDEN, "/tenant/share_bytes")).expect("readable");
    let expected = TenantRule { share_bytes: None, ..directive().tenant };
    assert_eq!(older, Directive { tenant: expected, ..directive() });
}

#[test]
fn directive_without_gpu_uuid_is_read_as_none() {
    let older = Directive::from_json(&golden::without(GOLDEN, "/gpu_uuid")).expect("readable");
    assert_eq!(older, Directive { gpu_uuid: None, ..directive() });
}

#[test]
fn number_of_peers_is_limited() {
    let peer = |index: usize| PeerInfo {
        name: format!("n{index}"),
        admin: ([10, 2, 0, index as u8], 8001).into(),
        ..directive().peers[0].clone()
    };
    let with_peers = |count| Directive {
        peers: (0..count).map(peer).collect(),
        fallback_order: Vec::new(),
        ..directive()
    };
    with_peers(MAX_PEERS).check().expect("as many as may be");
    assert_eq!(with_peers(MAX_PEERS + 1).check().expect_err("one more").field, "peers");
}
