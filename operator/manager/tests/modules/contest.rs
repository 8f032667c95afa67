//! Sidecars that follow a newer leader, against the Lease.

use std::time::Duration;

use axum::http::StatusCode;
use axum::response::Response;
use kube::Api;
use serde_json::json;
use sluice_operator::lease::Holder;
use sluice_operator::sidecars::call::Address;
use sluice_operator::sidecars::contest::{Contest, EVERY, STEP, Verdict};
use sluice_operator::sidecars::push::{Fences, MOST_EPOCH};
use sluice_operator::sidecars::{News, Sidecars};
use sluice_wire::Directive;
use sluice_wire::directive::Fence;
use tokio::sync::mpsc;

use super::api::Server;
use super::sidecars::{PATIENCE, current, directive, fence, gpu, told, world};
use super::stub::{Came, Stub};

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/sluice-system/leases/sluice-operator";

fn holder(server: &Server, identity: &str) -> Holder {
    Holder::new(Api::namespaced(server.client(), "sluice-system"), "sluice-operator", identity, 15)
}

/// The leader of a Lease that was made only now.
async fn leader(server: &Server) -> Holder {
    let mut holder = holder(server, "one");
    assert_eq!(holder.acquire(std::future::pending()).await, Some(1));
    server.asked();
    holder
}

fn transitions(server: &Server) -> i64 {
    server.object(LEASE)["spec"]["leaseTransitions"].as_i64().unwrap()
}

fn at(port: u16) -> Address {
    Address { namespace: "ns".into(), name: "story".into(), admin: ([127, 0, 0, 1], port).into() }
}

fn of(epoch: u64) -> Fence {
    Fence { epoch, sequence: 3 }
}

#[tokio::test(start_paused = true)]
async fn whoever_holds_the_lease_goes_beyond_what_sidecars_follow_and_so_does_the_next_leader() {
    let server = Server::default();
    let (one, fences) = (leader(&server).await, Fences::new(1));
    let mut contest = Contest::new(&one, fences.clone());
    assert_eq!(contest.hear(&at(1), of(37)).await.unwrap(), Verdict::Beyond);
    assert_eq!((fences.next().epoch, transitions(&server)), (38, 38));
    server.asked();
    for port in 2..2000 {
        assert_eq!(contest.hear(&at(port), of(37)).await.unwrap(), Verdict::Beyond);
    }
    assert_eq!(server.asked(), [], "all follow the same one: that is known");
    assert_eq!(contest.hear(&at(2), of(50)).await.unwrap(), Verdict::Beyond);
    one.release().await.unwrap();
    assert_eq!(holder(&server, "two").acquire(std::future::pending()).await, Some(52));
}

#[tokio::test(start_paused = true)]
async fn one_word_takes_a_leader_not_far_and_whoever_is_further_is_reached_in_steps() {
    let server = Server::default();
    let (one, fences) = (leader(&server).await, Fences::new(1));
    let mut contest = Contest::new(&one, fences.clone());
    assert_eq!(contest.hear(&at(1), of(MOST_EPOCH)).await.unwrap(), Verdict::Nearer);
    assert_eq!((fences.epoch(), transitions(&server)), (2 + STEP, 2 + i64::try_from(STEP).unwrap()));
    assert_eq!(contest.hear(&at(3), of(MOST_EPOCH)).await.unwrap(), Verdict::TooOften, "nor do many");
    let (followed, mut minutes) = (of(5 * STEP), 0);
    while contest.hear(&at(2), followed).await.unwrap() != Verdict::Beyond {
        tokio::time::advance(EVERY).await;
        minutes += 1;
    }
    assert_eq!((minutes, fences.epoch()), (4, 5 * STEP + 1), "though its Lease had been lost");
}

#[tokio::test(start_paused = true)]
async fn a_sidecar_that_tells_of_ever_newer_leaders_is_believed_once_a_minute() {
    let server = Server::default();
    let (one, fences) = (leader(&server).await, Fences::new(1));
    let mut contest = Contest::new(&one, fences.clone());
    for minute in 0..3 {
        for word in 0..100 {
            let verdict = contest.hear(&at(1), of(fences.epoch() + 1)).await.unwrap();
            let expected = if word == 0 { Verdict::Beyond } else { Verdict::TooOften };
            assert_eq!(verdict, expected, "minute {minute}, word {word}");
        }
        assert_eq!(transitions(&server), 3 + 2 * minute);
        assert_eq!(server.asked().len(), 2, "one look at the Lease, and one write");
        tokio::time::advance(EVERY).await;
    }
}

#[tokio::test]
async fn whoever_does_not_hold_the_lease_any_more_is_deposed() {
    let server = Server::default();
    let (one, fences) = (leader(&server).await, Fences::new(1));
    let mut lease = server.object(LEASE);
    lease["spec"]["holderIdentity"] = json!("two");
    server.put(LEASE, lease.clone());
    let mut contest = Contest::new(&one, fences.clone());
    assert_eq!(contest.hear(&at(1), of(2)).await.unwrap(), Verdict::Deposed);
    assert_eq!((fences.epoch(), server.object(LEASE)), (1, lease));
}

/// Does with the words of sidecars what a leader does, until something is as it must be.
async fn heard_until(
    contest: &mut Contest<'_>,
    news: &mut mpsc::UnboundedReceiver<News>,
    mut done: impl FnMut(&News) -> bool,
) {
    let heard = async {
        loop {
            let word = news.recv().await.expect("sidecars are there");
            if let News::Deposed(sidecar, fence) = &word {
                assert_ne!(contest.hear(sidecar, *fence).await.unwrap(), Verdict::Deposed);
            }
            if done(&word) {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, heard).await.expect("in time");
}

/// As a sidecar that follows the leader of an epoch and takes what is newer.
fn follows(mut last: Fence) -> impl FnMut(&Came) -> Response {
    move |came| {
        if !came.line.starts_with("PUT") {
            return told(came);
        }
        let sent = fence(came);
        let newer = (sent.epoch, sent.sequence) > (last.epoch, last.sequence);
        last = if newer { sent } else { last };
        current(if newer { StatusCode::OK } else { StatusCode::CONFLICT }, last.epoch, last.sequence)
    }
}

#[tokio::test]
async fn sidecars_that_the_lease_does_not_know_of_have_their_directives_soon() {
    let (server, world) = (Server::default(), world());
    let one = leader(&server).await;
    let story = Stub::start(&world.authorities, "story", follows(of(37))).await;
    let code = Stub::start(&world.authorities, "code", follows(of(41))).await;
    let (sender, mut news) = mpsc::unbounded_channel();
    let mut sidecars = Sidecars::new(world.way.clone(), 1, sender).read_every(None);
    let mut contest = Contest::new(&one, sidecars.fences());
    sidecars.set("ns", "p", vec![gpu(&[&story, &code], &directive())]);
    let mut left = vec!["story", "code"];
    heard_until(&mut contest, &mut news, |word| {
        if let News::Told(address, None) = word {
            left.retain(|name| *name != address.name);
        }
        left.is_empty()
    })
    .await;
    assert_eq!((transitions(&server), sidecars.untold_count()), (42, 0));
}

#[tokio::test]
async fn a_sidecar_that_lies_about_its_leader_ends_nobody_and_keeps_nobody_from_its_directive() {
    let (server, world) = (Server::default(), world());
    let one = leader(&server).await;
    let liar = Stub::start(&world.authorities, "liar", |came| match came.line.starts_with("PUT") {
        true => current(StatusCode::CONFLICT, fence(came).epoch + 1, 1),
        false => told(came),
    });
    let (liar, code) = (liar.await, Stub::start(&world.authorities, "code", follows(of(0))).await);
    let (sender, mut news) = mpsc::unbounded_channel();
    let mut sidecars = Sidecars::new(world.way.clone(), 1, sender).read_every(None);
    let mut contest = Contest::new(&one, sidecars.fences());
    sidecars.set("ns", "p", vec![gpu(&[&liar, &code], &directive())]);
    heard_until(&mut contest, &mut news, |word| matches!(word, News::Stuck(_))).await;
    let untold = sidecars.untold("ns", "p");
    let [((tenant, _), why)] = &untold.iter().collect::<Vec<_>>()[..] else { panic!("{untold:?}") };
    assert!(tenant == "liar" && why.contains("it follows a newer leader"), "{why}");
    assert_eq!(transitions(&server), 3, "it was believed once");

    let other = Directive { policy: "Recompute".into(), ..directive() };
    let began = tokio::time::Instant::now();
    sidecars.set("ns", "p", vec![gpu(&[&liar, &code], &other)]);
    let has_it = |word: &News| matches!(word, News::Told(address, None) if address.name == "code");
    heard_until(&mut contest, &mut news, has_it).await;
    assert!(began.elapsed() < Duration::from_secs(10));
    assert!(code.seen().last().is_some_and(|came| came.body.contains("Recompute")));
    assert_eq!(transitions(&server), 3);
}
