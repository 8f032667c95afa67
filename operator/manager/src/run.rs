//! From the start to the end of the process.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::events::{Recorder, Reporter};
use kube::{Api, Client};
use sluice_plan::accept::Cluster;
use sluice_plan::objects::{MANAGER, Release};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::args::Args;
use crate::lease::Holder;
use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::reconcile::{Memory, Operator};
use crate::server::{Served, router};
use crate::telemetry::Telemetry;
use crate::world::{Feed, World, watch_all};

/// Pools that are looked at at a time.
const WORKERS: usize = 4;
/// First minor version of Kubernetes 1 that makes volumes of images by default.
const IMAGE_VOLUMES: u32 = 36;

/// Runs the operator until it is told to end, or can no longer lead.
pub fn run(args: Args) -> ExitCode {
    // One provider in the tree: without it the first TLS connection panics.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let result = runtime.context("no runtime").and_then(|runtime| {
        let telemetry = Telemetry::start(&args)?;
        let served = runtime.block_on(serve(args));
        telemetry.end();
        served
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sluice-operator: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(args: Args) -> anyhow::Result<()> {
    let began = Instant::now();
    let client = Client::try_default().await.context("no way to the API server")?;
    let (world, queue) = (Arc::new(World::default()), Arc::new(Queue::default()));
    let metrics = Metrics::default();
    let feed = Feed {
        world: world.clone(),
        queue: queue.clone(),
        pending: Arc::new(AtomicUsize::new(0)),
        ready: Arc::new(Notify::new()),
    };
    let namespaces: Vec<String> = args.namespaces.iter().filter(|name| !name.is_empty()).cloned().collect();
    let mut watches = watch_all(&client, &namespaces, &feed);
    let served = Served {
        metrics: metrics.clone(),
        world: world.clone(),
        queue: queue.clone(),
        pending: feed.pending.clone(),
    };
    let listener =
        TcpListener::bind(args.listen).await.with_context(|| format!("cannot listen at {}", args.listen))?;
    tracing::info!(address = %listener.local_addr()?, "serves health and metrics");
    let mut server = tokio::spawn(async move { axum::serve(listener, router(served)).await });
    let operator = operator(&args, client.clone(), &feed, metrics).await?;
    let ended = tokio::select! {
        ended = lead(&args, client, &operator, &feed, began) => ended,
        _ = watches.join_next() => Err(anyhow::anyhow!("a watch ended")),
        ended = &mut server => Err(anyhow::anyhow!("the server for health and metrics ended: {ended:?}")),
    };
    watches.abort_all();
    server.abort();
    ended
}

async fn operator(
    args: &Args,
    client: Client,
    feed: &Feed,
    metrics: Metrics,
) -> anyhow::Result<Arc<Operator>> {
    let version = client.apiserver_version().await.context("the API server tells no version")?;
    let minor: u32 = version.minor.trim_end_matches('+').parse().unwrap_or(0);
    tracing::info!(kubernetes = version.git_version, identity = args.identity(), "starts");
    let reporter = Reporter { controller: MANAGER.to_owned(), instance: Some(args.identity()) };
    Ok(Arc::new(Operator {
        recorder: Recorder::new(client.clone(), reporter),
        client,
        world: feed.world.clone(),
        queue: feed.queue.clone(),
        release: Release {
            sidecar_image: args.sidecar_image.clone(),
            engine_image: args.engine_image.clone(),
            operator: args.own_labels.iter().cloned().collect(),
            operator_namespace: args.own_namespace.clone(),
        },
        cluster: Cluster { image_volumes: minor >= IMAGE_VOLUMES },
        grace_seconds: args.node_grace_seconds,
        status_every: args.status_every(),
        metrics,
        memory: Memory::default(),
    }))
}

/// Waits for the Lease and works for as long as it is held. Ends well when told to end, and with an error when the Lease is
/// lost: whoever starts this process again gives it a new chance, with nothing left of the old one.
async fn lead(
    args: &Args,
    client: Client,
    operator: &Arc<Operator>,
    feed: &Feed,
    began: Instant,
) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("no handler for SIGTERM")?;
    let leases: Api<Lease> = Api::namespaced(client, &args.own_namespace);
    let mut holder = Holder::new(leases, &args.lease_name, &args.identity(), args.lease_seconds);
    let epoch = tokio::select! {
        epoch = holder.acquire() => epoch,
        _ = terminate.recv() => return Ok(()),
    };
    tracing::info!(epoch, "leads");
    operator.metrics.leads(true);
    let mut workers = JoinSet::new();
    let (working, fed) = (operator.clone(), feed.clone());
    workers.spawn(async move { work(working, fed, began).await });
    let ended = tokio::select! {
        lost = holder.keep() => Err(lost.into()),
        ended = workers.join_next() => Err(anyhow::anyhow!("the work ended: {ended:?}")),
        _ = terminate.recv() => Ok(()),
    };
    // Nothing is written any more when the Lease is given back.
    workers.shutdown().await;
    operator.metrics.leads(false);
    if ended.is_ok() {
        tracing::info!("ends, and gives the Lease back");
        holder.release().await?;
    }
    ended
}

/// Looks at everything once, and then at whatever changes.
async fn work(operator: Arc<Operator>, feed: Feed, began: Instant) {
    listed(&feed).await;
    let units = feed.world.units();
    tracing::info!(pools = units.len(), took = ?began.elapsed(), "everything is listed");
    for unit in &units {
        operator.queue.add_after(unit, Duration::ZERO);
    }
    let seen = operator.all_seen(units);
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let operator = operator.clone();
        workers.spawn(async move { operator.work().await });
    }
    seen.await;
    operator.metrics.observed(began.elapsed());
    tracing::info!(took = ?began.elapsed(), "everything has been looked at once");
    workers.join_all().await;
}

/// Waits until every watch has listed everything: half a view would be half a plan.
async fn listed(feed: &Feed) {
    loop {
        let ready = feed.ready.notified();
        if feed.pending.load(Ordering::SeqCst) == 0 {
            return;
        }
        ready.await;
    }
}
