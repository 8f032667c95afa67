//! Tests of the permissions of each role, with tokens and with certificates.

use super::certificates::{CLAIM, CertificateAuthority};
use super::harness::{AdminClient, AdminPort, PEER_TOKEN, assert_refused, config, directive, start_idle};

const ASK: &[u8] = br#"{"version": 2, "request": {"Cancel": {"nonce": 3,
    "borrower": {"namespace": "default", "name": "peer", "index": 1, "instance": 2}}}}"#;

/// Returns every path with its statuses for operator, peer and reader.
async fn matrix() -> Vec<(&'static str, &'static str, Vec<u8>, [u16; 3])> {
    let directive = directive(1, 1, &[]).to_string().into_bytes();
    vec![
        ("GET", "/v1/state", vec![], [200, 200, 200]),
        ("GET", "/v1/state?scope=gpu", vec![], [200, 200, 200]),
        ("PUT", "/v1/directive", directive, [200, 403, 403]),
        ("GET", "/v1/directive", vec![], [200, 403, 403]),
        ("POST", "/v1/grants", ASK.to_vec(), [200, 200, 403]),
        ("POST", "/sleep", vec![], [409, 403, 403]),
        ("POST", "/wake_up", vec![], [409, 403, 403]),
        ("GET", "/is_sleeping", vec![], [200, 200, 200]),
        ("GET", "/v1/grants", vec![], [405, 405, 405]),
        ("GET", "/", vec![], [404, 404, 404]),
    ]
}

async fn check(peer: &mut AdminClient, column: usize, who: &str) {
    for (method, path, body, statuses) in matrix().await {
        let answer = peer.ask(method, path, &body).await;
        assert_eq!(answer.head.status, statuses[column], "{who}: {method} {path}: {answer:?}");
        if answer.head.status == 403 {
            assert_refused(&answer, 403, None, Some("forbidden"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn token_role_decides_access() {
    let folder = tempfile::tempdir().unwrap();
    let port = AdminPort::start_idle(folder.path(), "story").await;
    check(&mut port.operator().await, 0, "operator").await;
    check(&mut port.with_token(Some(PEER_TOKEN)).await, 1, "peer").await;
    let wrong = format!("{}g", &port.token[..63]);
    for token in [None, Some(""), Some(&port.token[..63]), Some(&wrong), Some(&PEER_TOKEN[..63])] {
        let mut peer = port.with_token(token).await;
        for (method, path, body, _) in matrix().await {
            assert_refused(&peer.ask(method, path, &body).await, 401, None, Some("invalid_api_key"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_without_token_are_unauthenticated() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path(), "story");
    config.listen.peer_token_file = None;
    let port = AdminPort::start(&config, start_idle("story")).await;
    for token in [PEER_TOKEN, ""] {
        let mut peer = port.with_token(Some(token)).await;
        assert_refused(&peer.get("/v1/state").await, 401, None, Some("invalid_api_key"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificate_role_decides_access() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), CertificateAuthority::new());
    let mut config = config(folder.path(), "story");
    config.listen.admin_tls = Some(authority.sidecar(folder.path(), "story"));
    let port = AdminPort::start(&config, start_idle("story")).await;
    let (peer, older) = (format!("peer/{CLAIM}"), format!("neighbour/{CLAIM}"));
    for (column, role) in [(0, "operator"), (1, &peer), (1, &older), (2, "reader")] {
        let tls = authority.client(Some(&authority.role(role)));
        check(&mut port.with_tls(tls, "story").await.unwrap(), column, role).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificate_without_single_role_is_forbidden() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), CertificateAuthority::new());
    let mut config = config(folder.path(), "story");
    config.listen.admin_tls = Some(authority.sidecar(folder.path(), "story"));
    let port = AdminPort::start(&config, start_idle("story")).await;
    let uri = |role: &str| format!("spiffe://sluice/role/{role}");
    for uris in [
        vec![],
        vec!["spiffe://elsewhere/role/operator".into()],
        vec![uri("Operator")],
        vec![uri("")],
        vec![uri("operator/")],
        vec![uri("peer")],
        vec![uri("peer/")],
        vec![uri("peer/another-claim")],
        // A pool of the same name in another namespace.
        vec![uri("peer/p-chat-0-e1.17f1bbcd-29e2-4ad3-9e3e-b2d01f2c0f5a")],
        vec![uri(&format!("peer/{CLAIM}/x"))],
        vec![uri("neighbour/another-claim")],
        vec![uri(&format!("peer/{CLAIM}")), uri(&format!("neighbour/{CLAIM}"))],
        vec![uri("reader"), uri("operator")],
        vec![uri("operator"), uri("operator")],
    ] {
        let names: Vec<_> = uris.iter().map(String::as_str).collect();
        let tls = authority.client(Some(&authority.issue("peer", &names, 2100)));
        let mut peer = port.with_tls(tls, "story").await.unwrap();
        for (method, path, body, _) in matrix().await {
            let answer = peer.ask(method, path, &body).await;
            assert_eq!(answer.head.status, 403, "{uris:?}: {method} {path}");
        }
    }
    assert!(port.directive.borrow().is_none());
}
