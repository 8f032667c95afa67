//! A tenant whose engine is a separate server (`engine: {kind: Vllm, url}`). The sidecar proxies its requests and owns
//! no device memory.
//!
//! ```text :8000                                                      loopback client ---------> gateway --
//! RequestGate: held until awake --> Engine ---------> vLLM |          ^ wake-up      | phase PacedStream     |
//! v admin  ---------> AdminHandler -- commands --> EngineMonitor: health, sleep, wake
//! ```
//!
//! Only the [`EngineMonitor`] decides the engine's phase; requests wait for it in the [`RequestGate`]. The
//! [`AdminHandler`] receives the messages that the native engine's scheduler thread would receive, so that the admin
//! port and the probes are the same for both kinds of engine.

pub mod admin_handler;
pub mod engine;
pub mod engine_metrics;
pub mod gateway;
pub mod headers;
pub mod monitor;
pub mod paced_stream;
pub mod request;
pub mod request_gate;
pub mod sse;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::anyhow;
use sluice_wire::config::{DebugConfig, SidecarConfig};
use sluice_wire::state::{Phase, Tenant};
use tokio::sync::{mpsc, watch};

use self::admin_handler::{AdminHandler, forward};
use self::engine::EngineClient;
use self::engine_metrics::EngineMetrics;
use self::gateway::ProxyGateway;
use self::monitor::{EngineHistory, EngineMonitor, MonitorState};
use self::request_gate::RequestGate;
use crate::gateway::limits::RequestLimiter;
use crate::gateway::scrape::MetricsScrape;
use crate::heartbeat::Heartbeat;
use crate::metrics::Metrics;
use crate::run::failure::Failure;
use crate::run::listeners::{Listeners, ServeContext, api_keys, model_names, stream_pacing};
use crate::run::runtime::{runtime, wait_for_signal};
use crate::scheduler_handle::{MessageSender, SchedulerHandle, Status};

/// Runs until a signal stops it.
///
/// # Errors
/// The configuration is invalid or a part failed.
pub fn run(config: SidecarConfig) -> Result<(), Failure> {
    let engine = engine(&config)?;
    runtime()?.block_on(serve(&config, engine))
}

/// Returns the configured engine. Refuses options that a proxied engine does not support.
fn engine(config: &SidecarConfig) -> Result<EngineClient, Failure> {
    let refused = |field, why| Err(Failure::Field(field, anyhow!("{why}")));
    if config.engine.spawn.is_some() {
        return refused("engine.spawn", "a sidecar does not start a Vllm engine");
    }
    if config.journal.is_some() {
        return refused("journal", "a Vllm engine has no events to record");
    }
    if config.debug != DebugConfig::default() {
        return refused("debug", "not supported for a Vllm engine");
    }
    let Some(url) = &config.engine.url else { return refused("engine.url", "required for a Vllm engine") };
    EngineClient::new(url).map_err(|error| Failure::Field("engine.url", error.into()))
}

async fn serve(config: &SidecarConfig, engine: EngineClient) -> Result<(), Failure> {
    let (pacing, keys) = (stream_pacing(config)?, api_keys(config)?);
    let listeners = Listeners::open(config).await?;
    let names = model_names(config);
    let metrics = Arc::new(Metrics::proxied(&names[0], &config.slo).with_directives(&listeners.directives));
    let gate = RequestGate::new(metrics.clone());
    let service = start_monitor(config, &engine, &gate, &listeners, &metrics)?;
    let open = RequestLimiter::new(config.limits.max_streams, metrics.clone());
    let (cut, shutdown) = watch::channel(false);
    let scrape = MetricsScrape::proxied(service, metrics.clone(), EngineMetrics(engine.clone()));
    let gateway = ProxyGateway {
        engine,
        gate,
        metrics,
        served_names: names,
        limits: config.limits.clone(),
        stream_pacing: pacing,
        limiter: open.clone(),
        shutdown,
    };
    let router = Arc::new(gateway).router(keys.clone(), scrape.clone());
    // There is no scheduler thread: a heartbeat that never starts is never overdue.
    let behind = ServeContext { router, scrape, open_requests: open, keys, heartbeat: Heartbeat::default() };
    let serving = listeners.serve(config, behind);
    let ended = wait_for_signal().await;
    // Open responses hold receivers of `cut`.
    serving.drain(|| cut.send_modify(|cut| *cut = true)).await;
    ended
}

/// Starts the engine's monitor and the admin handler; returns the handle to the handler.
fn start_monitor(
    config: &SidecarConfig,
    engine: &EngineClient,
    gate: &RequestGate,
    listeners: &Listeners,
    metrics: &Arc<Metrics>,
) -> Result<SchedulerHandle, Failure> {
    let (inbox, messages) = MessageSender::new();
    let messages = forward(messages).map_err(|error| Failure::Other(error.into()))?;
    let (status, watched) = watch::channel(Status::Loading);
    let (history, watched_history) = watch::channel(EngineHistory::default());
    let (orders, taken) = mpsc::unbounded_channel();
    let monitor = EngineMonitor {
        engine: engine.clone(),
        gate: gate.clone(),
        commands: taken,
        status,
        history,
        directives: listeners.directives.clone(),
        hibernate_after: config.hibernate_after_seconds.map(|s| Duration::from_secs(s.into())),
        metrics: metrics.clone(),
        state: MonitorState::default(),
    };
    let admin = AdminHandler {
        tenant: tenant(config),
        policy: config.policy.clone(),
        engine: engine.clone(),
        commands: orders,
        gate: gate.clone(),
        history: watched_history,
        directives: listeners.directives.clone(),
        metrics: metrics.clone(),
        reported: (Phase::Loading, SystemTime::now()),
    };
    tokio::spawn(monitor.run());
    tokio::spawn(admin.run(messages));
    Ok(SchedulerHandle::new(inbox, watched))
}

fn tenant(config: &SidecarConfig) -> Tenant {
    Tenant {
        namespace: config.namespace.clone(),
        name: config.name.clone(),
        model: model_names(config)[0].clone(),
        gpu: config.gpu.name.clone(),
    }
}
