//! What a look at the ledger tells the scheduler.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use sluice_agent::clock::Clock;
use sluice_agent::directive::Directives;
use sluice_agent::neighbours::client::{Client, Credential};
use sluice_agent::neighbours::desk::Desk;
use sluice_agent::neighbours::office::Office;
use sluice_agent::neighbours::watch::watch;
use sluice_agent::service::{Inbox, Message};
use sluice_memory::gpu_ledger::{GpuLedger, ParticipantHandle};
use sluice_policy::loan_negotiator::{NegotiationPolicy, PeerEvent};
use sluice_policy::peers::Peer;
use sluice_ports::peers::PeerPortEvent;
use sluice_wire::directive::{self, Directive, Neighbour, Sharing, TenantRule, VictimRule};
use tempfile::TempDir;

use super::desk::{CHUNK, identity, join, seats};
use crate::gateway::client::PATIENCE;

pub fn office(folder: &TempDir, seat: &Arc<ParticipantHandle>) -> (Office, Receiver<Message>) {
    let (inbox, messages) = Inbox::new();
    let office = Office {
        seat: seat.clone(),
        desk: Arc::new(Desk::new(seat.clone(), "default", "story", CHUNK)),
        directives: Arc::new(Directives::open(folder.path().join("directive"), Box::new(|_| Ok(())))),
        client: Arc::new(Client::new(Credential::Nothing)),
        inbox,
        clock: Clock::start(),
        terms: NegotiationPolicy::default(),
        order: None,
        heard: Arc::default(),
    };
    (office, messages)
}

/// Returns when the death of `peer` is told.
fn death_of(peer: Peer, messages: &Receiver<Message>) {
    let begun = Instant::now();
    loop {
        let left = PATIENCE.saturating_sub(begun.elapsed());
        let message = messages.recv_timeout(left).expect("its death is told");
        if matches!(message, Message::Neighbour(event) if *event == PeerPortEvent::Peer(PeerEvent::Died(peer)))
        {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_death_of_a_neighbour_that_no_look_has_seen_is_told() {
    let (folder, [seat]) = seats(["story"]);
    let (office, messages) = office(&folder, &seat);
    let desk = office.desk.clone();
    let watching = tokio::spawn(watch(office));
    // It comes, says something and goes between two looks.
    let brief = join(&folder, "code");
    let peer = brief.peer();
    drop(brief);
    desk.meet(peer);
    tokio::task::spawn_blocking(move || death_of(peer, &messages)).await.unwrap();
    // Told once, and then forgotten.
    let begun = Instant::now();
    while desk.met().contains(&peer) {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    watching.abort();
}

/// Neighbours in the order given; the fallback order is the other way round.
fn directive(victim: VictimRule, names: &[&str]) -> Vec<u8> {
    let neighbour = |(at, name): (usize, &&str)| Neighbour {
        namespace: "default".into(),
        name: (*name).into(),
        pod_uid: None,
        claim_uid: None,
        admin: ([127, 0, 0, 1], 9000 + at as u16).into(),
        priority: at as i32,
        share_bytes: 30 * CHUNK,
        floor_bytes: 0,
    };
    let directive = Directive {
        version: directive::VERSION,
        epoch: 1,
        sequence: 1,
        policy: "Oneiros".into(),
        tenant: TenantRule {
            priority: 0,
            max_remapped_percent: 60,
            share_bytes: None,
            hibernate_after_seconds: None,
            idle_after_seconds: 30,
        },
        gpu_uuid: None,
        sharing: Sharing::Spatial,
        victim,
        min_residence_ms: 0,
        revoke_bound_ms: 200,
        neighbours: names.iter().enumerate().map(neighbour).collect(),
        fallback_order: names.iter().rev().map(|name| (*name).to_owned()).collect(),
    };
    serde_json::to_vec(&directive).expect("a directive is JSON")
}

/// Returns when terms with this order are told, with the priorities that they name.
fn order_of(expected: &[Peer], messages: &Receiver<Message>) -> Vec<(Peer, i32)> {
    let begun = Instant::now();
    let mut last = None;
    loop {
        let left = PATIENCE.saturating_sub(begun.elapsed());
        let message = messages.recv_timeout(left);
        let message = message.unwrap_or_else(|_| panic!("{expected:?} is not told, but {last:?}"));
        if let Message::Neighbour(event) = message
            && let PeerPortEvent::Peer(PeerEvent::Terms(terms)) = *event
        {
            if terms.order == expected {
                return terms.priorities;
            }
            last = Some(terms.order);
        }
    }
}

/// A new life of `name` once the former one is gone: a child that another test starts has its description for a moment.
fn next_life(folder: &TempDir, name: &str) -> ParticipantHandle {
    let ledger = GpuLedger::open(folder.path(), &identity()).expect("a ledger");
    let begun = Instant::now();
    loop {
        match ledger.join(&format!("default/{name}"), 0, 30 * CHUNK) {
            Ok(seat) => return seat,
            Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_neighbour_that_dies_and_returns_between_two_looks_is_asked_by_its_new_name() {
    let (folder, [seat]) = seats(["story"]);
    let (office, messages) = office(&folder, &seat);
    office.directives.put(&directive(VictimRule::MostRecentlyUsed, &["code"])).unwrap();
    let first = next_life(&folder, "code");
    let watching = tokio::spawn(watch(office));
    let told = tokio::task::spawn_blocking(move || {
        order_of(&[first.peer()], &messages);
        drop(first);
        let second = next_life(&folder, "code");
        order_of(&[second.peer()], &messages);
    });
    told.await.unwrap();
    watching.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fixed_order_is_that_of_the_neighbours_and_other_rules_fall_back_on_the_other() {
    for (victim, reversed) in [(VictimRule::FixedOrder, false), (VictimRule::LeastRecentlyUsed, true)] {
        let (folder, [seat, alpha, beta]) = seats(["story", "alpha", "beta"]);
        let (office, messages) = office(&folder, &seat);
        office.directives.put(&directive(victim, &["alpha", "beta"])).unwrap();
        let watching = tokio::spawn(watch(office));
        let mut expected = [alpha.peer(), beta.peer()];
        if reversed {
            expected.reverse();
        }
        let told = tokio::task::spawn_blocking(move || order_of(&expected, &messages)).await.unwrap();
        assert_eq!(told, [(alpha.peer(), 0), (beta.peer(), 1)]);
        watching.abort();
    }
}
