//! Tests of mutual TLS: which clients are accepted, and reloaded certificates.

use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use sluice_agent::admin::tls::{Tls, TlsError};
use sluice_agent::credential_reload::{self, ReloadableCredentials};
use sluice_agent::metrics::Metrics;
use sluice_wire::config::SloConfig;
use tokio::sync::watch;

use super::certificates::{CLAIM, CertificateAuthority, files, write};
use super::harness::{AdminPort, config, start_idle};
use crate::gateway::client::{Client, TIMEOUT};

/// Whether a request over this connection gets a response.
async fn can_connect(port: &AdminPort, tls: Arc<ClientConfig>) -> bool {
    let Ok(mut peer) = port.with_tls(tls, "story").await else { return false };
    let request = b"GET /v1/state HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    peer.client.raw(request).await.is_ok() && peer.client.rest().await.starts_with(b"HTTP/1.1 200 ")
}

async fn port(folder: &std::path::Path, authority: &CertificateAuthority) -> AdminPort {
    let mut config = config(folder, "story");
    config.listen.admin_tls = Some(authority.sidecar(folder, "story"));
    AdminPort::start(&config, start_idle("story")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_without_valid_certificate_is_refused() {
    let (folder, authority, foreign) =
        (tempfile::tempdir().unwrap(), CertificateAuthority::new(), CertificateAuthority::new());
    let port = port(folder.path(), &authority).await;
    let role = "spiffe://sluice/role/operator";
    let good = authority.issue("peer", &[role], 2100);
    assert!(can_connect(&port, authority.client(Some(&good))).await, "the control");
    assert!(!can_connect(&port, authority.client(None)).await, "no certificate");
    let expired = authority.issue("peer", &[role], 2021);
    assert!(!can_connect(&port, authority.client(Some(&expired))).await, "expired");
    let forged = foreign.issue("peer", &[role], 2100);
    assert!(!can_connect(&port, authority.client(Some(&forged))).await, "of another authority");

    let mut plain = Client::connect(port.address).await;
    let token = format!("Bearer {}", port.token);
    plain.send("GET", "/v1/state", &[("authorization", &token)], b"").await;
    assert!(!plain.rest().await.starts_with(b"HTTP/"), "a token over plain HTTP");
    let hidden = authority.client(Some(&good));
    assert!(port.with_tls(hidden, "code").await.is_err(), "its certificate is only for its own name");
}

#[tokio::test(flavor = "multi_thread")]
async fn new_connections_use_rotated_certificates() {
    let (folder, old, new) =
        (tempfile::tempdir().unwrap(), CertificateAuthority::new(), CertificateAuthority::new());
    let config = old.sidecar(folder.path(), "story");
    let tls = Arc::new(Tls::load(config.clone()).unwrap());
    let port = serve(folder.path(), tls.clone()).await;
    let (old_peer, new_peer) = (old.role("reader"), new.role("reader"));
    let mut open = port.with_tls(old.client(Some(&old_peer)), "story").await.unwrap();
    assert_eq!(open.get("/v1/state").await.head.status, 200);
    assert!(!tls.reload().unwrap(), "nothing has changed");

    let identity = new.issue("story", &[], 2100);
    write(&config, &identity, &format!("{}{}", old.pem(), new.pem()));
    assert!(tls.reload().unwrap());
    assert_eq!(open.get("/v1/state").await.head.status, 200, "an open connection stays");
    assert!(can_connect(&port, new.client(Some(&new_peer))).await);
    assert!(can_connect(&port, new.client(Some(&old_peer))).await, "both authorities are known");
    assert!(!can_connect(&port, old.client(Some(&old_peer))).await, "the old certificate is no longer shown");

    write(&config, &identity, &new.pem());
    assert!(tls.reload().unwrap());
    assert!(!can_connect(&port, new.client(Some(&old_peer))).await, "the old authority is no longer known");
    assert_eq!(open.get("/v1/state").await.head.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn mismatched_files_are_refused_and_old_ones_stay() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), CertificateAuthority::new());
    let config = authority.sidecar(folder.path(), "story");
    let tls = Arc::new(Tls::load(config.clone()).unwrap());
    let port = serve(folder.path(), tls.clone()).await;
    let ends = tls.configs();
    let key = std::fs::read(&config.key).unwrap();
    for (path, text) in [
        (&config.key, authority.role("reader").key.into_bytes()),
        (&config.key, b"no key".to_vec()),
        (&config.cert, b"".to_vec()),
        (&config.client_ca, b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_vec()),
    ] {
        let good = std::fs::read(path).unwrap();
        std::fs::write(path, text).unwrap();
        let error = tls.reload().unwrap_err();
        // For a key that does not match, the error may name the certificate.
        let named = error.to_string();
        let names = [path.display().to_string(), config.cert.display().to_string()];
        assert!(names.iter().any(|name| named.starts_with(name)), "{named}");
        std::fs::write(path, good).unwrap();
    }
    assert_eq!(std::fs::read(&config.key).unwrap(), key);
    std::fs::remove_file(&config.cert).unwrap();
    assert!(matches!(tls.reload(), Err(TlsError::Read { path, .. }) if path == config.cert));
    assert!(!ends.has_changed().unwrap());
    let reader = authority.role("reader");
    assert!(can_connect(&port, authority.client(Some(&reader))).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_files_are_reloaded() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), CertificateAuthority::new());
    let config = authority.sidecar(folder.path(), "story");
    let tls = Arc::new(Tls::load(config.clone()).unwrap());
    let (mut ends, (stop, stopping)) = (tls.configs(), watch::channel(false));
    let metrics = Arc::new(Metrics::new("story", &SloConfig::default()));
    let fresh = tokio::spawn(credential_reload::reload_until_stopped(
        tls.clone(),
        Duration::from_millis(1),
        stopping,
        metrics,
    ));
    // One new file of a pair, as a reader may see it between two writes.
    let next = authority.issue("story", &[&format!("spiffe://sluice/role/neighbour/{CLAIM}")], 2100);
    std::fs::write(&config.key, &next.key).unwrap();
    std::fs::write(&config.cert, &next.cert).unwrap();
    tokio::time::timeout(TIMEOUT, ends.changed()).await.expect("in time").unwrap();
    stop.send(true).unwrap();
    tokio::time::timeout(TIMEOUT, fresh).await.expect("it ends").unwrap();
}

#[test]
fn claim_that_alters_role_parsing_is_refused() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), CertificateAuthority::new());
    for claim in ["", "a/b", "a b", "é"] {
        let mut config = authority.sidecar(folder.path(), "story");
        config.claim = claim.into();
        assert!(matches!(Tls::load(config), Err(TlsError::Claim(refused)) if refused == claim));
    }
}

/// Starts a port whose certificates the test reloads itself.
async fn serve(folder: &std::path::Path, tls: Arc<Tls>) -> AdminPort {
    let mut config = config(folder, "story");
    config.listen.admin_tls = Some(files(folder));
    AdminPort::start_with(&config, start_idle("story"), Some(tls)).await
}
