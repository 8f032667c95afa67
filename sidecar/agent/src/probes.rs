//! Probes (`:8002`): whether to start the engine, to route, to restart, and a copy of the metrics. Nothing secret, nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use sluice_wire::config::DRAIN_HEADER;
use tokio::sync::watch;

use crate::gateway::limits::RequestLimiter;
use crate::gateway::readiness;
use crate::gateway::scrape::MetricsScrape;
use crate::heartbeat::Heartbeat;
use crate::scheduler_handle::{SchedulerHandle, Status};

type Shared = State<MetricsScrape>;

/// How often a drain looks whether requests are open.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long the hook of an engine waits for the one of its sidecar. Both come at once where a pod ends.
const DRAIN_START_TIMEOUT: Duration = Duration::from_secs(2);

/// How a pod is drained: it is no longer ready, still serves whoever comes before that is known everywhere, and has
/// finished when nobody has come for a while.
#[derive(Clone, Debug)]
pub struct DrainHook {
    open: RequestLimiter,
    limit: Duration,
    settle: Duration,
    key: Option<Arc<str>>,
    draining: Arc<AtomicBool>,
    waiters: watch::Sender<HookWaiters>,
}

/// Hooks that ask.
#[derive(Clone, Copy, Debug, Default)]
struct HookWaiters {
    /// Those that wait.
    waiting: usize,
    /// Whether one has been answered.
    has_answered: bool,
}

impl DrainHook {
    /// Requests that no longer come: a Service takes about so long to know that a pod is not ready.
    pub const SETTLE: Duration = Duration::from_secs(2);

    /// Waits for `open` requests to end, at most `limit`, and until none has been open for `settle`. Only whoever shows `key`
    /// may ask, if there is one.
    pub fn new(open: RequestLimiter, limit: Duration, settle: Duration, key: Option<String>) -> Self {
        let (key, asking) = (key.map(Arc::from), watch::Sender::default());
        DrainHook { open, limit, settle, key, draining: Arc::default(), waiters: asking }
    }

    fn is_authorised(&self, headers: &HeaderMap) -> bool {
        self.key.as_ref().is_none_or(|key| headers.get(DRAIN_HEADER).is_some_and(|shown| shown == &**key))
    }

    /// Waits until hooks have asked and all of them were answered: nobody needs this process any more. An engine ends once
    /// its sidecar has said good-bye, and the kubelet ends the sidecar only after the engine, so neither can wait for it.
    pub async fn wait_drained(&self) {
        let over = |asking: &HookWaiters| asking.has_answered && asking.waiting == 0;
        // This holds the sender.
        let _ = self.waiters.subscribe().wait_for(over).await;
    }

    /// Whether the time for open requests has been given already.
    pub fn answered(&self) -> bool {
        self.waiters.borrow().has_answered
    }
}

/// The routes of `:8002`. `hook` adds `/drain` and `/drained`; `heartbeat` is that of the scheduler's thread.
pub fn router(scrape: MetricsScrape, hook: Option<DrainHook>, heartbeat: Heartbeat) -> Router {
    let draining = hook.as_ref().map(|hook| hook.draining.clone()).unwrap_or_default();
    let hooks = match hook {
        Some(hook) => {
            Router::new().route("/drain", get(drain)).route("/drained", get(drained)).with_state(hook)
        }
        None => Router::new(),
    };
    Router::new()
        .route("/startup", get(startup))
        .route("/ready", get(async move |State(scrape): Shared| ready(&scrape.service, &draining)))
        .route("/live", get(async move || live(&heartbeat)))
        .route("/metrics", get(async |State(scrape): Shared| scrape.respond().await))
        .with_state(scrape)
        .merge(hooks)
}

/// Ready = can take or hold requests, and is not about to end.
fn ready(service: &SchedulerHandle, draining: &AtomicBool) -> (StatusCode, String) {
    if draining.load(Ordering::Relaxed) {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n".into());
    }
    readiness(service)
}

/// Alive = the process answers, and its scheduler goes round or has not begun.
fn live(heartbeat: &Heartbeat) -> (StatusCode, String) {
    match heartbeat.overdue() {
        None => (StatusCode::OK, "live\n".into()),
        Some(age) => {
            let stands = format!("the scheduler's thread has stood still for {} ms\n", age.as_millis());
            (StatusCode::SERVICE_UNAVAILABLE, stands)
        }
    }
}

/// Whoever asks waits until no request is open. The preStop hooks of all containers of a pod ask, before any of them is
/// told to end: an engine that the kubelet ended first would cut every stream.
async fn drain(State(hook): State<DrainHook>, headers: HeaderMap) -> (StatusCode, String) {
    if !hook.is_authorised(&headers) {
        return forbidden();
    }
    if !hook.draining.swap(true, Ordering::Relaxed) {
        tracing::info!("a hook asks to drain: no longer ready");
    }
    (StatusCode::OK, answered(&hook).await)
}

/// As [`drain`] once another hook has asked for that; without one nothing changes. A native engine's hook asks this: the kubelet
/// runs it as well where it starts an engine anew whose supervisor does not answer, and its sidecar goes on.
async fn drained(State(hook): State<DrainHook>, headers: HeaderMap) -> (StatusCode, String) {
    if !hook.is_authorised(&headers) {
        return forbidden();
    }
    let (start, mut looks) = (Instant::now(), tokio::time::interval(POLL_INTERVAL));
    while !hook.draining.load(Ordering::Relaxed) {
        if start.elapsed() >= DRAIN_START_TIMEOUT {
            return (StatusCode::OK, "nobody drains\n".into());
        }
        looks.tick().await;
    }
    (StatusCode::OK, answered(&hook).await)
}

fn forbidden() -> (StatusCode, String) {
    (StatusCode::FORBIDDEN, format!("{DRAIN_HEADER} is not that of the pod's hooks\n"))
}

/// Counts a hook while it waits.
async fn answered(hook: &DrainHook) -> String {
    hook.waiters.send_modify(|asking| asking.waiting += 1);
    let answer = wait_idle(hook).await;
    hook.waiters
        .send_modify(|asking| *asking = HookWaiters { waiting: asking.waiting - 1, has_answered: true });
    answer
}

async fn wait_idle(hook: &DrainHook) -> String {
    let start = Instant::now();
    let mut looks = tokio::time::interval(POLL_INTERVAL);
    let mut quiet_since = start;
    while start.elapsed() < hook.limit {
        looks.tick().await;
        if hook.open.open_count() > 0 {
            quiet_since = Instant::now();
        } else if quiet_since.elapsed() >= hook.settle {
            return "drained\n".into();
        }
    }
    format!("{} requests are still open\n", hook.open.open_count())
}

/// Started = engines may connect: their socket listens before this one does. Not whether one has come: a pod starts its
/// engine only after this says yes. A tenant that has failed is not started.
async fn startup(State(scrape): Shared) -> (StatusCode, String) {
    match &*scrape.service.status().borrow() {
        Status::Loading | Status::Serving | Status::EngineLost => (StatusCode::OK, "started\n".into()),
        Status::Failed(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}
