//! A tenant whose engine is a server of its own kind (`engine: {kind: Vllm, url}`): the sidecar stands in front of it, owns no
//! device memory and drives nothing.
//!
//! ```text
//!            :8000                                              loopback
//! client ---------> gateway -- Lobby: held until awake --> Engine ---------> vLLM
//!                      |          ^ nudge       | phase
//!                    Paced        |             v
//! admin  ---------> Desk -- orders --> Keeper: health, sleep, wake
//! ```
//!
//! The [`Keeper`] alone says what the engine is doing; requests wait for it in the [`Lobby`]. The
//! [`Desk`] takes the messages that go to a scheduler's thread elsewhere, so that admin port and probes are the same for both
//! kinds of engine.

pub mod desk;
pub mod engine;
pub mod figures;
pub mod gateway;
pub mod headers;
pub mod keeper;
pub mod lobby;
pub mod paced;
pub mod request;
pub mod sse;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::anyhow;
use sluice_wire::config::{DebugConfig, SidecarConfig};
use sluice_wire::state::{Phase, Tenant};
use tokio::sync::{mpsc, watch};

use self::desk::{Desk, pass_on};
use self::engine::Engine;
use self::figures::EngineFigures;
use self::gateway::Gateway;
use self::keeper::{Habits, Keeper, Lives};
use self::lobby::Lobby;
use crate::gateway::open::OpenRequests;
use crate::gateway::scrape::Scrape;
use crate::heartbeat::Heartbeat;
use crate::metrics::Metrics;
use crate::run::{Behind, Doors, Failure, api_keys, model_names, runtime, stream_pacing, until_signalled};
use crate::service::{Inbox, Service, Status};

/// Runs until told to stop.
///
/// # Errors
/// Why it could not go on.
pub fn run(config: SidecarConfig) -> Result<(), Failure> {
    let engine = engine(&config)?;
    runtime()?.block_on(live(&config, engine))
}

/// The engine of a configuration, which says nothing that a proxied one cannot follow.
fn engine(config: &SidecarConfig) -> Result<Engine, Failure> {
    let refused = |field, why| Err(Failure::Field(field, anyhow!("{why}")));
    if config.engine.spawn.is_some() {
        return refused("engine.spawn", "a Vllm engine is not started by its sidecar");
    }
    if config.journal.is_some() {
        return refused("journal", "a Vllm engine has no queue of events to record");
    }
    if config.debug != DebugConfig::default() {
        return refused("debug", "has no meaning for a Vllm engine");
    }
    let Some(url) = &config.engine.url else { return refused("engine.url", "a Vllm engine needs one") };
    Engine::at(url).map_err(|error| Failure::Field("engine.url", error.into()))
}

async fn live(config: &SidecarConfig, engine: Engine) -> Result<(), Failure> {
    let (pacing, keys) = (stream_pacing(config)?, api_keys(config)?);
    let doors = Doors::open(config).await?;
    let names = model_names(config);
    let metrics = Arc::new(Metrics::proxied(&names[0], &config.slo).told_by(&doors.directives));
    let lobby = Lobby::new(metrics.clone());
    let service = keep(config, &engine, &lobby, &doors, &metrics)?;
    let open = OpenRequests::new(config.limits.max_streams, metrics.clone());
    let (cut, told) = watch::channel(false);
    let scrape = Scrape::beside(service, metrics.clone(), EngineFigures(engine.clone()));
    let gateway = Gateway {
        engine,
        lobby,
        metrics,
        names,
        limits: config.limits.clone(),
        stream_pacing: pacing,
        open: open.clone(),
        cut: told,
    };
    let router = Arc::new(gateway).router(keys.clone(), scrape.clone());
    // No thread of its own schedules: a heartbeat that never begins is never overdue.
    let behind = Behind { router, scrape, open, keys, heartbeat: Heartbeat::default() };
    let serving = doors.serve(config, behind);
    let ended = until_signalled().await;
    // Answers that are still open are receivers.
    serving.drain(|| cut.send_modify(|cut| *cut = true)).await;
    ended
}

/// Starts the keeper of the engine and the desk, and gives the door to the desk.
fn keep(
    config: &SidecarConfig,
    engine: &Engine,
    lobby: &Lobby,
    doors: &Doors,
    metrics: &Arc<Metrics>,
) -> Result<Service, Failure> {
    let (inbox, messages) = Inbox::new();
    let messages = pass_on(messages).map_err(|error| Failure::Other(error.into()))?;
    let (status, watched) = watch::channel(Status::Loading);
    let (lives, told) = watch::channel(Lives::default());
    let (orders, taken) = mpsc::unbounded_channel();
    let keeper = Keeper {
        engine: engine.clone(),
        lobby: lobby.clone(),
        orders: taken,
        status,
        lives,
        directives: doors.directives.clone(),
        hibernate_after: config.hibernate_after_seconds.map(|s| Duration::from_secs(s.into())),
        metrics: metrics.clone(),
        habits: Habits::default(),
    };
    let desk = Desk {
        tenant: tenant(config),
        policy: config.policy.clone(),
        engine: engine.clone(),
        orders,
        lobby: lobby.clone(),
        lives: told,
        directives: doors.directives.clone(),
        metrics: metrics.clone(),
        told: (Phase::Loading, SystemTime::now()),
    };
    tokio::spawn(keeper.keep());
    tokio::spawn(desk.answer(messages));
    Ok(Service::new(inbox, watched))
}

fn tenant(config: &SidecarConfig) -> Tenant {
    Tenant {
        namespace: config.namespace.clone(),
        name: config.name.clone(),
        model: model_names(config)[0].clone(),
        gpu: config.gpu.name.clone(),
    }
}
