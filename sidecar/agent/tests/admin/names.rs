//! Tests that a message which names its sender is accepted only from that tenant.

use std::sync::mpsc;

use sluice_agent::admin::start::AdminCredentials;
use sluice_agent::peers::admin_call::{AdminCall, reject_grant};
use sluice_agent::scheduler_handle::SchedulerMessage;
use sluice_wire::grants::{GrantRequest, Participant, RevokeReason};

use super::certificates::{CLAIM, CertificateAuthority};
use super::gpu::peer_info;
use super::harness::{AdminClient, AdminPort, CHUNK, assert_refused, config};
use crate::gateway::client::TIMEOUT;

/// Returns every request in the name of `tenant`, in namespace `default`.
fn all_of(tenant: &str) -> [GrantRequest; 4] {
    let who = || Participant { namespace: "default".into(), name: tenant.into(), index: 1, instance: 5 };
    [
        GrantRequest::Ask { borrower: who(), nonce: 41, bytes: CHUNK, ttl_ms: 5000 },
        GrantRequest::Renew { borrower: who(), nonces: vec![41], ttl_ms: 5000 },
        GrantRequest::Revoke { lender: who(), nonce: 41, bytes: CHUNK, why: RevokeReason::LenderActive },
        GrantRequest::Cancel { borrower: who(), nonce: 41 },
    ]
}

/// Returns a scheduler that rejects every request, and the requests that it received.
fn listener() -> (impl FnMut(SchedulerMessage) + Send + 'static, mpsc::Receiver<GrantRequest>) {
    let (sender, received) = mpsc::channel();
    let on_message = move |message| {
        if let SchedulerMessage::Admin(AdminCall::Grant(request, answer)) = message {
            drop(sender.send(request));
            reject_grant(answer);
        }
    };
    (on_message, received)
}

async fn assert_accepted(peer: &mut AdminClient, received: &mpsc::Receiver<GrantRequest>, tenant: &str) {
    for request in all_of(tenant) {
        assert_eq!(peer.ask("POST", "/v1/grants", &request.to_json()).await.head.status, 200);
        assert_eq!(received.try_recv().expect("it reaches the scheduler"), request);
    }
}

/// Asserts that every request is refused with all of `words` in the error, and that none reaches the scheduler.
async fn assert_forbidden(
    peer: &mut AdminClient,
    received: &mpsc::Receiver<GrantRequest>,
    tenant: &str,
    words: &[&str],
) {
    for request in all_of(tenant) {
        let answer = peer.ask("POST", "/v1/grants", &request.to_json()).await;
        assert_refused(&answer, 403, None, Some("forbidden"));
        assert!(words.iter().all(|word| answer.body.contains(word)), "{answer:?}");
        assert!(received.try_recv().is_err(), "{request:?} reached the scheduler");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificate_is_bound_to_its_tenant() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), CertificateAuthority::new());
    let mut config = config(folder.path(), "story");
    config.listen.admin_tls = Some(authority.sidecar(folder.path(), "story"));
    let (on_message, received) = listener();
    let port = AdminPort::start(&config, on_message).await;
    let connect = async |identity| port.with_tls(authority.client(Some(&identity)), "story").await.unwrap();
    let peer_role = format!("spiffe://sluice/role/neighbour/{CLAIM}");

    let mut code = connect(authority.issue("code", &[&peer_role], 2100)).await;
    assert_accepted(&mut code, &received, "code").await;
    assert_forbidden(
        &mut code,
        &received,
        "mail",
        &["belongs to default/code", "in the name of default/mail"],
    )
    .await;
    assert_forbidden(&mut code, &received, "story", &["default/code", "default/story"]).await;

    let hosts = |all: &[&str]| all.iter().map(|host| (*host).to_owned()).collect::<Vec<_>>();
    for names in [
        hosts(&[]),
        hosts(&["code", "sidecar.sluice", "code.sidecar.sluice", "code.default.sidecar.sluice.example"]),
        hosts(&["code.default.sidecar.sluice", "mail.default.sidecar.sluice"]),
    ] {
        let mut peer = connect(authority.issue_for(names, &[&peer_role], 2100)).await;
        assert_forbidden(&mut peer, &received, "code", &["is of no tenant", "in the name of default/code"])
            .await;
    }
    for host in ["*.default.sidecar.sluice", "code.other.sidecar.sluice", "a.code.default.sidecar.sluice"] {
        let mut peer = connect(authority.issue_for(hosts(&[host]), &[&peer_role], 2100)).await;
        assert_forbidden(&mut peer, &received, "code", &["belongs to ", "in the name of default/code"]).await;
    }
    let mut operator = connect(authority.role("operator")).await;
    assert_accepted(&mut operator, &received, "mail").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bound_token_is_limited_to_its_tenant() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), "story");
    let [story, code, shared] = ["a", "b", "c"].map(|letter| letter.repeat(64));
    let tokens = format!("{story} default/story\n\n  {code}\tdefault/code \n{shared}\n");
    std::fs::write(config.listen.peer_token_file.as_ref().unwrap(), tokens).unwrap();
    let (on_message, received) = listener();
    let port = AdminPort::start(&config, on_message).await;
    let mut peer = port.with_token(Some(&code)).await;
    assert_accepted(&mut peer, &received, "code").await;
    assert_forbidden(
        &mut peer,
        &received,
        "mail",
        &["belongs to default/code", "in the name of default/mail"],
    )
    .await;
    let mut peer = port.with_token(Some(&shared)).await;
    assert_accepted(&mut peer, &received, "mail").await;
    assert_accepted(&mut port.operator().await, &received, "mail").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tenant_uses_own_token_then_shared_token() {
    let folder = tempfile::tempdir().unwrap();
    let (story, code) = (config(folder.path(), "story"), config(folder.path(), "code"));
    let tokens = code.listen.peer_token_file.clone().unwrap();
    let (bound, shared) = ("a".repeat(64), "b".repeat(64));
    for (text, sender) in [
        (format!("{shared}\n{bound} default/code\n"), "code"),
        (format!("{bound} default/mail\n{shared}\n"), "anybody"),
    ] {
        std::fs::write(&tokens, text).unwrap();
        let client =
            AdminCredentials::load(&code, &folder.path().join("code")).expect("it has a token").client();
        let (on_message, received) = listener();
        let port = AdminPort::start(&story, on_message).await;
        let [ask, ..] = all_of(sender);
        let answer = client.grant(&peer_info("story", port.address), &ask, CHUNK, TIMEOUT).await;
        assert!(answer.is_ok() && received.try_recv().is_ok(), "{answer:?}");
        let [other, ..] = all_of("mail");
        let answer = client.grant(&peer_info("story", port.address), &other, CHUNK, TIMEOUT).await;
        assert_eq!(answer.is_ok(), sender == "anybody", "{answer:?}");
        port.shutdown().await;
    }
    std::fs::write(&tokens, format!("{bound} default/mail\n")).unwrap();
    let error = AdminCredentials::load(&code, &folder.path().join("code")).unwrap_err().to_string();
    assert!(error.ends_with("holds no token of default/code"), "{error}");
}
