//! Certificates: names, renewal, and mutual acceptance.

use rustls::pki_types::ServerName;
use sluice_operator::credentials::ca::{CaBundle, ROTATE_DAYS, ROTATION_OVERLAP_SECONDS};
use sluice_operator::credentials::issue::{
    CertNames, DAY_SECONDS, LEAF_VALIDITY_DAYS, is_key_pair, parse_cert,
};
use sluice_operator::credentials::renewal::{
    Credentials, RENEW_BEFORE_DAYS, RenewalAction, renew_if_due, renewal_action,
};
use sluice_operator::sidecars::tls::client_config;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::stub::{credentials, now, server_config};

const CLAIM: &str = "gh200-chat-0-e1.gh200";

fn slot(name: &str) -> CertNames {
    CertNames::slot("ns", name, CLAIM)
}

/// Whether the sidecar of `name` with `server` and the holder of `client` accept each other.
async fn can_connect(server: &Credentials, client: &Credentials, name: &str) -> bool {
    let (near, far) = tokio::io::duplex(64 << 10);
    let acceptor = TlsAcceptor::from(server_config(server));
    let accepted = tokio::spawn(async move { acceptor.accept(far).await?.write_all(b"yes").await });
    let name = ServerName::try_from(format!("{name}.ns.sidecar.sluice")).unwrap();
    let config = client_config(client).unwrap();
    let said = async {
        let mut stream = TlsConnector::from(config).connect(name, near).await?;
        let mut said = [0; 3];
        stream.read_exact(&mut said).await
    };
    // With TLS 1.3, a client detects a rejection only by its first read.
    let said = said.await.is_ok();
    said && accepted.await.unwrap().is_ok()
}

#[test]
fn slot_certificate_has_names_validity_and_key() {
    let authorities = CaBundle::generate(now()).unwrap();
    let held = credentials(&authorities, &slot("story"));
    let said = parse_cert(&held.identity.cert).unwrap();
    let names = said.names.clone().unwrap();
    assert_eq!(names.dns.as_deref(), Some("story.ns.sidecar.sluice"));
    assert_eq!(names.uri, format!("spiffe://sluice/role/neighbour/{CLAIM}"));
    assert!(is_key_pair(&held.identity.key, &said.public_key));
    assert!((said.not_after - now() - LEAF_VALIDITY_DAYS * DAY_SECONDS).abs() < 60);
    assert!(said.not_before < now(), "a node's clock may be behind");
    let own = parse_cert(&credentials(&authorities, &CertNames::operator()).identity.cert).unwrap();
    assert_eq!(own.names, Some(CertNames { dns: None, uri: "spiffe://sluice/role/operator".into() }));
    let authority = parse_cert(&authorities.signing.cert).unwrap();
    assert_eq!((said.issuer, said.not_after < authority.not_after), (authority.subject, true));
}

#[test]
fn certificate_is_renewed_after_20_days_or_when_invalid() {
    let authorities = CaBundle::generate(now()).unwrap();
    let held = credentials(&authorities, &slot("story"));
    let at = |names: &CertNames, authorities: &CaBundle, days: i64| {
        renewal_action(Some(&held), names, authorities, now() + days * DAY_SECONDS)
    };
    let said = parse_cert(&held.identity.cert).unwrap();
    assert_eq!(
        at(&slot("story"), &authorities, 19),
        RenewalAction::RenewAt(said.not_after - RENEW_BEFORE_DAYS * DAY_SECONDS)
    );
    let renew = |due: RenewalAction| matches!(due, RenewalAction::Renew(_));
    assert!(renew(at(&slot("story"), &authorities, 21)));
    assert!(renew(at(&slot("code"), &authorities, 0)), "of another tenant");
    assert!(
        renew(at(&CertNames::slot("ns", "story", "gh200-chat-1-e1.gh200"), &authorities, 0)),
        "another GPU"
    );
    assert!(renew(at(&slot("story"), &CaBundle::generate(now() + 1).unwrap(), 0)), "another authority");
    assert!(renew(renewal_action(None, &slot("story"), &authorities, now())));
    let mut other = held.clone();
    other.identity.key = credentials(&authorities, &slot("story")).identity.key;
    assert!(renew(renewal_action(Some(&other), &slot("story"), &authorities, now())), "another key");
    other.identity.cert = "nonsense".into();
    assert!(renew(renewal_action(Some(&other), &slot("story"), &authorities, now())));
    let bundle = Credentials { bundle: String::new(), ..held.clone() };
    assert_eq!(
        renewal_action(Some(&bundle), &slot("story"), &authorities, now()),
        RenewalAction::UpdateBundle
    );
    let fresh = renew_if_due(Some(&bundle), &slot("story"), &authorities, now()).unwrap().unwrap();
    assert_eq!(fresh, held, "only the bundle is another one");
}

#[tokio::test]
async fn mutual_tls_accepts_only_named_peers() {
    let (authorities, foreign) = (CaBundle::generate(now()).unwrap(), CaBundle::generate(now()).unwrap());
    let (story, code) = (credentials(&authorities, &slot("story")), credentials(&authorities, &slot("code")));
    let operator = credentials(&authorities, &CertNames::operator());
    assert!(can_connect(&story, &code, "story").await && can_connect(&code, &story, "code").await);
    assert!(can_connect(&story, &operator, "story").await);
    assert!(!can_connect(&story, &operator, "code").await, "another tenant answers there");
    assert!(!can_connect(&operator, &story, "story").await, "the operator's certificate is no server's");
    let stranger = credentials(&foreign, &CertNames::operator());
    assert!(!can_connect(&story, &stranger, "story").await, "of another authority");
}

#[test]
fn ca_rotation_steps_are_an_hour_apart() {
    let first = CaBundle::generate(now()).unwrap();
    let rotate = now() + ROTATE_DAYS * DAY_SECONDS;
    assert_eq!(first.rotated(rotate - DAY_SECONDS).unwrap(), None);
    let announced = first.rotated(rotate).unwrap().unwrap();
    assert_eq!((&announced.signing, announced.next.is_some()), (&first.signing, true));
    assert_eq!(announced.rotated(rotate + ROTATION_OVERLAP_SECONDS - 1).unwrap(), None);
    let promoted = announced.rotated(rotate + ROTATION_OVERLAP_SECONDS).unwrap().unwrap();
    assert_eq!(Some(&promoted.signing), announced.next.as_ref());
    assert_eq!((promoted.next.as_ref(), promoted.previous.as_ref()), (None, Some(&first.signing.cert)));
    // However late a rotation step is, the next one waits for the full overlap.
    let late = rotate + 5 * ROTATION_OVERLAP_SECONDS;
    let done = CaBundle { rotated_at: late, ..promoted.clone() };
    assert_eq!(done.rotated(late + ROTATION_OVERLAP_SECONDS - 1).unwrap(), None);
    let settled = promoted.rotated(rotate + 2 * ROTATION_OVERLAP_SECONDS).unwrap().unwrap();
    assert_eq!((&settled.previous, &settled.signing), (&None, &promoted.signing));
    assert!(settled.next_rotation().unwrap() > rotate + 200 * DAY_SECONDS);
}

#[tokio::test]
async fn adjacent_rotation_steps_trust_each_other() {
    let at = now();
    let first = CaBundle::generate(at).unwrap();
    let announced = CaBundle { next: Some(CaBundle::generate(at).unwrap().signing), ..first.clone() };
    let promoted = announced.rotated(at + ROTATION_OVERLAP_SECONDS).unwrap().unwrap();
    let settled = promoted.rotated(at + 2 * ROTATION_OVERLAP_SECONDS).unwrap().unwrap();
    let steps = [first, announced, promoted, settled];
    let held: Vec<Credentials> = steps.iter().map(|step| credentials(step, &slot("story"))).collect();
    for pair in held.windows(2) {
        assert!(
            can_connect(&pair[0], &pair[1], "story").await && can_connect(&pair[1], &pair[0], "story").await
        );
    }
    assert!(!can_connect(&held[0], &held[2], "story").await, "the control: without the step between them");
    let kept =
        steps[2].to_secret().into_iter().filter_map(|(key, text)| Some((key.to_owned(), text?.into_bytes())));
    assert_eq!(CaBundle::from_secret(&kept.collect()).unwrap(), steps[2]);
}
