//! Secrets by name.

use http::Method;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::json;
use sluice_operator::credentials::authorities::{OVERLAP, ROTATE_DAYS};
use sluice_operator::credentials::issue::{DAY, read};
use sluice_operator::credentials::{CredentialError, Keeper, Slot};

use super::api::Server;
use super::stub::now;

const AUTHORITY: &str = "/api/v1/namespaces/sluice-system/secrets/sluice-authority";
const SECRET: &str = "/api/v1/namespaces/ns/secrets/sluice-story-0";

fn slot() -> Slot {
    Slot {
        namespace: "ns".into(),
        secret: "sluice-story-0".into(),
        tenant: "story".into(),
        claim: "p-chat-0-e1.uid-of-p".into(),
        owner: OwnerReference { uid: "uid-of-story".into(), ..OwnerReference::default() },
        labels: [("sluice.dev/tenant".to_owned(), "story".to_owned())].into(),
    }
}

fn text(server: &Server, path: &str, key: &str) -> String {
    use k8s_openapi::ByteString;
    let value = server.object(path)["data"][key].clone();
    let ByteString(bytes) = serde_json::from_value(value).unwrap();
    String::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn a_slot_gets_a_secret_once_and_nothing_is_asked_again() {
    let server = Server::default();
    let keeper = Keeper::new(server.client(), "sluice-system");
    let until = keeper.slot(&slot(), now()).await.unwrap();
    assert!(until > now() + 3600);
    let asked: Vec<_> = server.asked().into_iter().map(|(method, path)| format!("{method} {path}")).collect();
    let expected = [
        format!("GET {AUTHORITY}"),
        "POST /api/v1/namespaces/sluice-system/secrets".into(),
        format!("GET {SECRET}"),
        format!("PATCH {SECRET}"),
    ];
    assert_eq!(asked, expected, "by name, and never a list or a watch");
    let secret = server.object(SECRET);
    assert_eq!(
        (&secret["type"], &secret["metadata"]["labels"]["sluice.dev/tenant"]),
        (&json!("kubernetes.io/tls"), &json!("story"))
    );
    assert_eq!(secret["metadata"]["ownerReferences"][0]["uid"], "uid-of-story");
    assert_eq!(keeper.slot(&slot(), now()).await.unwrap(), until);
    assert_eq!(server.asked(), [], "nothing is due");

    // Another replica finds what the first one left.
    let other = Keeper::new(server.client(), "sluice-system");
    assert_eq!(other.slot(&slot(), now()).await.unwrap(), until);
    assert!(server.asked().iter().all(|(method, _)| method == Method::GET));
    let moved = Slot { claim: "p-chat-1-e1.uid-of-p".into(), ..slot() };
    other.slot(&moved, now()).await.unwrap();
    let said = read(&text(&server, SECRET, "tls.crt")).unwrap();
    assert!(said.names.unwrap().uri.ends_with("/p-chat-1-e1.uid-of-p"));
}

#[tokio::test]
async fn a_secret_of_somebody_else_is_left_alone() {
    let server = Server::default();
    server.put(SECRET, json!({"metadata": {"name": "sluice-story-0"}, "data": {"password": "c2VjcmV0"}}));
    let keeper = Keeper::new(server.client(), "sluice-system");
    let error = keeper.slot(&slot(), now()).await.unwrap_err();
    assert!(matches!(&error, CredentialError::Taken { name, .. } if name == "sluice-story-0"), "{error}");
    assert_eq!(server.object(SECRET)["data"]["password"], "c2VjcmV0");
    keeper.delete("ns", "sluice-story-0", |uid| uid == slot().owner.uid).await.unwrap();
    assert_eq!(server.object(SECRET)["data"]["password"], "c2VjcmV0", "nor is it deleted with the slot");
}

#[tokio::test]
async fn a_secret_that_is_gone_or_spoilt_comes_back_when_its_pod_does_not_start() {
    let server = Server::default();
    let keeper = Keeper::new(server.client(), "sluice-system");
    let since = now();
    let until = keeper.slot(&slot(), since).await.unwrap();
    server.0.lock().unwrap().objects.remove(SECRET);
    let asked = || server.asked().into_iter().filter(|(_, path)| path == SECRET).count();
    asked();
    assert_eq!(keeper.slot(&slot(), since + 3600).await.unwrap(), until);
    assert_eq!(asked(), 0, "nobody doubts it");

    keeper.doubt("ns", "sluice-story-0");
    keeper.slot(&slot(), since + 3600).await.unwrap();
    assert_eq!(text(&server, SECRET, "ca.crt").matches("BEGIN CERTIFICATE").count(), 1);
    let mut spoilt = server.object(SECRET);
    spoilt["data"]["tls.key"] = json!("c2VjcmV0");
    server.put(SECRET, spoilt);
    asked();

    keeper.doubt("ns", "sluice-story-0");
    let again = keeper.slot(&slot(), since + 3610).await.unwrap();
    assert_eq!((again, asked()), (since + 3630, 0), "it was looked at just now, and soon is again");
    keeper.slot(&slot(), again).await.unwrap();
    assert!(text(&server, SECRET, "tls.key").contains("PRIVATE KEY"));
}

#[tokio::test]
async fn a_rotation_reaches_every_secret_and_two_leaders_do_not_turn_it_twice() {
    let server = Server::default();
    let keeper = Keeper::new(server.client(), "sluice-system");
    keeper.slot(&slot(), now()).await.unwrap();
    let first = text(&server, SECRET, "tls.crt");
    let rotate = now() + ROTATE_DAYS * DAY;
    // As an old leaf would be renewed first, look at the bundles of both steps alone.
    let again = keeper.slot(&slot(), rotate - 3600).await.unwrap();
    assert!(again <= rotate, "somebody comes back when the authority turns");
    let again = keeper.slot(&slot(), rotate).await.unwrap();
    assert!(again <= rotate + OVERLAP, "and at its next step");
    let bundle = text(&server, SECRET, "ca.crt");
    assert_eq!(bundle.matches("BEGIN CERTIFICATE").count(), 2, "the next one is announced");
    assert!(bundle.contains(text(&server, AUTHORITY, "next.crt").trim_end()));
    let before = read(&text(&server, SECRET, "tls.crt")).unwrap().issuer;
    let other = Keeper::new(server.client(), "sluice-system");
    let (slot_of_both, then) = (slot(), rotate + OVERLAP);
    let (one, two) = tokio::join!(keeper.slot(&slot_of_both, then), other.slot(&slot_of_both, then));
    assert!(one.is_ok() && two.is_ok());
    let signing = read(&text(&server, AUTHORITY, "tls.crt")).unwrap().subject;
    let said = read(&text(&server, SECRET, "tls.crt")).unwrap();
    assert_eq!(said.issuer, signing);
    assert_ne!((said.issuer, text(&server, SECRET, "tls.crt")), (before, first));
    keeper.slot(&slot(), rotate + 2 * OVERLAP + 300).await.unwrap();
    assert_eq!(text(&server, SECRET, "ca.crt").matches("BEGIN CERTIFICATE").count(), 1);
    assert!(server.object(AUTHORITY)["data"].get("previous.crt").is_none());
}

#[tokio::test]
async fn the_operators_own_certificate_is_kept_nowhere_and_made_anew_in_time() {
    let server = Server::default();
    let keeper = Keeper::new(server.client(), "sluice-system");
    let first = keeper.own(now()).await.unwrap();
    assert!(std::sync::Arc::ptr_eq(&first, &keeper.own(now() + 19 * DAY).await.unwrap()));
    assert!(!std::sync::Arc::ptr_eq(&first, &keeper.own(now() + 21 * DAY).await.unwrap()));
    assert_eq!(server.0.lock().unwrap().objects.len(), 1, "the authorities alone");
}

#[tokio::test]
async fn a_spoilt_secret_of_the_authorities_is_told_and_not_replaced() {
    let server = Server::default();
    server.put(AUTHORITY, json!({"metadata": {"name": "sluice-authority"}, "data": {}}));
    let error = Keeper::new(server.client(), "sluice-system").authorities(now()).await.unwrap_err();
    assert!(error.to_string().contains("sluice-authority: `tls.crt` is missing"), "{error}");
}

#[tokio::test]
async fn a_slot_that_is_gone_takes_its_secret_along() {
    let server = Server::default();
    let keeper = Keeper::new(server.client(), "sluice-system");
    keeper.slot(&slot(), now()).await.unwrap();
    for _ in 0..2 {
        keeper.delete("ns", "sluice-story-0", |uid| uid == slot().owner.uid).await.unwrap();
    }
    assert_eq!(server.0.lock().unwrap().objects.keys().collect::<Vec<_>>(), [AUTHORITY]);
}
