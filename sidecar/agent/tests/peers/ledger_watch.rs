//! Tests of the messages that the ledger watch sends to the scheduler.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use sluice_agent::clock::Clock;
use sluice_agent::directive::DirectiveStore;
use sluice_agent::peers::client::{PeerClient, PeerCredential};
use sluice_agent::peers::grant_client::GrantClient;
use sluice_agent::peers::ledger_watch::watch_ledger;
use sluice_agent::peers::pending_replies::PendingReplies;
use sluice_agent::scheduler_handle::{MessageSender, SchedulerMessage};
use sluice_memory::gpu_ledger::{GpuLedger, ParticipantHandle};
use sluice_policy::loan_negotiator::{NegotiationPolicy, PeerEvent};
use sluice_policy::peers::Peer;
use sluice_ports::peers::PeerPortEvent;
use sluice_wire::directive::{self, Directive, PeerInfo, Sharing, TenantRule, VictimRule};
use tempfile::TempDir;

use super::pending_replies::{CHUNK, identity, join, participants};
use crate::gateway::client::TIMEOUT;

pub fn grant_client(
    folder: &TempDir,
    participant: &Arc<ParticipantHandle>,
) -> (GrantClient, Receiver<SchedulerMessage>) {
    let (inbox, messages) = MessageSender::new();
    let client = GrantClient {
        ledger: participant.clone(),
        replies: Arc::new(PendingReplies::new(participant.clone(), "default", "story", CHUNK)),
        directives: Arc::new(DirectiveStore::open(folder.path().join("directive"), Box::new(|_| Ok(())))),
        client: Arc::new(PeerClient::new(PeerCredential::Nothing)),
        inbox,
        clock: Clock::start(),
        terms: NegotiationPolicy::default(),
        slice_order: None,
        state_cache: Arc::default(),
    };
    (client, messages)
}

/// Returns when the exit of `peer` is reported.
fn assert_peer_exited(peer: Peer, messages: &Receiver<SchedulerMessage>) {
    let begun = Instant::now();
    loop {
        let left = TIMEOUT.saturating_sub(begun.elapsed());
        let message = messages.recv_timeout(left).expect("its death is reported");
        if matches!(message, SchedulerMessage::Peer(event) if *event == PeerPortEvent::Peer(PeerEvent::Died(peer)))
        {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_of_unseen_peer_is_reported() {
    let (folder, [participant]) = participants(["story"]);
    let (client, messages) = grant_client(&folder, &participant);
    let replies = client.replies.clone();
    let watching = tokio::spawn(watch_ledger(client));
    // It starts, sends a message and exits between two checks.
    let brief = join(&folder, "code");
    let peer = brief.peer();
    drop(brief);
    replies.track(peer);
    tokio::task::spawn_blocking(move || assert_peer_exited(peer, &messages)).await.unwrap();
    // It is reported once and then removed.
    let begun = Instant::now();
    while replies.tracked().contains(&peer) {
        assert!(begun.elapsed() < TIMEOUT);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    watching.abort();
}

/// Returns a directive with peers in the given order; the fallback order is the reverse.
fn directive(victim: VictimRule, names: &[&str]) -> Vec<u8> {
    let peer_info = |(at, name): (usize, &&str)| PeerInfo {
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
        peers: names.iter().enumerate().map(peer_info).collect(),
        fallback_order: names.iter().rev().map(|name| (*name).to_owned()).collect(),
    };
    serde_json::to_vec(&directive).expect("a directive is JSON")
}

/// Returns when a state with this order is reported, with its priorities.
fn order_of(expected: &[Peer], messages: &Receiver<SchedulerMessage>) -> Vec<(Peer, i32)> {
    let begun = Instant::now();
    let mut last = None;
    loop {
        let left = TIMEOUT.saturating_sub(begun.elapsed());
        let message = messages.recv_timeout(left);
        let message = message.unwrap_or_else(|_| panic!("{expected:?} is not reported, but {last:?}"));
        if let SchedulerMessage::Peer(event) = message
            && let PeerPortEvent::Peer(PeerEvent::Terms(terms)) = *event
        {
            if terms.order == expected {
                return terms.priorities;
            }
            last = Some(terms.order);
        }
    }
}

/// Joins a new instance of `name` once the former one is released. A child process of another test may hold the former
/// one's open file for a moment.
fn restart(folder: &TempDir, name: &str) -> ParticipantHandle {
    let ledger = GpuLedger::open(folder.path(), &identity()).expect("a ledger");
    let begun = Instant::now();
    loop {
        match ledger.join(&format!("default/{name}"), 0, 30 * CHUNK) {
            Ok(participant) => return participant,
            Err(error) => assert!(begun.elapsed() < TIMEOUT, "{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_peer_is_addressed_by_new_instance() {
    let (folder, [participant]) = participants(["story"]);
    let (client, messages) = grant_client(&folder, &participant);
    client.directives.put(&directive(VictimRule::MostRecentlyUsed, &["code"])).unwrap();
    let first = restart(&folder, "code");
    let watching = tokio::spawn(watch_ledger(client));
    let ordered = tokio::task::spawn_blocking(move || {
        order_of(&[first.peer()], &messages);
        drop(first);
        let second = restart(&folder, "code");
        order_of(&[second.peer()], &messages);
    });
    ordered.await.unwrap();
    watching.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn fixed_order_follows_peers_and_other_rules_use_fallback() {
    for (victim, reversed) in [(VictimRule::FixedOrder, false), (VictimRule::LeastRecentlyUsed, true)] {
        let (folder, [participant, alpha, beta]) = participants(["story", "alpha", "beta"]);
        let (client, messages) = grant_client(&folder, &participant);
        client.directives.put(&directive(victim, &["alpha", "beta"])).unwrap();
        let watching = tokio::spawn(watch_ledger(client));
        let mut expected = [alpha.peer(), beta.peer()];
        if reversed {
            expected.reverse();
        }
        let order = tokio::task::spawn_blocking(move || order_of(&expected, &messages)).await.unwrap();
        assert_eq!(order, [(alpha.peer(), 0), (beta.peer(), 1)]);
        watching.abort();
    }
}
