//! Probes (`:8002`): whether to start the engine, to route requests, and to restart, and a copy of the metrics. Nothing
//! secret is served here.

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

/// Interval at which a drain checks for open requests.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long the hook of an engine waits for the hook of its sidecar. Both run at once when a pod ends.
const DRAIN_START_TIMEOUT: Duration = Duration::from_secs(2);

/// Drains a pod: it becomes not ready, still serves requests until that is known everywhere, and is drained when no
/// request has been open for a while.
#[derive(Clone, Debug)]
pub struct DrainHook {
    open: RequestLimiter,
    limit: Duration,
    settle: Duration,
    key: Option<Arc<str>>,
    draining: Arc<AtomicBool>,
    hook_calls: watch::Sender<HookCalls>,
}

/// State of the hooks that wait for the drain.
#[derive(Clone, Copy, Debug, Default)]
struct HookCalls {
    /// Number of waiting hooks.
    waiting: usize,
    /// Whether a hook has been answered.
    has_answered: bool,
}

impl DrainHook {
    /// Time without open requests that completes a drain. A Service takes about this long to learn that a pod is not
    /// ready.
    pub const SETTLE: Duration = Duration::from_secs(2);

    /// Creates a hook that waits until no request has been `open` for `settle`, at most `limit`. If there is a `key`,
    /// callers must present it.
    pub fn new(open: RequestLimiter, limit: Duration, settle: Duration, key: Option<String>) -> Self {
        let (key, asking) = (key.map(Arc::from), watch::Sender::default());
        DrainHook { open, limit, settle, key, draining: Arc::default(), hook_calls: asking }
    }

    fn is_authorised(&self, headers: &HeaderMap) -> bool {
        self.key.as_ref().is_none_or(|key| headers.get(DRAIN_HEADER).is_some_and(|shown| shown == &**key))
    }

    /// Waits until hooks have called and all of them are answered: then this process is not needed any more. An engine
    /// exits after its sidecar's goodbye, and the kubelet ends the sidecar only after the engine, so neither can wait
    /// for the other.
    pub async fn wait_drained(&self) {
        let over = |asking: &HookCalls| asking.has_answered && asking.waiting == 0;
        // `self` holds the sender, so the wait cannot fail.
        let _ = self.hook_calls.subscribe().wait_for(over).await;
    }

    /// Whether a hook has already waited for open requests.
    pub fn answered(&self) -> bool {
        self.hook_calls.borrow().has_answered
    }
}

/// Returns the routes of `:8002`. `hook` adds `/drain` and `/drained`. `heartbeat` is that of the scheduler's thread.
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

/// Ready: the sidecar can serve or hold requests, and does not drain.
fn ready(service: &SchedulerHandle, draining: &AtomicBool) -> (StatusCode, String) {
    if draining.load(Ordering::Relaxed) {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n".into());
    }
    readiness(service)
}

/// Alive: the process answers, and its scheduler makes progress or has not started.
fn live(heartbeat: &Heartbeat) -> (StatusCode, String) {
    match heartbeat.overdue() {
        None => (StatusCode::OK, "live\n".into()),
        Some(age) => {
            let stands = format!("the scheduler's thread has made no progress for {} ms\n", age.as_millis());
            (StatusCode::SERVICE_UNAVAILABLE, stands)
        }
    }
}

/// Waits until no request is open. The preStop hooks of all containers of a pod call this before any container is
/// stopped. If the kubelet ended the engine first, all streams would break.
async fn drain(State(hook): State<DrainHook>, headers: HeaderMap) -> (StatusCode, String) {
    if !hook.is_authorised(&headers) {
        return forbidden();
    }
    if !hook.draining.swap(true, Ordering::Relaxed) {
        tracing::info!("the preStop hook asks to drain: no longer ready");
    }
    (StatusCode::OK, answered(&hook).await)
}

/// Like [`drain`] once another hook has called that. Otherwise it changes nothing. A native engine's hook calls this,
/// because the kubelet also runs the hook when it restarts an engine whose supervisor does not answer, while the
/// sidecar continues.
async fn drained(State(hook): State<DrainHook>, headers: HeaderMap) -> (StatusCode, String) {
    if !hook.is_authorised(&headers) {
        return forbidden();
    }
    let (start, mut looks) = (Instant::now(), tokio::time::interval(POLL_INTERVAL));
    while !hook.draining.load(Ordering::Relaxed) {
        if start.elapsed() >= DRAIN_START_TIMEOUT {
            return (StatusCode::OK, "this sidecar does not drain\n".into());
        }
        looks.tick().await;
    }
    (StatusCode::OK, answered(&hook).await)
}

fn forbidden() -> (StatusCode, String) {
    (StatusCode::FORBIDDEN, format!("the header {DRAIN_HEADER} has the wrong value\n"))
}

/// Counts a hook while it waits.
async fn answered(hook: &DrainHook) -> String {
    hook.hook_calls.send_modify(|asking| asking.waiting += 1);
    let answer = wait_idle(hook).await;
    hook.hook_calls
        .send_modify(|asking| *asking = HookCalls { waiting: asking.waiting - 1, has_answered: true });
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

/// Started: engines may connect, because their socket listens before this one does. It does not depend on an attached
/// engine, because a pod starts its engine only after this probe succeeds. A failed tenant is not started.
async fn startup(State(scrape): Shared) -> (StatusCode, String) {
    match &*scrape.service.status().borrow() {
        Status::Loading | Status::Serving | Status::EngineLost => (StatusCode::OK, "started\n".into()),
        Status::Failed(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}
