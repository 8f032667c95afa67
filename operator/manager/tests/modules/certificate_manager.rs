//! Tests the management of Secrets by name.

use http::Method;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::json;
use sluice_operator::credentials::ca::{ROTATE_DAYS, ROTATION_OVERLAP_SECONDS};
use sluice_operator::credentials::issue::{DAY_SECONDS, parse_cert};
use sluice_operator::credentials::{CertificateManager, CredentialError, SlotSecret};

use super::fake_api_server::FakeApiServer;
use super::stub::now;

const CA_SECRET_PATH: &str = "/api/v1/namespaces/sluice-system/secrets/sluice-authority";
const SLOT_SECRET_PATH: &str = "/api/v1/namespaces/ns/secrets/sluice-story-0";

fn slot() -> SlotSecret {
    SlotSecret {
        namespace: "ns".into(),
        secret: "sluice-story-0".into(),
        tenant: "story".into(),
        claim: "p-chat-0-e1.uid-of-p".into(),
        owner: OwnerReference { uid: "uid-of-story".into(), ..OwnerReference::default() },
        labels: [("sluice.dev/tenant".to_owned(), "story".to_owned())].into(),
    }
}

fn secret_text(server: &FakeApiServer, path: &str, key: &str) -> String {
    use k8s_openapi::ByteString;
    let value = server.object(path)["data"][key].clone();
    let ByteString(bytes) = serde_json::from_value(value).unwrap();
    String::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn slot_secret_is_created_once_and_cached() {
    let server = FakeApiServer::default();
    let manager = CertificateManager::new(server.client(), "sluice-system");
    let until = manager.ensure_slot_secret(&slot(), now()).await.unwrap();
    assert!(until > now() + 3600);
    let asked: Vec<_> =
        server.requests().into_iter().map(|(method, path)| format!("{method} {path}")).collect();
    let expected = [
        format!("GET {CA_SECRET_PATH}"),
        "POST /api/v1/namespaces/sluice-system/secrets".into(),
        format!("GET {SLOT_SECRET_PATH}"),
        format!("PATCH {SLOT_SECRET_PATH}"),
    ];
    assert_eq!(asked, expected, "by name, and never a list or a watch");
    let secret = server.object(SLOT_SECRET_PATH);
    assert_eq!(
        (&secret["type"], &secret["metadata"]["labels"]["sluice.dev/tenant"]),
        (&json!("kubernetes.io/tls"), &json!("story"))
    );
    assert_eq!(secret["metadata"]["ownerReferences"][0]["uid"], "uid-of-story");
    assert_eq!(manager.ensure_slot_secret(&slot(), now()).await.unwrap(), until);
    assert_eq!(server.requests(), [], "nothing is due");

    // Another replica finds the authorities that the first one created.
    let other = CertificateManager::new(server.client(), "sluice-system");
    assert_eq!(other.ensure_slot_secret(&slot(), now()).await.unwrap(), until);
    assert!(server.requests().iter().all(|(method, _)| method == Method::GET));
    let moved = SlotSecret { claim: "p-chat-1-e1.uid-of-p".into(), ..slot() };
    other.ensure_slot_secret(&moved, now()).await.unwrap();
    let said = parse_cert(&secret_text(&server, SLOT_SECRET_PATH, "tls.crt")).unwrap();
    assert!(said.names.unwrap().uri.ends_with("/p-chat-1-e1.uid-of-p"));
}

#[tokio::test]
async fn foreign_secret_is_not_modified() {
    let server = FakeApiServer::default();
    server.put(
        SLOT_SECRET_PATH,
        json!({"metadata": {"name": "sluice-story-0"}, "data": {"password": "c2VjcmV0"}}),
    );
    let manager = CertificateManager::new(server.client(), "sluice-system");
    let error = manager.ensure_slot_secret(&slot(), now()).await.unwrap_err();
    assert!(matches!(&error, CredentialError::NotOwned { name, .. } if name == "sluice-story-0"), "{error}");
    assert_eq!(server.object(SLOT_SECRET_PATH)["data"]["password"], "c2VjcmV0");
    manager.delete("ns", "sluice-story-0", |uid| uid == slot().owner.uid).await.unwrap();
    assert_eq!(
        server.object(SLOT_SECRET_PATH)["data"]["password"],
        "c2VjcmV0",
        "nor is it deleted with the slot"
    );
}

#[tokio::test]
async fn missing_or_invalid_secret_is_restored_when_pod_fails_to_start() {
    let server = FakeApiServer::default();
    let manager = CertificateManager::new(server.client(), "sluice-system");
    let since = now();
    let until = manager.ensure_slot_secret(&slot(), since).await.unwrap();
    server.0.lock().unwrap().objects.remove(SLOT_SECRET_PATH);
    let asked = || server.requests().into_iter().filter(|(_, path)| path == SLOT_SECRET_PATH).count();
    asked();
    assert_eq!(manager.ensure_slot_secret(&slot(), since + 3600).await.unwrap(), until);
    assert_eq!(asked(), 0, "there is no doubt about it");

    manager.invalidate("ns", "sluice-story-0");
    manager.ensure_slot_secret(&slot(), since + 3600).await.unwrap();
    assert_eq!(secret_text(&server, SLOT_SECRET_PATH, "ca.crt").matches("BEGIN CERTIFICATE").count(), 1);
    let mut spoilt = server.object(SLOT_SECRET_PATH);
    spoilt["data"]["tls.key"] = json!("c2VjcmV0");
    server.put(SLOT_SECRET_PATH, spoilt);
    asked();

    manager.invalidate("ns", "sluice-story-0");
    let again = manager.ensure_slot_secret(&slot(), since + 3610).await.unwrap();
    assert_eq!((again, asked()), (since + 3630, 0), "it was looked at just now, and soon is again");
    manager.ensure_slot_secret(&slot(), again).await.unwrap();
    assert!(secret_text(&server, SLOT_SECRET_PATH, "tls.key").contains("PRIVATE KEY"));
}

#[tokio::test]
async fn rotation_updates_every_secret_once_with_two_leaders() {
    let server = FakeApiServer::default();
    let manager = CertificateManager::new(server.client(), "sluice-system");
    manager.ensure_slot_secret(&slot(), now()).await.unwrap();
    let first = secret_text(&server, SLOT_SECRET_PATH, "tls.crt");
    let rotate = now() + ROTATE_DAYS * DAY_SECONDS;
    // An old leaf would be renewed first, so only the bundles of both steps are compared.
    let again = manager.ensure_slot_secret(&slot(), rotate - 3600).await.unwrap();
    assert!(again <= rotate, "a check is due when the authority is replaced");
    let again = manager.ensure_slot_secret(&slot(), rotate).await.unwrap();
    assert!(again <= rotate + ROTATION_OVERLAP_SECONDS, "and at its next step");
    let bundle = secret_text(&server, SLOT_SECRET_PATH, "ca.crt");
    assert_eq!(bundle.matches("BEGIN CERTIFICATE").count(), 2, "the next one is announced");
    assert!(bundle.contains(secret_text(&server, CA_SECRET_PATH, "next.crt").trim_end()));
    let before = parse_cert(&secret_text(&server, SLOT_SECRET_PATH, "tls.crt")).unwrap().issuer;
    let other = CertificateManager::new(server.client(), "sluice-system");
    let (slot_of_both, then) = (slot(), rotate + ROTATION_OVERLAP_SECONDS);
    let (one, two) = tokio::join!(
        manager.ensure_slot_secret(&slot_of_both, then),
        other.ensure_slot_secret(&slot_of_both, then)
    );
    assert!(one.is_ok() && two.is_ok());
    let signing = parse_cert(&secret_text(&server, CA_SECRET_PATH, "tls.crt")).unwrap().subject;
    let said = parse_cert(&secret_text(&server, SLOT_SECRET_PATH, "tls.crt")).unwrap();
    assert_eq!(said.issuer, signing);
    assert_ne!((said.issuer, secret_text(&server, SLOT_SECRET_PATH, "tls.crt")), (before, first));
    manager.ensure_slot_secret(&slot(), rotate + 2 * ROTATION_OVERLAP_SECONDS + 300).await.unwrap();
    assert_eq!(secret_text(&server, SLOT_SECRET_PATH, "ca.crt").matches("BEGIN CERTIFICATE").count(), 1);
    assert!(server.object(CA_SECRET_PATH)["data"].get("previous.crt").is_none());
}

#[tokio::test]
async fn own_certificate_is_in_memory_only_and_renewed() {
    let server = FakeApiServer::default();
    let manager = CertificateManager::new(server.client(), "sluice-system");
    let first = manager.own_client_config(now()).await.unwrap();
    assert!(std::sync::Arc::ptr_eq(
        &first,
        &manager.own_client_config(now() + 19 * DAY_SECONDS).await.unwrap()
    ));
    assert!(!std::sync::Arc::ptr_eq(
        &first,
        &manager.own_client_config(now() + 21 * DAY_SECONDS).await.unwrap()
    ));
    assert_eq!(server.0.lock().unwrap().objects.len(), 1, "the authorities alone");
}

#[tokio::test]
async fn invalid_ca_secret_is_reported_and_not_replaced() {
    let server = FakeApiServer::default();
    server.put(CA_SECRET_PATH, json!({"metadata": {"name": "sluice-authority"}, "data": {}}));
    let error =
        CertificateManager::new(server.client(), "sluice-system").authorities(now()).await.unwrap_err();
    assert!(error.to_string().contains("sluice-authority: key `tls.crt` is missing"), "{error}");
}

#[tokio::test]
async fn removed_slot_deletes_its_secret() {
    let server = FakeApiServer::default();
    let manager = CertificateManager::new(server.client(), "sluice-system");
    manager.ensure_slot_secret(&slot(), now()).await.unwrap();
    for _ in 0..2 {
        manager.delete("ns", "sluice-story-0", |uid| uid == slot().owner.uid).await.unwrap();
    }
    assert_eq!(server.0.lock().unwrap().objects.keys().collect::<Vec<_>>(), [CA_SECRET_PATH]);
}
