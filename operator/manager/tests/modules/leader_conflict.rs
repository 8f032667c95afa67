//! Tests sidecars that follow a newer leader, against the Lease.

use std::time::Duration;

use axum::http::StatusCode;
use axum::response::Response;
use kube::Api;
use serde_json::json;
use sluice_operator::leader_election::LeaderElection;
use sluice_operator::sidecars::http_client::SidecarAddress;
use sluice_operator::sidecars::leader_conflict::{
    ConflictAction, LeaderConflict, MAX_RAISE_STEP, RAISE_INTERVAL,
};
use sluice_operator::sidecars::pusher::{FenceCounter, MAX_EPOCH};
use sluice_operator::sidecars::{SidecarEvent, SidecarRegistry};
use sluice_wire::Directive;
use sluice_wire::directive::Fence;
use tokio::sync::mpsc;

use super::fake_api_server::FakeApiServer;
use super::sidecars::{
    TEST_TIMEOUT, accept_directive, current_fence_response, directive, fixture, gpu_of_stubs, request_fence,
};
use super::stub::{StubRequest, StubSidecar};

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/sluice-system/leases/sluice-operator";

fn election(server: &FakeApiServer, identity: &str) -> LeaderElection {
    LeaderElection::new(Api::namespaced(server.client(), "sluice-system"), "sluice-operator", identity, 15)
}

/// Returns the leader of a newly created Lease.
async fn leader(server: &FakeApiServer) -> LeaderElection {
    let mut holder = election(server, "one");
    assert_eq!(holder.acquire(std::future::pending()).await, Some(1));
    server.requests();
    holder
}

fn transitions(server: &FakeApiServer) -> i64 {
    server.object(LEASE)["spec"]["leaseTransitions"].as_i64().unwrap()
}

fn sidecar_address(port: u16) -> SidecarAddress {
    SidecarAddress { namespace: "ns".into(), name: "story".into(), admin_addr: ([127, 0, 0, 1], port).into() }
}

fn fence_of_epoch(epoch: u64) -> Fence {
    Fence { epoch, sequence: 3 }
}

#[tokio::test(start_paused = true)]
async fn lease_holder_and_successor_exceed_sidecar_epoch() {
    let server = FakeApiServer::default();
    let (one, fences) = (leader(&server).await, FenceCounter::new(1));
    let mut conflict = LeaderConflict::new(&one, fences.clone());
    assert_eq!(
        conflict.on_newer_leader(&sidecar_address(1), fence_of_epoch(37)).await.unwrap(),
        ConflictAction::Raised
    );
    assert_eq!((fences.next().epoch, transitions(&server)), (38, 38));
    server.requests();
    for port in 2..2000 {
        assert_eq!(
            conflict.on_newer_leader(&sidecar_address(port), fence_of_epoch(37)).await.unwrap(),
            ConflictAction::Raised
        );
    }
    assert_eq!(server.requests(), [], "all follow the same one: that is known");
    assert_eq!(
        conflict.on_newer_leader(&sidecar_address(2), fence_of_epoch(50)).await.unwrap(),
        ConflictAction::Raised
    );
    one.release().await.unwrap();
    assert_eq!(election(&server, "two").acquire(std::future::pending()).await, Some(52));
}

#[tokio::test(start_paused = true)]
async fn epoch_raise_is_bounded_and_repeats_in_steps() {
    let server = FakeApiServer::default();
    let (one, fences) = (leader(&server).await, FenceCounter::new(1));
    let mut conflict = LeaderConflict::new(&one, fences.clone());
    assert_eq!(
        conflict.on_newer_leader(&sidecar_address(1), fence_of_epoch(MAX_EPOCH)).await.unwrap(),
        ConflictAction::PartlyRaised
    );
    assert_eq!(
        (fences.epoch(), transitions(&server)),
        (2 + MAX_RAISE_STEP, 2 + i64::try_from(MAX_RAISE_STEP).unwrap())
    );
    assert_eq!(
        conflict.on_newer_leader(&sidecar_address(3), fence_of_epoch(MAX_EPOCH)).await.unwrap(),
        ConflictAction::RateLimited,
        "nor do many"
    );
    let (followed, mut minutes) = (fence_of_epoch(5 * MAX_RAISE_STEP), 0);
    while conflict.on_newer_leader(&sidecar_address(2), followed).await.unwrap() != ConflictAction::Raised {
        tokio::time::advance(RAISE_INTERVAL).await;
        minutes += 1;
    }
    assert_eq!((minutes, fences.epoch()), (4, 5 * MAX_RAISE_STEP + 1), "though its Lease had been lost");
}

#[tokio::test(start_paused = true)]
async fn sidecar_with_rising_epochs_is_rate_limited() {
    let server = FakeApiServer::default();
    let (one, fences) = (leader(&server).await, FenceCounter::new(1));
    let mut conflict = LeaderConflict::new(&one, fences.clone());
    for minute in 0..3 {
        for word in 0..100 {
            let verdict = conflict
                .on_newer_leader(&sidecar_address(1), fence_of_epoch(fences.epoch() + 1))
                .await
                .unwrap();
            let expected = if word == 0 { ConflictAction::Raised } else { ConflictAction::RateLimited };
            assert_eq!(verdict, expected, "minute {minute}, word {word}");
        }
        assert_eq!(transitions(&server), 3 + 2 * minute);
        assert_eq!(server.requests().len(), 2, "one look at the Lease, and one write");
        tokio::time::advance(RAISE_INTERVAL).await;
    }
}

#[tokio::test]
async fn leader_without_lease_is_deposed() {
    let server = FakeApiServer::default();
    let (one, fences) = (leader(&server).await, FenceCounter::new(1));
    let mut lease = server.object(LEASE);
    lease["spec"]["holderIdentity"] = json!("two");
    server.put(LEASE, lease.clone());
    let mut conflict = LeaderConflict::new(&one, fences.clone());
    assert_eq!(
        conflict.on_newer_leader(&sidecar_address(1), fence_of_epoch(2)).await.unwrap(),
        ConflictAction::Deposed
    );
    assert_eq!((fences.epoch(), server.object(LEASE)), (1, lease));
}

/// Handles the events of sidecars as a leader does, until a condition holds.
async fn handle_events_until(
    conflict: &mut LeaderConflict<'_>,
    news: &mut mpsc::UnboundedReceiver<SidecarEvent>,
    mut done: impl FnMut(&SidecarEvent) -> bool,
) {
    let handled = async {
        loop {
            let word = news.recv().await.expect("sidecars are there");
            if let SidecarEvent::Deposed(sidecar, fence) = &word {
                assert_ne!(conflict.on_newer_leader(sidecar, *fence).await.unwrap(), ConflictAction::Deposed);
            }
            if done(&word) {
                return;
            }
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, handled).await.expect("in time");
}

/// Answers as a sidecar that follows the leader of an epoch and accepts newer directives.
fn follower_script(mut last: Fence) -> impl FnMut(&StubRequest) -> Response {
    move |came| {
        if !came.line.starts_with("PUT") {
            return accept_directive(came);
        }
        let sent = request_fence(came);
        let newer = (sent.epoch, sent.sequence) > (last.epoch, last.sequence);
        last = if newer { sent } else { last };
        current_fence_response(
            if newer { StatusCode::OK } else { StatusCode::CONFLICT },
            last.epoch,
            last.sequence,
        )
    }
}

#[tokio::test]
async fn sidecars_ahead_of_lease_get_directives_soon() {
    let (server, world) = (FakeApiServer::default(), fixture());
    let one = leader(&server).await;
    let story = StubSidecar::start(&world.authorities, "story", follower_script(fence_of_epoch(37))).await;
    let code = StubSidecar::start(&world.authorities, "code", follower_script(fence_of_epoch(41))).await;
    let (sender, mut news) = mpsc::unbounded_channel();
    let mut sidecars = SidecarRegistry::new(world.transport.clone(), 1, sender).with_poll_interval(None);
    let mut conflict = LeaderConflict::new(&one, sidecars.fences());
    sidecars.set("ns", "p", vec![gpu_of_stubs(&[&story, &code], &directive())]);
    let mut left = vec!["story", "code"];
    handle_events_until(&mut conflict, &mut news, |word| {
        if let SidecarEvent::DirectiveStatus(address, None) = word {
            left.retain(|name| *name != address.name);
        }
        left.is_empty()
    })
    .await;
    assert_eq!((transitions(&server), sidecars.undelivered_count()), (42, 0));
}

#[tokio::test]
async fn false_leader_epoch_stops_no_operator_and_blocks_no_directive() {
    let (server, world) = (FakeApiServer::default(), fixture());
    let one = leader(&server).await;
    let liar = StubSidecar::start(&world.authorities, "liar", |came| match came.line.starts_with("PUT") {
        true => current_fence_response(StatusCode::CONFLICT, request_fence(came).epoch + 1, 1),
        false => accept_directive(came),
    });
    let (liar, code) = (
        liar.await,
        StubSidecar::start(&world.authorities, "code", follower_script(fence_of_epoch(0))).await,
    );
    let (sender, mut news) = mpsc::unbounded_channel();
    let mut sidecars = SidecarRegistry::new(world.transport.clone(), 1, sender).with_poll_interval(None);
    let mut conflict = LeaderConflict::new(&one, sidecars.fences());
    sidecars.set("ns", "p", vec![gpu_of_stubs(&[&liar, &code], &directive())]);
    handle_events_until(&mut conflict, &mut news, |word| matches!(word, SidecarEvent::Stuck(_))).await;
    let undelivered = sidecars.undelivered("ns", "p");
    let [((tenant, _), why)] = &undelivered.iter().collect::<Vec<_>>()[..] else { panic!("{undelivered:?}") };
    assert!(tenant == "liar" && why.contains("the sidecar follows a newer leader"), "{why}");
    assert_eq!(transitions(&server), 3, "it was believed once");

    let other = Directive { policy: "Recompute".into(), ..directive() };
    let began = tokio::time::Instant::now();
    sidecars.set("ns", "p", vec![gpu_of_stubs(&[&liar, &code], &other)]);
    let has_it = |word: &SidecarEvent| matches!(word, SidecarEvent::DirectiveStatus(address, None) if address.name == "code");
    handle_events_until(&mut conflict, &mut news, has_it).await;
    assert!(began.elapsed() < Duration::from_secs(10));
    assert!(code.take_requests().last().is_some_and(|came| came.body.contains("Recompute")));
    assert_eq!(transitions(&server), 3);
}
