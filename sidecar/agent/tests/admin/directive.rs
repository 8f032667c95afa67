//! Tests of `/v1/directive` over a socket.

use serde_json::{Value, json};
use sluice_wire::directive::Fence;

use super::harness::{AdminPort, JSON, assert_refused, config, directive, start_idle};

fn current(epoch: u64, sequence: u64) -> Value {
    json!({"epoch": epoch, "sequence": sequence})
}

#[tokio::test(flavor = "multi_thread")]
async fn only_newer_directive_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let mut port = AdminPort::start_idle(folder.path(), "story").await;
    let mut peer = port.operator().await;
    assert_refused(&peer.get("/v1/directive").await, 404, None, Some("no_directive"));

    let first = directive(2, 7, &[]);
    let answer = peer.put(&first).await;
    assert_eq!((answer.head.status, answer.json()["current"].clone()), (200, current(2, 7)));
    let fence = port.directive.borrow_and_update().as_ref().map(|seen| seen.directive.fence());
    assert_eq!(fence, Some(Fence { epoch: 2, sequence: 7 }));
    assert_eq!(peer.put(&first).await.head.status, 200);

    let mut other = first.clone();
    other["min_residence_ms"] = 501.into();
    for (late, why) in [
        (other, "the same pair with other words"),
        (directive(2, 6, &[]), "an older sequence"),
        (directive(1, u64::MAX, &[]), "an older epoch"),
    ] {
        let answer = peer.put(&late).await;
        assert_refused(&answer, 409, None, Some("directive_not_newer"));
        assert_eq!(answer.json()["current"], current(2, 7), "{why}");
    }
    assert!(!port.directive.has_changed().unwrap(), "what is refused changes nothing");
    assert_eq!(peer.get("/v1/directive").await.json(), first);

    for newer in [directive(2, 8, &[]), directive(3, 0, &[])] {
        assert_eq!(peer.put(&newer).await.head.status, 200);
        assert_eq!(peer.get("/v1/directive").await.json(), newer);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn directive_with_unknown_fields_survives_restart() {
    let folder = tempfile::tempdir().unwrap();
    let port = AdminPort::start_idle(folder.path(), "story").await;
    let mut given = directive(4, 1, &[("code", "10.0.0.7:8001".parse().unwrap())]);
    given["tenant"]["of_a_later_version"] = json!([1, 2]);
    assert_eq!(port.operator().await.put(&given).await.head.status, 200);
    port.shutdown().await;

    let port = AdminPort::start_idle(folder.path(), "story").await;
    let mut peer = port.operator().await;
    assert_eq!(peer.get("/v1/directive").await.json(), given);
    let peers = port.directive.borrow().as_ref().map(|seen| seen.directive.peers.len());
    assert_eq!(peers, Some(1), "it is in force from the start");
    assert_refused(&peer.put(&directive(4, 0, &[])).await, 409, None, Some("directive_not_newer"));
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_directive_is_refused_with_field_name() {
    let folder = tempfile::tempdir().unwrap();
    let port = AdminPort::start_idle(folder.path(), "story").await;
    let mut peer = port.operator().await;
    let good = directive(1, 1, &[]);
    for (field, value, named) in [
        ("version", json!(3), "version"),
        ("version", json!("1"), "version"),
        ("epoch", json!(-1), "epoch"),
        ("policy", json!("Magic"), "policy"),
        ("victim", json!(null), "victim"),
        ("tenant", json!({"priority": 1}), "tenant.max_remapped_percent"),
        ("peers", directive(1, 1, &[("story", port.address)])["peers"].clone(), "peers[0]"),
        ("fallback_order", json!(["code"]), "fallback_order[0]"),
    ] {
        let mut bad = good.clone();
        bad[field] = value;
        let code = if bad["version"] == 3 { "newer_version" } else { "invalid_field" };
        assert_refused(&peer.put(&bad).await, 422, Some(named), Some(code));
    }
    for text in [&b""[..], b"{", b"\xff\xfe", b"{\"version\": 1}}"] {
        let answer = peer.ask("PUT", "/v1/directive", text).await;
        assert_refused(&answer, 400, None, Some("malformed_json"));
    }
    peer.send("PUT", "/v1/directive", &[("content-type", "text/plain")], good.to_string().as_bytes()).await;
    assert_refused(&peer.client.answer().await, 415, None, None);
    assert!(port.directive.borrow().is_none());
    assert!(!folder.path().join("directive.json").exists(), "nothing was stored");
    assert_eq!(peer.put(&good).await.head.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn huge_directive_is_413_with_or_without_content_length() {
    let folder = tempfile::tempdir().unwrap();
    let port = AdminPort::start_idle(folder.path(), "story").await;
    let huge = vec![b' '; 300_000];
    assert_refused(&port.operator().await.ask("PUT", "/v1/directive", &huge).await, 413, None, None);

    let mut peer = port.operator().await;
    let head = format!(
        "PUT /v1/directive HTTP/1.1\r\nhost: x\r\n{}: {}\r\nauthorization: Bearer {}\r\ntransfer-encoding: chunked\r\n\r\n",
        JSON.0, JSON.1, port.token
    );
    peer.client.raw(head.as_bytes()).await.unwrap();
    for _ in 0..5 {
        let chunk = [b"10000\r\n", &[b' '; 0x10000][..], b"\r\n"].concat();
        peer.client.raw(&chunk).await.unwrap();
    }
    peer.client.raw(b"0\r\n\r\n").await.unwrap();
    assert_refused(&peer.client.answer().await, 413, None, None);
    assert!(port.directive.borrow().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn immutable_settings_are_refused_with_reason() {
    let folder = tempfile::tempdir().unwrap();
    let spatial = json!("Spatial");
    let mut config = config(folder.path(), "story");
    let place = json!({"folder": folder.path(), "claim": "c", "share_bytes": 64 << 20, "sharing": spatial});
    config.gpu_ledger = Some(serde_json::from_value(place).unwrap());
    let port = AdminPort::start(&config, start_idle("story")).await;
    let mut peer = port.operator().await;
    let mut good = directive(1, 1, &[]);
    let refusal = peer.put(&good).await;
    assert_refused(&refusal, 422, Some("sharing"), Some("invalid_field"));
    assert!(refusal.body.contains("started with Spatial"), "{}", refusal.body);
    good["sharing"] = spatial;
    good["tenant"]["priority"] = json!(7);
    good["tenant"]["max_remapped_percent"] = json!(30);
    good["tenant"]["share_bytes"] = json!(32 << 20);
    assert_eq!(peer.put(&good).await.head.status, 200, "terms of trade, share and cap change");
}

#[tokio::test(flavor = "multi_thread")]
async fn exclusive_gpu_rejects_peers_and_accepts_rest() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path(), "story");
    config.gpu_ledger = None;
    let port = AdminPort::start(&config, start_idle("story")).await;
    let mut peer = port.operator().await;
    let refusal = peer.put(&directive(1, 1, &[("code", port.address)])).await;
    assert_refused(&refusal, 422, Some("peers"), Some("invalid_field"));
    let mut good = directive(1, 1, &[]);
    good["tenant"]["max_remapped_percent"] = json!(5);
    assert_eq!(peer.put(&good).await.head.status, 200);
}
