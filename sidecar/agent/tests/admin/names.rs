//! Who speaks for whom: what names its sender is heard only from that tenant.

use std::sync::mpsc;

use sluice_agent::admin::start::Credentials;
use sluice_agent::neighbours::call::{Call, decline};
use sluice_agent::service::Message;
use sluice_wire::grants::{GrantRequest, Participant, RevokeReason};

use super::certificates::{Authority, CLAIM};
use super::gpu::neighbour;
use super::world::{CHUNK, Peer, Port, config, refused};
use crate::gateway::client::PATIENCE;

/// Everything that can be said in the name of `tenant`, in namespace `default`.
fn all_of(tenant: &str) -> [GrantRequest; 4] {
    let who = || Participant { namespace: "default".into(), name: tenant.into(), index: 1, instance: 5 };
    [
        GrantRequest::Ask { borrower: who(), nonce: 41, bytes: CHUNK, ttl_ms: 5000 },
        GrantRequest::Renew { borrower: who(), nonces: vec![41], ttl_ms: 5000 },
        GrantRequest::Revoke { lender: who(), nonce: 41, bytes: CHUNK, why: RevokeReason::LenderActive },
        GrantRequest::Cancel { borrower: who(), nonce: 41 },
    ]
}

/// A scheduler that declines everything, and what has reached it.
fn listener() -> (impl FnMut(Message) + Send + 'static, mpsc::Receiver<GrantRequest>) {
    let (sender, heard) = mpsc::channel();
    let room = move |message| {
        if let Message::Call(Call::Grant(request, answer)) = message {
            drop(sender.send(request));
            decline(answer);
        }
    };
    (room, heard)
}

async fn is_heard(peer: &mut Peer, heard: &mpsc::Receiver<GrantRequest>, tenant: &str) {
    for request in all_of(tenant) {
        assert_eq!(peer.ask("POST", "/v1/grants", &request.to_json()).await.head.status, 200);
        assert_eq!(heard.try_recv().expect("it reaches the scheduler"), request);
    }
}

/// With all of `words` in the refusal.
async fn is_refused(peer: &mut Peer, heard: &mpsc::Receiver<GrantRequest>, tenant: &str, words: &[&str]) {
    for request in all_of(tenant) {
        let answer = peer.ask("POST", "/v1/grants", &request.to_json()).await;
        refused(&answer, 403, None, Some("forbidden"));
        assert!(words.iter().all(|word| answer.body.contains(word)), "{answer:?}");
        assert!(heard.try_recv().is_err(), "{request:?} reached the scheduler");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_speaks_only_for_the_tenant_whose_host_it_names() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let mut config = config(folder.path(), "story");
    config.listen.admin_tls = Some(authority.sidecar(folder.path(), "story"));
    let (room, heard) = listener();
    let port = Port::start(&config, room).await;
    let connect = async |identity| port.with_tls(authority.client(Some(&identity)), "story").await.unwrap();
    let neighbour = format!("spiffe://sluice/role/neighbour/{CLAIM}");

    let mut code = connect(authority.issue("code", &[&neighbour], 2100)).await;
    is_heard(&mut code, &heard, "code").await;
    is_refused(&mut code, &heard, "mail", &["belongs to default/code", "speaks as default/mail"]).await;
    is_refused(&mut code, &heard, "story", &["default/code", "default/story"]).await;

    let hosts = |all: &[&str]| all.iter().map(|host| (*host).to_owned()).collect::<Vec<_>>();
    for names in [
        hosts(&[]),
        hosts(&["code", "sidecar.sluice", "code.sidecar.sluice", "code.default.sidecar.sluice.example"]),
        hosts(&["code.default.sidecar.sluice", "mail.default.sidecar.sluice"]),
    ] {
        let mut peer = connect(authority.issue_for(names, &[&neighbour], 2100)).await;
        is_refused(&mut peer, &heard, "code", &["names no tenant", "speaks as default/code"]).await;
    }
    for host in ["*.default.sidecar.sluice", "code.other.sidecar.sluice", "a.code.default.sidecar.sluice"] {
        let mut peer = connect(authority.issue_for(hosts(&[host]), &[&neighbour], 2100)).await;
        is_refused(&mut peer, &heard, "code", &["belongs to ", "speaks as default/code"]).await;
    }
    let mut operator = connect(authority.role("operator")).await;
    is_heard(&mut operator, &heard, "mail").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_bound_speaks_only_for_its_tenant_and_one_that_is_not_for_all() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), "story");
    let [story, code, shared] = ["a", "b", "c"].map(|letter| letter.repeat(64));
    let tokens = format!("{story} default/story\n\n  {code}\tdefault/code \n{shared}\n");
    std::fs::write(config.listen.neighbour_token_file.as_ref().unwrap(), tokens).unwrap();
    let (room, heard) = listener();
    let port = Port::start(&config, room).await;
    let mut peer = port.with_token(Some(&code)).await;
    is_heard(&mut peer, &heard, "code").await;
    is_refused(&mut peer, &heard, "mail", &["belongs to default/code", "speaks as default/mail"]).await;
    let mut peer = port.with_token(Some(&shared)).await;
    is_heard(&mut peer, &heard, "mail").await;
    is_heard(&mut port.operator().await, &heard, "mail").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_shows_its_own_token_else_one_that_is_shared_else_it_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let (story, code) = (config(folder.path(), "story"), config(folder.path(), "code"));
    let tokens = code.listen.neighbour_token_file.clone().unwrap();
    let (bound, shared) = ("a".repeat(64), "b".repeat(64));
    for (text, sender) in [
        (format!("{shared}\n{bound} default/code\n"), "code"),
        (format!("{bound} default/mail\n{shared}\n"), "anybody"),
    ] {
        std::fs::write(&tokens, text).unwrap();
        let client = Credentials::of(&code, &folder.path().join("code")).expect("it has a token").client();
        let (room, heard) = listener();
        let port = Port::start(&story, room).await;
        let [ask, ..] = all_of(sender);
        let answer = client.grant(&neighbour("story", port.address), &ask, CHUNK, PATIENCE).await;
        assert!(answer.is_ok() && heard.try_recv().is_ok(), "{answer:?}");
        let [other, ..] = all_of("mail");
        let answer = client.grant(&neighbour("story", port.address), &other, CHUNK, PATIENCE).await;
        assert_eq!(answer.is_ok(), sender == "anybody", "{answer:?}");
        port.end().await;
    }
    std::fs::write(&tokens, format!("{bound} default/mail\n")).unwrap();
    let error = Credentials::of(&code, &folder.path().join("code")).unwrap_err().to_string();
    assert!(error.ends_with("holds no token of default/code"), "{error}");
}
