//! Directives and readings, against sidecars over real TLS.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use sluice_operator::credentials::authorities::Authorities;
use sluice_operator::sidecars::call::{Address, CallError, Way};
use sluice_operator::sidecars::push::{Fared, Fences, deliver};
use sluice_operator::sidecars::{Gpu, GpuKey, News, Sidecars, Target, poll};
use sluice_wire::Directive;
use sluice_wire::directive::Fence;
use sluice_wire::state::{GpuState, Phase, State, TenantReport};
use tokio::sync::{mpsc, watch};

use super::stub::{Came, Stub, now, operator};

pub const PATIENCE: Duration = Duration::from_secs(20);
const GOLDEN: &str = include_str!("../../../../crds/wire/tests/golden/directive-v1.json");

pub fn directive() -> Directive {
    let directive = Directive::from_json(GOLDEN.as_bytes()).unwrap();
    Directive { epoch: 0, sequence: 0, ..directive }
}

pub struct World {
    pub authorities: Authorities,
    pub way: Way,
    _credentials: watch::Sender<Option<Arc<rustls::ClientConfig>>>,
}

pub fn world() -> World {
    let authorities = Authorities::first(now()).unwrap();
    let (sender, credentials) = watch::channel(Some(operator(&authorities)));
    World { authorities, way: Way::new(credentials, Duration::from_secs(5)), _credentials: sender }
}

pub fn current(status: StatusCode, epoch: u64, sequence: u64) -> Response {
    let current = json!({"epoch": epoch, "sequence": sequence});
    (status, Json(json!({"error": {"message": "not newer"}, "current": current}))).into_response()
}

pub fn fence(came: &Came) -> Fence {
    let sent: Value = serde_json::from_str(&came.body).unwrap();
    Fence { epoch: sent["epoch"].as_u64().unwrap(), sequence: sent["sequence"].as_u64().unwrap() }
}

async fn pushed(world: &World, stub: &Stub, troubles: &mut Vec<String>) -> Fared {
    let fences = Fences::new(7);
    let trouble = |problem: Option<&str>| troubles.extend(problem.map(str::to_owned));
    let sent = directive();
    let delivered = deliver(&world.way, &stub.address, &sent, &fences, trouble);
    tokio::time::timeout(PATIENCE, delivered).await.expect("in time")
}

#[tokio::test]
async fn a_directive_is_sent_with_the_leaders_epoch_and_taken() {
    let world = world();
    let stub = Stub::start(&world.authorities, "story", |came| {
        let Fence { epoch, sequence } = fence(came);
        current(StatusCode::OK, epoch, sequence)
    });
    let stub = stub.await;
    let fared = pushed(&world, &stub, &mut Vec::new()).await;
    assert_eq!(fared, Fared::Taken(Fence { epoch: 7, sequence: 1 }));
    let seen = stub.seen();
    assert_eq!((seen.len(), seen[0].line.as_str()), (1, "PUT /v1/directive"));
    let sent = Directive::from_json(seen[0].body.as_bytes()).unwrap();
    assert_eq!(Directive { epoch: 0, sequence: 0, ..sent }, directive());
}

#[tokio::test]
async fn one_that_was_put_by_hand_is_gone_past_and_a_newer_leader_is_obeyed() {
    let world = world();
    let stub = Stub::start(&world.authorities, "story", |came| match fence(came) {
        Fence { epoch, sequence } if sequence > 40 => current(StatusCode::OK, epoch, sequence),
        Fence { epoch, .. } => current(StatusCode::CONFLICT, epoch, 40),
    });
    let stub = stub.await;
    assert_eq!(pushed(&world, &stub, &mut Vec::new()).await, Fared::Taken(Fence { epoch: 7, sequence: 41 }));
    let deposed = Stub::start(&world.authorities, "code", |_| current(StatusCode::CONFLICT, 8, 1)).await;
    let fared = pushed(&world, &deposed, &mut Vec::new()).await;
    assert_eq!(fared, Fared::Deposed(Fence { epoch: 8, sequence: 1 }));
    assert_eq!(deposed.seen().len(), 1);
}

#[tokio::test]
async fn a_sidecar_that_tells_of_a_leader_who_cannot_be_is_not_believed() {
    let world = world();
    let mut lies = vec![(7, u64::MAX), (u64::MAX, 1), (1 << 31, 1)];
    let stub = Stub::start(&world.authorities, "story", move |came| match lies.pop() {
        Some((epoch, sequence)) => current(StatusCode::CONFLICT, epoch, sequence),
        None => current(StatusCode::OK, fence(came).epoch, fence(came).sequence),
    });
    let (stub, mut troubles) = (stub.await, Vec::new());
    assert_eq!(pushed(&world, &stub, &mut troubles).await, Fared::Taken(Fence { epoch: 7, sequence: 1 }));
    assert!(troubles.len() == 3 && troubles.iter().all(|one| one.contains("cannot be")), "{troubles:?}");
}

#[tokio::test]
async fn who_is_always_ahead_is_asked_no_more_often_than_who_always_fails() {
    let world = world();
    let mut ahead = 5;
    let stub = Stub::start(&world.authorities, "story", move |came| {
        let Fence { epoch, sequence } = fence(came);
        ahead -= 1;
        current(
            if ahead > 0 { StatusCode::CONFLICT } else { StatusCode::OK },
            epoch,
            sequence + u64::from(ahead > 0),
        )
    });
    let (stub, mut troubles) = (stub.await, Vec::new());
    let began = tokio::time::Instant::now();
    assert_eq!(pushed(&world, &stub, &mut troubles).await, Fared::Taken(Fence { epoch: 7, sequence: 9 }));
    assert_eq!(troubles.len(), 3, "the first one may have been put by hand: {troubles:?}");
    assert!(began.elapsed() >= Duration::from_millis(500 + 1000 + 2000));
}

#[tokio::test]
async fn what_fails_is_tried_again_with_the_same_pair() {
    let world = world();
    let mut answers = vec![StatusCode::UNPROCESSABLE_ENTITY, StatusCode::SERVICE_UNAVAILABLE];
    let stub = Stub::start(&world.authorities, "story", move |came| match answers.pop() {
        Some(status) => (status, "tenant.max_remapped_percent: started with 60").into_response(),
        None => current(StatusCode::OK, 7, fence(came).sequence),
    });
    let stub = stub.await;
    let mut troubles = Vec::new();
    assert_eq!(pushed(&world, &stub, &mut troubles).await, Fared::Taken(Fence { epoch: 7, sequence: 1 }));
    assert!(troubles[0].starts_with("503") && troubles[1].contains("started with 60"), "{troubles:?}");
    assert_eq!(stub.seen().iter().map(fence).collect::<Vec<_>>(), [Fence { epoch: 7, sequence: 1 }; 3]);
}

#[tokio::test]
async fn nobody_else_is_told_and_nobody_is_told_without_a_certificate() {
    let world = world();
    let stub = Stub::start(&world.authorities, "story", |_| StatusCode::OK.into_response()).await;
    let ask = async |way: &Way, address: &Address| {
        way.call(address, http::Method::GET, "/v1/state", http::HeaderMap::new(), Vec::new()).await
    };
    assert_eq!(ask(&world.way, &stub.address).await.unwrap().status, 200);
    let mistaken = Address { name: "code".into(), ..stub.address.clone() };
    let error = ask(&world.way, &mistaken).await.unwrap_err();
    assert!(matches!(&error, CallError::Connect { .. }), "{error}");
    let stranger = watch::channel(Some(operator(&Authorities::first(now()).unwrap())));
    assert!(ask(&Way::new(stranger.1, PATIENCE), &stub.address).await.is_err());
    let (_sender, none) = watch::channel(None);
    assert!(matches!(ask(&Way::new(none, PATIENCE), &stub.address).await, Err(CallError::NoCredentials)));
    assert_eq!(stub.seen().len(), 1);
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = Address { admin: silent.local_addr().unwrap(), ..stub.address.clone() };
    let hasty = Way::new(watch::channel(Some(operator(&world.authorities))).1, Duration::from_millis(50));
    assert!(ask(&hasty, &silent).await.is_err());
}

fn states(names: &[&str], phase: Phase) -> GpuState {
    let report = |name: &&str| {
        let mut state = State::default();
        (state.tenant.namespace, state.tenant.name) = ("ns".into(), (*name).to_owned());
        state.phase = phase;
        state.moves = vec![sluice_wire::state::Move::default(); 64];
        TenantReport::State(Box::new(state))
    };
    GpuState { tenants: names.iter().map(report).collect(), ..GpuState::default() }
}

pub fn told(came: &Came) -> Response {
    if came.line.starts_with("PUT") {
        return current(StatusCode::OK, fence(came).epoch, fence(came).sequence);
    }
    if came.if_none_match.as_deref() == Some("W/\"1\"") {
        return StatusCode::NOT_MODIFIED.into_response();
    }
    ([(header::ETAG, "W/\"1\"")], Json(states(&["story", "code"], Phase::Active))).into_response()
}

#[tokio::test]
async fn states_are_read_with_their_tag_and_few_moves_are_kept() {
    let world = world();
    let stub = Stub::start(&world.authorities, "story", told).await;
    let poll::Came::States(tenants, Some(tag)) = poll::read(&world.way, &stub.address, None).await else {
        panic!("states and a tag");
    };
    let TenantReport::State(state) = &tenants[0] else { panic!("a state") };
    assert_eq!((tenants.len(), state.moves.len()), (2, 8));
    assert_eq!(poll::read(&world.way, &stub.address, Some(&tag)).await, poll::Came::Same);
    assert_eq!(stub.seen()[0].line, "GET /v1/state?scope=gpu");
}

fn key() -> GpuKey {
    GpuKey { namespace: "ns".into(), pool: "p".into(), name: "p-chat-0".into() }
}

pub fn gpu(stubs: &[&Stub], directive: &Directive) -> Gpu {
    let target = |stub: &&Stub| Target {
        address: stub.address.clone(),
        pod_uid: format!("uid-of-{}", stub.address.name),
        directive: std::sync::Arc::new(directive.clone()),
    };
    Gpu { key: key(), node: Some("n1".into()), targets: stubs.iter().map(target).collect() }
}

async fn until(news: &mut mpsc::UnboundedReceiver<News>, wanted: impl Fn(&News) -> bool) {
    let found = async { while !wanted(&news.recv().await.expect("sidecars are there")) {} };
    tokio::time::timeout(PATIENCE, found).await.expect("in time");
}

#[tokio::test]
async fn each_is_told_once_and_one_of_a_gpu_is_read_for_all() {
    let world = world();
    let story = Stub::start(&world.authorities, "story", told).await;
    let code = Stub::start(&world.authorities, "code", told).await;
    let (sender, mut news) = mpsc::unbounded_channel();
    let mut sidecars = Sidecars::new(world.way.clone(), 7, sender);
    let first = directive();
    sidecars.set("ns", "p", vec![gpu(&[&story, &code], &first)]);
    assert_eq!(sidecars.unread(), 1);
    until(&mut news, |news| *news == News::Read(key())).await;
    assert_eq!(sidecars.unread(), 0);
    let overview = sidecars.overview(|_, _| true);
    assert_eq!((overview.len(), overview[0].tenants.len(), overview[0].node.as_deref()), (1, 2, Some("n1")));
    assert!(overview[0].read_unix_ms.is_some() && overview[0].problem.is_none());

    // The same again tells nobody; another policy tells both; another pod of one is told alone.
    sidecars.set("ns", "p", vec![gpu(&[&story, &code], &first)]);
    let other = Directive { policy: "Recompute".into(), ..first };
    sidecars.set("ns", "p", vec![gpu(&[&story, &code], &other)]);
    let mut replaced = gpu(&[&story, &code], &other);
    replaced.targets[0].pod_uid = "another".into();
    let seen = |stub: &Stub| stub.seen().iter().filter(|came| came.line.starts_with("PUT")).count();
    let settled = async {
        while seen(&code) == 0 || !stub_has(&code, "Recompute") {
            tokio::task::yield_now().await
        }
    };
    tokio::time::timeout(PATIENCE, settled).await.expect("in time");
    let (before, of_code) = (seen(&story), seen(&code));
    sidecars.set("ns", "p", vec![replaced]);
    let again = async {
        while seen(&story) == before {
            tokio::task::yield_now().await
        }
    };
    tokio::time::timeout(PATIENCE, again).await.expect("in time");
    assert_eq!(seen(&code), of_code);
    let reads = |stub: &Stub| stub.seen().iter().filter(|came| came.line.starts_with("GET")).count();
    assert_eq!((reads(&story), reads(&code)), (1, 0), "one is asked for all");

    sidecars.set("ns", "other", Vec::new());
    assert_eq!(sidecars.overview(|_, _| true).len(), 1, "another pool's");
    sidecars.set("ns", "p", Vec::new());
    assert_eq!((sidecars.overview(|_, _| true).len(), sidecars.unread()), (0, 0));
}

fn stub_has(stub: &Stub, policy: &str) -> bool {
    stub.seen().iter().any(|came| came.body.contains(policy))
}

#[tokio::test]
async fn when_one_does_not_answer_another_is_asked() {
    let world = world();
    let gone =
        Stub::start(&world.authorities, "gone", |_| StatusCode::SERVICE_UNAVAILABLE.into_response()).await;
    let code = Stub::start(&world.authorities, "code", told).await;
    let (sender, mut news) = mpsc::unbounded_channel();
    let mut sidecars = Sidecars::new(world.way.clone(), 7, sender);
    sidecars.set("ns", "p", vec![gpu(&[&gone, &code], &directive())]);
    until(&mut news, |news| *news == News::Read(key())).await;
    assert!(sidecars.reading(&key()).unwrap().problem.is_some_and(|problem| problem.contains("503")));
    assert!(!sidecars.heard(&key()), "the other one may answer");
    until(&mut news, |news| *news == News::Read(key())).await;
    let reading = sidecars.reading(&key()).unwrap();
    assert_eq!((reading.problem, reading.tenants.len()), (None, 2));
    assert!(!sidecars.heard(&key()), "of `gone` nothing was told");
    sidecars.set("ns", "p", vec![gpu(&[&code], &directive())]);
    until(&mut news, |news| *news == News::Read(key())).await;
    assert!(sidecars.heard(&key()));

    let (sender, _news) = mpsc::unbounded_channel();
    let mut later = Sidecars::new(world.way.clone(), 7, sender);
    assert!(!later.heard(&key()), "it was there before");
    later.set("ns", "p", vec![gpu(&[], &directive())]);
    assert!(later.heard(&key()), "nobody was on it");
    later.set("ns", "p", vec![gpu(&[&gone], &directive())]);
    assert!(later.heard(&key()), "who came then was placed by this leader");
    later.set("ns", "p", Vec::new());
    later.set("ns", "p", vec![gpu(&[&gone], &directive())]);
    assert!(later.heard(&key()), "it was placed by this leader");
    later.set("ns", "p", Vec::new());
    later.forget("ns", "p");
    assert!(!later.heard(&key()), "of another pool of that name nothing is known");
    later.set("ns", "other", Vec::new());
    later.set("ns", "p", vec![gpu(&[&gone], &directive())]);
    assert!(!later.heard(&key()), "only now it was looked at, whatever was looked at before");
    later.set("ns", "p", Vec::new());
    later.forget("ns", "p");
    later.found_no_pool("ns", "p");
    assert!(later.heard(&key()), "nobody can be asked where there is no pool");
}

#[tokio::test]
async fn when_none_answers_that_is_an_answer_and_all_are_told() {
    let world = world();
    let silent = |came: &Came| match came.line.starts_with("PUT") {
        true => told(came),
        false => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    };
    let story = Stub::start(&world.authorities, "story", silent).await;
    let code = Stub::start(&world.authorities, "code", silent).await;
    let (sender, mut news) = mpsc::unbounded_channel();
    let mut sidecars = Sidecars::new(world.way.clone(), 7, sender);
    let both = || vec![gpu(&[&story, &code], &directive())];
    sidecars.set("ns", "p", both());
    for heard in [false, true] {
        until(&mut news, |news| *news == News::Read(key())).await;
        assert_eq!(sidecars.heard(&key()), heard);
        sidecars.set("ns", "p", both());
        let puts = |stub: &Stub| stub.seen().iter().filter(|came| came.line.starts_with("PUT")).count();
        assert!(heard || puts(&story) + puts(&code) == 0, "nobody is told before all were asked");
    }
    let is_told = |news: &News| matches!(news, News::Told(_, None));
    until(&mut news, is_told).await;
    until(&mut news, is_told).await;
}

#[tokio::test]
async fn a_gpu_on_which_somebody_loads_is_read_again_soon() {
    let world = world();
    let mut phases = vec![Phase::Idle, Phase::Loading];
    let stub = Stub::start(&world.authorities, "story", move |came| match came.line.starts_with("PUT") {
        true => told(came),
        false => Json(states(&["story"], phases.pop().unwrap_or(Phase::Idle))).into_response(),
    });
    let stub = stub.await;
    let (sender, mut news) = mpsc::unbounded_channel();
    let mut sidecars = Sidecars::new(world.way.clone(), 7, sender);
    sidecars.set("ns", "p", vec![gpu(&[&stub], &directive())]);
    until(&mut news, |news| *news == News::Read(key())).await;
    // In its time it would be 27 s at least, more than `until` waits.
    until(&mut news, |news| *news == News::Read(key())).await;
    let reading = sidecars.reading(&key()).unwrap();
    let TenantReport::State(state) = &reading.tenants[0] else { panic!("a state") };
    assert_eq!(state.phase, Phase::Idle);
}

#[tokio::test]
async fn a_leader_is_told_of_a_newer_one_that_a_sidecar_follows() {
    let world = world();
    let stub = Stub::start(&world.authorities, "story", |_| current(StatusCode::CONFLICT, 9, 3)).await;
    let (sender, mut news) = mpsc::unbounded_channel();
    let mut sidecars = Sidecars::new(world.way.clone(), 7, sender).read_every(None);
    sidecars.set("ns", "p", vec![gpu(&[&stub], &directive())]);
    until(&mut news, |news| *news == News::Deposed(stub.address.clone(), Fence { epoch: 9, sequence: 3 }))
        .await;
}

#[tokio::test]
async fn who_waits_has_no_room_for_a_connection() {
    let world = world();
    let address = Address { namespace: "ns".into(), name: "story".into(), admin: ([127, 0, 0, 1], 1).into() };
    let call = world.way.call(&address, http::Method::GET, "/", http::HeaderMap::new(), Vec::new());
    // There is one for each of a thousand GPUs, and a TLS connection takes ten times that.
    let size = std::mem::size_of_val(&call);
    assert!(size < 1024, "{size} bytes");
}

/// Waits for the next word that a GPU's sidecar is without its directive, or has it, and answers who is and why.
async fn stuck(news: &mut mpsc::UnboundedReceiver<News>, sidecars: &Sidecars) -> Vec<(String, String)> {
    until(news, |news| *news == News::Stuck(key())).await;
    let untold = sidecars.untold("ns", "p");
    assert_eq!(untold.len(), sidecars.untold_count());
    assert!(sidecars.untold("ns", "other").is_empty());
    untold.into_iter().map(|((tenant, _), why)| (tenant, why)).collect()
}

#[tokio::test]
async fn who_has_no_directive_for_a_while_is_told_until_it_has_it_or_goes() {
    let world = world();
    let refusals = Arc::new(AtomicUsize::new(4));
    let left = refusals.clone();
    let stub = Stub::start(&world.authorities, "story", move |came| match came.line.starts_with("PUT") {
        true if left.load(Ordering::SeqCst) > 0 => {
            left.fetch_sub(1, Ordering::SeqCst);
            StatusCode::UNPROCESSABLE_ENTITY.into_response()
        }
        _ => told(came),
    });
    let stub = stub.await;
    let (sender, mut news) = mpsc::unbounded_channel();
    let mut sidecars = Sidecars::new(world.way.clone(), 7, sender).read_every(None);
    sidecars.set("ns", "p", vec![gpu(&[&stub], &directive())]);
    let [(tenant, why)] = &stuck(&mut news, &sidecars).await[..] else { panic!("one") };
    assert!(tenant == "story" && why.contains("422"), "{why}");
    assert_eq!(refusals.load(Ordering::SeqCst), 0, "at the fourth failure, not before");
    assert!(stuck(&mut news, &sidecars).await.is_empty(), "it took the fifth");

    refusals.store(usize::MAX, Ordering::SeqCst);
    let other = Directive { policy: "Recompute".into(), ..directive() };
    sidecars.set("ns", "p", vec![gpu(&[&stub], &other)]);
    assert_eq!(stuck(&mut news, &sidecars).await.len(), 1);
    sidecars.set("ns", "p", Vec::new());
    assert!(stuck(&mut news, &sidecars).await.is_empty(), "it is gone");
}
