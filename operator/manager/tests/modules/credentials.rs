//! Certificates: what they say, when they are made anew, and who accepts whom.

use rustls::pki_types::ServerName;
use sluice_operator::credentials::authorities::{Authorities, OVERLAP, ROTATE_DAYS};
use sluice_operator::credentials::due::{BEFORE_END_DAYS, Credentials, Due, due, renewed};
use sluice_operator::credentials::issue::{DAY, LEAF_DAYS, Names, belongs, read};
use sluice_operator::sidecars::tls::client_config;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::stub::{credentials, now, server_config};

const CLAIM: &str = "gh200-chat-0-e1.gh200";

fn slot(name: &str) -> Names {
    Names::slot("ns", name, CLAIM)
}

/// Whether the sidecar of `name` that holds `server` and whoever holds `client` accept each other.
async fn meet(server: &Credentials, client: &Credentials, name: &str) -> bool {
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
    // With TLS 1.3 a client learns only by the first read that it was refused.
    let said = said.await.is_ok();
    said && accepted.await.unwrap().is_ok()
}

#[test]
fn a_certificate_of_a_slot_has_its_names_its_time_and_its_key() {
    let authorities = Authorities::first(now()).unwrap();
    let held = credentials(&authorities, &slot("story"));
    let said = read(&held.identity.cert).unwrap();
    let names = said.names.clone().unwrap();
    assert_eq!(names.dns.as_deref(), Some("story.ns.sidecar.sluice"));
    assert_eq!(names.uri, format!("spiffe://sluice/role/neighbour/{CLAIM}"));
    assert!(belongs(&held.identity.key, &said.public_key));
    assert!((said.not_after - now() - LEAF_DAYS * DAY).abs() < 60);
    assert!(said.not_before < now(), "a node's clock may be behind");
    let own = read(&credentials(&authorities, &Names::operator()).identity.cert).unwrap();
    assert_eq!(own.names, Some(Names { dns: None, uri: "spiffe://sluice/role/operator".into() }));
    let authority = read(&authorities.signing.cert).unwrap();
    assert_eq!((said.issuer, said.not_after < authority.not_after), (authority.subject, true));
}

#[test]
fn a_certificate_is_made_anew_after_twenty_days_and_whenever_it_is_wrong() {
    let authorities = Authorities::first(now()).unwrap();
    let held = credentials(&authorities, &slot("story"));
    let at = |names: &Names, authorities: &Authorities, days: i64| {
        due(Some(&held), names, authorities, now() + days * DAY)
    };
    let said = read(&held.identity.cert).unwrap();
    assert_eq!(at(&slot("story"), &authorities, 19), Due::At(said.not_after - BEFORE_END_DAYS * DAY));
    let renew = |due: Due| matches!(due, Due::Renew(_));
    assert!(renew(at(&slot("story"), &authorities, 21)));
    assert!(renew(at(&slot("code"), &authorities, 0)), "of another tenant");
    assert!(renew(at(&Names::slot("ns", "story", "gh200-chat-1-e1.gh200"), &authorities, 0)), "another GPU");
    assert!(renew(at(&slot("story"), &Authorities::first(now() + 1).unwrap(), 0)), "another authority");
    assert!(renew(due(None, &slot("story"), &authorities, now())));
    let mut other = held.clone();
    other.identity.key = credentials(&authorities, &slot("story")).identity.key;
    assert!(renew(due(Some(&other), &slot("story"), &authorities, now())), "another key");
    other.identity.cert = "nonsense".into();
    assert!(renew(due(Some(&other), &slot("story"), &authorities, now())));
    let bundle = Credentials { bundle: String::new(), ..held.clone() };
    assert_eq!(due(Some(&bundle), &slot("story"), &authorities, now()), Due::Bundle);
    let fresh = renewed(Some(&bundle), &slot("story"), &authorities, now()).unwrap().unwrap();
    assert_eq!(fresh, held, "only the bundle is another one");
}

#[tokio::test]
async fn sidecars_and_the_operator_accept_each_other_by_name_and_nobody_else() {
    let (authorities, foreign) = (Authorities::first(now()).unwrap(), Authorities::first(now()).unwrap());
    let (story, code) = (credentials(&authorities, &slot("story")), credentials(&authorities, &slot("code")));
    let operator = credentials(&authorities, &Names::operator());
    assert!(meet(&story, &code, "story").await && meet(&code, &story, "code").await);
    assert!(meet(&story, &operator, "story").await);
    assert!(!meet(&story, &operator, "code").await, "another tenant answers there");
    assert!(!meet(&operator, &story, "story").await, "the operator's certificate is no server's");
    let stranger = credentials(&foreign, &Names::operator());
    assert!(!meet(&story, &stranger, "story").await, "of another authority");
}

#[test]
fn an_authority_is_announced_signs_and_is_let_go_an_hour_apart() {
    let first = Authorities::first(now()).unwrap();
    let rotate = now() + ROTATE_DAYS * DAY;
    assert_eq!(first.turned(rotate - DAY).unwrap(), None);
    let announced = first.turned(rotate).unwrap().unwrap();
    assert_eq!((&announced.signing, announced.next.is_some()), (&first.signing, true));
    assert_eq!(announced.turned(rotate + OVERLAP - 1).unwrap(), None);
    let promoted = announced.turned(rotate + OVERLAP).unwrap().unwrap();
    assert_eq!(Some(&promoted.signing), announced.next.as_ref());
    assert_eq!((promoted.next.as_ref(), promoted.previous.as_ref()), (None, Some(&first.signing.cert)));
    // However late a step is taken, the next one waits its time.
    let late = rotate + 5 * OVERLAP;
    let done = Authorities { turned_at: late, ..promoted.clone() };
    assert_eq!(done.turned(late + OVERLAP - 1).unwrap(), None);
    let settled = promoted.turned(rotate + 2 * OVERLAP).unwrap().unwrap();
    assert_eq!((&settled.previous, &settled.signing), (&None, &promoted.signing));
    assert!(settled.next_turn().unwrap() > rotate + 200 * DAY);
}

#[tokio::test]
async fn during_a_rotation_those_of_one_step_accept_those_of_the_step_before() {
    let at = now();
    let first = Authorities::first(at).unwrap();
    let announced = Authorities { next: Some(Authorities::first(at).unwrap().signing), ..first.clone() };
    let promoted = announced.turned(at + OVERLAP).unwrap().unwrap();
    let settled = promoted.turned(at + 2 * OVERLAP).unwrap().unwrap();
    let steps = [first, announced, promoted, settled];
    let held: Vec<Credentials> = steps.iter().map(|step| credentials(step, &slot("story"))).collect();
    for pair in held.windows(2) {
        assert!(meet(&pair[0], &pair[1], "story").await && meet(&pair[1], &pair[0], "story").await);
    }
    assert!(!meet(&held[0], &held[2], "story").await, "the control: without the step between them");
    let kept =
        steps[2].to_secret().into_iter().filter_map(|(key, text)| Some((key.to_owned(), text?.into_bytes())));
    assert_eq!(Authorities::of_secret(&kept.collect()).unwrap(), steps[2]);
}
