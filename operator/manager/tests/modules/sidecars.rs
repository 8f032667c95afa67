//! Directives and readings, against sidecars over real TLS.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use sluice_operator::credentials::ca::CaBundle;
use sluice_operator::sidecars::http_client::{CallError, SidecarAddress, Transport};
use sluice_operator::sidecars::pusher::{FenceCounter, PushResult, push_until_done};
use sluice_operator::sidecars::{
    DirectiveTarget, GpuKey, GpuSidecars, PollResult, SidecarEvent, SidecarRegistry, poller,
};
use sluice_wire::Directive;
use sluice_wire::directive::Fence;
use sluice_wire::state::{GpuState, Phase, State, TenantReport};
use tokio::sync::{mpsc, watch};

use super::stub::{StubRequest, StubSidecar, now, operator_client_config};

pub const TEST_TIMEOUT: Duration = Duration::from_secs(20);
const GOLDEN_DIRECTIVE: &str = include_str!("../../../../crds/wire/tests/golden/directive-v2.json");

pub fn directive() -> Directive {
    let directive = Directive::from_json(GOLDEN_DIRECTIVE.as_bytes()).unwrap();
    Directive { epoch: 0, sequence: 0, ..directive }
}

pub struct SidecarFixture {
    pub authorities: CaBundle,
    pub transport: Transport,
    _credentials: watch::Sender<Option<Arc<rustls::ClientConfig>>>,
}

pub fn fixture() -> SidecarFixture {
    let authorities = CaBundle::generate(now()).unwrap();
    let (sender, credentials) = watch::channel(Some(operator_client_config(&authorities)));
    SidecarFixture {
        authorities,
        transport: Transport::new(credentials, Duration::from_secs(5)),
        _credentials: sender,
    }
}

pub fn current_fence_response(status: StatusCode, epoch: u64, sequence: u64) -> Response {
    let current = json!({"epoch": epoch, "sequence": sequence});
    (status, Json(json!({"error": {"message": "not newer"}, "current": current}))).into_response()
}

pub fn request_fence(came: &StubRequest) -> Fence {
    let sent: Value = serde_json::from_str(&came.body).unwrap();
    Fence { epoch: sent["epoch"].as_u64().unwrap(), sequence: sent["sequence"].as_u64().unwrap() }
}

async fn push_directive(world: &SidecarFixture, stub: &StubSidecar, errors: &mut Vec<String>) -> PushResult {
    let fences = FenceCounter::new(7);
    let record_error = |problem: Option<&str>| errors.extend(problem.map(str::to_owned));
    let sent = directive();
    let delivered = push_until_done(&world.transport, &stub.address, &sent, &fences, record_error);
    tokio::time::timeout(TEST_TIMEOUT, delivered).await.expect("in time")
}

#[tokio::test]
async fn directive_carries_leader_epoch_and_is_accepted() {
    let world = fixture();
    let stub = StubSidecar::start(&world.authorities, "story", |came| {
        let Fence { epoch, sequence } = request_fence(came);
        current_fence_response(StatusCode::OK, epoch, sequence)
    });
    let stub = stub.await;
    let fared = push_directive(&world, &stub, &mut Vec::new()).await;
    assert_eq!(fared, PushResult::Accepted(Fence { epoch: 7, sequence: 1 }));
    let seen = stub.take_requests();
    assert_eq!((seen.len(), seen[0].line.as_str()), (1, "PUT /v1/directive"));
    let sent = Directive::from_json(seen[0].body.as_bytes()).unwrap();
    assert_eq!(Directive { epoch: 0, sequence: 0, ..sent }, directive());
}

#[tokio::test]
async fn sidecar_that_knows_only_version_1_gets_version_1() {
    let world = fixture();
    let stub = StubSidecar::start(&world.authorities, "story", |came| {
        let sent: Value = serde_json::from_str(&came.body).unwrap();
        if sent["version"] == 1 {
            let Fence { epoch, sequence } = request_fence(came);
            return current_fence_response(StatusCode::OK, epoch, sequence);
        }
        let refusal = json!({"error": {"message": "newer", "param": "version", "code": "newer_version"}});
        (StatusCode::UNPROCESSABLE_ENTITY, Json(refusal)).into_response()
    });
    let (stub, mut errors) = (stub.await, Vec::new());
    let fared = push_directive(&world, &stub, &mut errors).await;
    assert_eq!(fared, PushResult::Accepted(Fence { epoch: 7, sequence: 1 }));
    assert_eq!(errors, Vec::<String>::new(), "no failure is reported");
    let seen: Vec<Value> =
        stub.take_requests().iter().map(|came| serde_json::from_str(&came.body).unwrap()).collect();
    let names = |at: usize| (seen[at]["peers"].is_array(), seen[at]["neighbours"].is_array());
    assert_eq!((seen.len(), names(0), names(1)), (2, (true, false), (false, true)));
}

#[tokio::test]
async fn manual_directive_is_superseded_and_newer_leader_deposes() {
    let world = fixture();
    let stub = StubSidecar::start(&world.authorities, "story", |came| match request_fence(came) {
        Fence { epoch, sequence } if sequence > 40 => current_fence_response(StatusCode::OK, epoch, sequence),
        Fence { epoch, .. } => current_fence_response(StatusCode::CONFLICT, epoch, 40),
    });
    let stub = stub.await;
    assert_eq!(
        push_directive(&world, &stub, &mut Vec::new()).await,
        PushResult::Accepted(Fence { epoch: 7, sequence: 41 })
    );
    let deposed = StubSidecar::start(&world.authorities, "code", |_| {
        current_fence_response(StatusCode::CONFLICT, 8, 1)
    })
    .await;
    let fared = push_directive(&world, &deposed, &mut Vec::new()).await;
    assert_eq!(fared, PushResult::Deposed(Fence { epoch: 8, sequence: 1 }));
    assert_eq!(deposed.take_requests().len(), 1);
}

#[tokio::test]
async fn impossible_leader_epoch_is_rejected() {
    let world = fixture();
    let mut lies = vec![(7, u64::MAX), (u64::MAX, 1), (1 << 31, 1)];
    let stub = StubSidecar::start(&world.authorities, "story", move |came| match lies.pop() {
        Some((epoch, sequence)) => current_fence_response(StatusCode::CONFLICT, epoch, sequence),
        None => {
            current_fence_response(StatusCode::OK, request_fence(came).epoch, request_fence(came).sequence)
        }
    });
    let (stub, mut errors) = (stub.await, Vec::new());
    assert_eq!(
        push_directive(&world, &stub, &mut errors).await,
        PushResult::Accepted(Fence { epoch: 7, sequence: 1 })
    );
    assert!(
        errors.len() == 3 && errors.iter().all(|one| one.contains("which is not a possible")),
        "{errors:?}"
    );
}

#[tokio::test]
async fn sidecar_always_ahead_backs_off_like_failing_one() {
    let world = fixture();
    let mut ahead = 5;
    let stub = StubSidecar::start(&world.authorities, "story", move |came| {
        let Fence { epoch, sequence } = request_fence(came);
        ahead -= 1;
        current_fence_response(
            if ahead > 0 { StatusCode::CONFLICT } else { StatusCode::OK },
            epoch,
            sequence + u64::from(ahead > 0),
        )
    });
    let (stub, mut errors) = (stub.await, Vec::new());
    let began = tokio::time::Instant::now();
    assert_eq!(
        push_directive(&world, &stub, &mut errors).await,
        PushResult::Accepted(Fence { epoch: 7, sequence: 9 })
    );
    assert_eq!(errors.len(), 3, "the first one may have been put by hand: {errors:?}");
    assert!(began.elapsed() >= Duration::from_millis(500 + 1000 + 2000));
}

#[tokio::test]
async fn failed_push_is_retried_with_same_fence() {
    let world = fixture();
    let mut answers = vec![StatusCode::UNPROCESSABLE_ENTITY, StatusCode::SERVICE_UNAVAILABLE];
    let stub = StubSidecar::start(&world.authorities, "story", move |came| match answers.pop() {
        Some(status) => (status, "tenant.max_remapped_percent: started with 60").into_response(),
        None => current_fence_response(StatusCode::OK, 7, request_fence(came).sequence),
    });
    let stub = stub.await;
    let mut errors = Vec::new();
    assert_eq!(
        push_directive(&world, &stub, &mut errors).await,
        PushResult::Accepted(Fence { epoch: 7, sequence: 1 })
    );
    assert!(errors[0].starts_with("503") && errors[1].contains("started with 60"), "{errors:?}");
    assert_eq!(
        stub.take_requests().iter().map(request_fence).collect::<Vec<_>>(),
        [Fence { epoch: 7, sequence: 1 }; 3]
    );
}

#[tokio::test]
async fn push_requires_certificate_and_matching_name() {
    let world = fixture();
    let stub = StubSidecar::start(&world.authorities, "story", |_| StatusCode::OK.into_response()).await;
    let ask = async |way: &Transport, address: &SidecarAddress| {
        way.call(address, http::Method::GET, "/v1/state", http::HeaderMap::new(), Vec::new()).await
    };
    assert_eq!(ask(&world.transport, &stub.address).await.unwrap().status, 200);
    let mistaken = SidecarAddress { name: "code".into(), ..stub.address.clone() };
    let error = ask(&world.transport, &mistaken).await.unwrap_err();
    assert!(matches!(&error, CallError::Connect { .. }), "{error}");
    let stranger = watch::channel(Some(operator_client_config(&CaBundle::generate(now()).unwrap())));
    assert!(ask(&Transport::new(stranger.1, TEST_TIMEOUT), &stub.address).await.is_err());
    let (_sender, none) = watch::channel(None);
    assert!(matches!(
        ask(&Transport::new(none, TEST_TIMEOUT), &stub.address).await,
        Err(CallError::NoCredentials)
    ));
    assert_eq!(stub.take_requests().len(), 1);
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = SidecarAddress { admin_addr: silent.local_addr().unwrap(), ..stub.address.clone() };
    let hasty = Transport::new(
        watch::channel(Some(operator_client_config(&world.authorities))).1,
        Duration::from_millis(50),
    );
    assert!(ask(&hasty, &silent).await.is_err());
}

fn gpu_state(names: &[&str], phase: Phase) -> GpuState {
    let report = |name: &&str| {
        let mut state = State::default();
        (state.tenant.namespace, state.tenant.name) = ("ns".into(), (*name).to_owned());
        state.phase = phase;
        state.moves = vec![sluice_wire::state::Move::default(); 64];
        TenantReport::State(Box::new(state))
    };
    GpuState { tenants: names.iter().map(report).collect(), ..GpuState::default() }
}

pub fn accept_directive(came: &StubRequest) -> Response {
    if came.line.starts_with("PUT") {
        return current_fence_response(
            StatusCode::OK,
            request_fence(came).epoch,
            request_fence(came).sequence,
        );
    }
    if came.if_none_match.as_deref() == Some("W/\"1\"") {
        return StatusCode::NOT_MODIFIED.into_response();
    }
    ([(header::ETAG, "W/\"1\"")], Json(gpu_state(&["story", "code"], Phase::Active))).into_response()
}

#[tokio::test]
async fn states_are_read_with_etag_and_moves_truncated() {
    let world = fixture();
    let stub = StubSidecar::start(&world.authorities, "story", accept_directive).await;
    let PollResult::States(tenants, Some(tag)) =
        poller::poll_once(&world.transport, &stub.address, None).await
    else {
        panic!("states and a tag");
    };
    let TenantReport::State(state) = &tenants[0] else { panic!("a state") };
    assert_eq!((tenants.len(), state.moves.len()), (2, 8));
    assert_eq!(poller::poll_once(&world.transport, &stub.address, Some(&tag)).await, PollResult::NotModified);
    assert_eq!(stub.take_requests()[0].line, "GET /v1/state?scope=gpu");
}

fn gpu_key() -> GpuKey {
    GpuKey { namespace: "ns".into(), pool: "p".into(), name: "p-chat-0".into() }
}

pub fn gpu_of_stubs(stubs: &[&StubSidecar], directive: &Directive) -> GpuSidecars {
    let target = |stub: &&StubSidecar| DirectiveTarget {
        address: stub.address.clone(),
        pod_uid: format!("uid-of-{}", stub.address.name),
        directive: std::sync::Arc::new(directive.clone()),
    };
    GpuSidecars { key: gpu_key(), node: Some("n1".into()), targets: stubs.iter().map(target).collect() }
}

async fn wait_for_event(
    news: &mut mpsc::UnboundedReceiver<SidecarEvent>,
    wanted: impl Fn(&SidecarEvent) -> bool,
) {
    let found = async { while !wanted(&news.recv().await.expect("sidecars are there")) {} };
    tokio::time::timeout(TEST_TIMEOUT, found).await.expect("in time");
}

#[tokio::test]
async fn each_sidecar_gets_one_directive_and_one_is_polled_per_gpu() {
    let world = fixture();
    let story = StubSidecar::start(&world.authorities, "story", accept_directive).await;
    let code = StubSidecar::start(&world.authorities, "code", accept_directive).await;
    let (sender, mut news) = mpsc::unbounded_channel();
    let mut sidecars = SidecarRegistry::new(world.transport.clone(), 7, sender);
    let first = directive();
    sidecars.set("ns", "p", vec![gpu_of_stubs(&[&story, &code], &first)]);
    assert_eq!(sidecars.unread_count(), 1);
    wait_for_event(&mut news, |news| *news == SidecarEvent::Read(gpu_key())).await;
    assert_eq!(sidecars.unread_count(), 0);
    let overview = sidecars.overview(|_, _| true);
    assert_eq!((overview.len(), overview[0].tenants.len(), overview[0].node.as_deref()), (1, 2, Some("n1")));
    assert!(overview[0].read_unix_ms.is_some() && overview[0].problem.is_none());

    // The same directive is not pushed again; another policy is pushed to both; another pod of one is pushed to
    // alone.
    sidecars.set("ns", "p", vec![gpu_of_stubs(&[&story, &code], &first)]);
    let other = Directive { policy: "Recompute".into(), ..first };
    sidecars.set("ns", "p", vec![gpu_of_stubs(&[&story, &code], &other)]);
    let mut replaced = gpu_of_stubs(&[&story, &code], &other);
    replaced.targets[0].pod_uid = "another".into();
    let seen =
        |stub: &StubSidecar| stub.take_requests().iter().filter(|came| came.line.starts_with("PUT")).count();
    let settled = async {
        while seen(&code) == 0 || !has_policy(&code, "Recompute") {
            tokio::task::yield_now().await
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, settled).await.expect("in time");
    let (before, of_code) = (seen(&story), seen(&code));
    sidecars.set("ns", "p", vec![replaced]);
    let again = async {
        while seen(&story) == before {
            tokio::task::yield_now().await
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, again).await.expect("in time");
    assert_eq!(seen(&code), of_code);
    let reads =
        |stub: &StubSidecar| stub.take_requests().iter().filter(|came| came.line.starts_with("GET")).count();
    assert_eq!((reads(&story), reads(&code)), (1, 0), "one is asked for all");

    sidecars.set("ns", "other", Vec::new());
    assert_eq!(sidecars.overview(|_, _| true).len(), 1, "another pool's");
    sidecars.set("ns", "p", Vec::new());
    assert_eq!((sidecars.overview(|_, _| true).len(), sidecars.unread_count()), (0, 0));
}

fn has_policy(stub: &StubSidecar, policy: &str) -> bool {
    stub.take_requests().iter().any(|came| came.body.contains(policy))
}

#[tokio::test]
async fn unreachable_sidecar_falls_back_to_peer() {
    let world = fixture();
    let gone =
        StubSidecar::start(&world.authorities, "gone", |_| StatusCode::SERVICE_UNAVAILABLE.into_response())
            .await;
    let code = StubSidecar::start(&world.authorities, "code", accept_directive).await;
    let (sender, mut news) = mpsc::unbounded_channel();
    let mut sidecars = SidecarRegistry::new(world.transport.clone(), 7, sender);
    sidecars.set("ns", "p", vec![gpu_of_stubs(&[&gone, &code], &directive())]);
    wait_for_event(&mut news, |news| *news == SidecarEvent::Read(gpu_key())).await;
    assert!(sidecars.reading(&gpu_key()).unwrap().problem.is_some_and(|problem| problem.contains("503")));
    assert!(!sidecars.is_fully_read(&gpu_key()), "the other one may answer");
    wait_for_event(&mut news, |news| *news == SidecarEvent::Read(gpu_key())).await;
    let reading = sidecars.reading(&gpu_key()).unwrap();
    assert_eq!((reading.problem, reading.tenants.len()), (None, 2));
    assert!(!sidecars.is_fully_read(&gpu_key()), "of `gone` nothing was reported");
    sidecars.set("ns", "p", vec![gpu_of_stubs(&[&code], &directive())]);
    wait_for_event(&mut news, |news| *news == SidecarEvent::Read(gpu_key())).await;
    assert!(sidecars.is_fully_read(&gpu_key()));

    let (sender, _news) = mpsc::unbounded_channel();
    let mut later = SidecarRegistry::new(world.transport.clone(), 7, sender);
    assert!(!later.is_fully_read(&gpu_key()), "it was there before");
    later.set("ns", "p", vec![gpu_of_stubs(&[], &directive())]);
    assert!(later.is_fully_read(&gpu_key()), "no tenant was on it");
    later.set("ns", "p", vec![gpu_of_stubs(&[&gone], &directive())]);
    assert!(later.is_fully_read(&gpu_key()), "who came then was placed by this leader");
    later.set("ns", "p", Vec::new());
    later.set("ns", "p", vec![gpu_of_stubs(&[&gone], &directive())]);
    assert!(later.is_fully_read(&gpu_key()), "it was placed by this leader");
    later.set("ns", "p", Vec::new());
    later.forget("ns", "p");
    assert!(!later.is_fully_read(&gpu_key()), "of another pool of that name nothing is known");
    later.set("ns", "other", Vec::new());
    later.set("ns", "p", vec![gpu_of_stubs(&[&gone], &directive())]);
    assert!(!later.is_fully_read(&gpu_key()), "only now it was looked at, whatever was looked at before");
    later.set("ns", "p", Vec::new());
    later.forget("ns", "p");
    later.mark_pool_absent("ns", "p");
    assert!(later.is_fully_read(&gpu_key()), "no sidecar can be asked where there is no pool");
}

#[tokio::test]
async fn unreachable_gpu_is_reported_and_directives_still_pushed() {
    let world = fixture();
    let silent = |came: &StubRequest| match came.line.starts_with("PUT") {
        true => accept_directive(came),
        false => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    };
    let story = StubSidecar::start(&world.authorities, "story", silent).await;
    let code = StubSidecar::start(&world.authorities, "code", silent).await;
    let (sender, mut news) = mpsc::unbounded_channel();
    let mut sidecars = SidecarRegistry::new(world.transport.clone(), 7, sender);
    let both = || vec![gpu_of_stubs(&[&story, &code], &directive())];
    sidecars.set("ns", "p", both());
    for is_fully_read in [false, true] {
        wait_for_event(&mut news, |news| *news == SidecarEvent::Read(gpu_key())).await;
        assert_eq!(sidecars.is_fully_read(&gpu_key()), is_fully_read);
        sidecars.set("ns", "p", both());
        let puts = |stub: &StubSidecar| {
            stub.take_requests().iter().filter(|came| came.line.starts_with("PUT")).count()
        };
        assert!(
            is_fully_read || puts(&story) + puts(&code) == 0,
            "no directive is sent before all were asked"
        );
    }
    let is_delivered = |news: &SidecarEvent| matches!(news, SidecarEvent::DirectiveStatus(_, None));
    wait_for_event(&mut news, is_delivered).await;
    wait_for_event(&mut news, is_delivered).await;
}

#[tokio::test]
async fn gpu_with_loading_tenant_is_polled_again_soon() {
    let world = fixture();
    let mut phases = vec![Phase::Idle, Phase::Loading];
    let stub =
        StubSidecar::start(&world.authorities, "story", move |came| match came.line.starts_with("PUT") {
            true => accept_directive(came),
            false => Json(gpu_state(&["story"], phases.pop().unwrap_or(Phase::Idle))).into_response(),
        });
    let stub = stub.await;
    let (sender, mut news) = mpsc::unbounded_channel();
    let mut sidecars = SidecarRegistry::new(world.transport.clone(), 7, sender);
    sidecars.set("ns", "p", vec![gpu_of_stubs(&[&stub], &directive())]);
    wait_for_event(&mut news, |news| *news == SidecarEvent::Read(gpu_key())).await;
    // At the normal interval this would take at least 27 s, more than `until` waits.
    wait_for_event(&mut news, |news| *news == SidecarEvent::Read(gpu_key())).await;
    let reading = sidecars.reading(&gpu_key()).unwrap();
    let TenantReport::State(state) = &reading.tenants[0] else { panic!("a state") };
    assert_eq!(state.phase, Phase::Idle);
}

#[tokio::test]
async fn newer_leader_followed_by_sidecar_emits_event() {
    let world = fixture();
    let stub = StubSidecar::start(&world.authorities, "story", |_| {
        current_fence_response(StatusCode::CONFLICT, 9, 3)
    })
    .await;
    let (sender, mut news) = mpsc::unbounded_channel();
    let mut sidecars = SidecarRegistry::new(world.transport.clone(), 7, sender).with_poll_interval(None);
    sidecars.set("ns", "p", vec![gpu_of_stubs(&[&stub], &directive())]);
    wait_for_event(&mut news, |news| {
        *news == SidecarEvent::Deposed(stub.address.clone(), Fence { epoch: 9, sequence: 3 })
    })
    .await;
}

#[tokio::test]
async fn waiting_push_holds_no_connection_permit() {
    let world = fixture();
    let address = SidecarAddress {
        namespace: "ns".into(),
        name: "story".into(),
        admin_addr: ([127, 0, 0, 1], 1).into(),
    };
    let call = world.transport.call(&address, http::Method::GET, "/", http::HeaderMap::new(), Vec::new());
    // One such future exists for each of a thousand GPUs, and a TLS connection takes ten times as much.
    let size = std::mem::size_of_val(&call);
    assert!(size < 1024, "{size} bytes");
}

/// Waits for the next event that a sidecar is without its directive or has accepted it; returns the sidecar and the
/// reason.
async fn next_undelivered(
    news: &mut mpsc::UnboundedReceiver<SidecarEvent>,
    sidecars: &SidecarRegistry,
) -> Vec<(String, String)> {
    wait_for_event(news, |news| *news == SidecarEvent::Stuck(gpu_key())).await;
    let undelivered = sidecars.undelivered("ns", "p");
    assert_eq!(undelivered.len(), sidecars.undelivered_count());
    assert!(sidecars.undelivered("ns", "other").is_empty());
    undelivered.into_iter().map(|((tenant, _), why)| (tenant, why)).collect()
}

#[tokio::test]
async fn undelivered_directive_is_reported_until_delivered_or_removed() {
    let world = fixture();
    let refusals = Arc::new(AtomicUsize::new(4));
    let left = refusals.clone();
    let stub =
        StubSidecar::start(&world.authorities, "story", move |came| match came.line.starts_with("PUT") {
            true if left.load(Ordering::SeqCst) > 0 => {
                left.fetch_sub(1, Ordering::SeqCst);
                StatusCode::UNPROCESSABLE_ENTITY.into_response()
            }
            _ => accept_directive(came),
        });
    let stub = stub.await;
    let (sender, mut news) = mpsc::unbounded_channel();
    let mut sidecars = SidecarRegistry::new(world.transport.clone(), 7, sender).with_poll_interval(None);
    sidecars.set("ns", "p", vec![gpu_of_stubs(&[&stub], &directive())]);
    let [(tenant, why)] = &next_undelivered(&mut news, &sidecars).await[..] else { panic!("one") };
    assert!(tenant == "story" && why.contains("422"), "{why}");
    assert_eq!(refusals.load(Ordering::SeqCst), 0, "at the fourth failure, not before");
    assert!(next_undelivered(&mut news, &sidecars).await.is_empty(), "it took the fifth");

    refusals.store(usize::MAX, Ordering::SeqCst);
    let other = Directive { policy: "Recompute".into(), ..directive() };
    sidecars.set("ns", "p", vec![gpu_of_stubs(&[&stub], &other)]);
    assert_eq!(next_undelivered(&mut news, &sidecars).await.len(), 1);
    sidecars.set("ns", "p", Vec::new());
    assert!(next_undelivered(&mut news, &sidecars).await.is_empty(), "it is gone");
}
