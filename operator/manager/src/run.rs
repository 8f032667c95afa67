//! Runs the process from its start to its exit.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::events::Reporter;
use kube::{Api, Client, Config};
use sluice_page::hub::Hub;
use sluice_plan::objects::{MANAGER, Release};
use sluice_wire::directive::Fence;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;

use crate::api;
use crate::args::Args;
use crate::cache::{ClusterCache, PoolKey, WatchContext, watch_all};
use crate::capabilities::ClusterCapabilities;
use crate::credentials::CertificateManager;
use crate::dashboard;
use crate::leader_election::LeaderElection;
use crate::metrics::Metrics;
use crate::queue::WorkQueue;
use crate::reconcile::{EventRecorder, ReconcileCache, Reconciler};
use crate::server::{HttpState, LeaderFlag, read_router, router};
use crate::sidecars::http_client::{SidecarAddress, Transport};
use crate::sidecars::leader_conflict::{ConflictAction, LeaderConflict};
use crate::sidecars::{SidecarEvent, SidecarRegistry};
use crate::telemetry::Telemetry;

/// Maximum pools that are reconciled at the same time.
const WORKERS: usize = 4;
/// Time limit for a sidecar's answer.
const SIDECAR_TIMEOUT: Duration = Duration::from_secs(5);
/// States that arrive within this time are reported together.
const READ_DEBOUNCE: Duration = Duration::from_secs(1);
/// Time between two checks of the operator's own certificate, and after a failure.
const CERTIFICATE_CHECK_INTERVAL: Duration = Duration::from_secs(60);
const CERTIFICATE_RETRY: Duration = Duration::from_secs(5);
/// Time between two checks whether every GPU has been read.
const UNREAD_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum time between two such checks. A GPU whose sidecars never answer is checked as long as it exists.
const UNREAD_CHECK_INTERVAL_MAX: Duration = Duration::from_secs(10);
/// Runs the operator until SIGTERM or the loss of leadership.
pub fn run(args: Args) -> ExitCode {
    // The process has one crypto provider: without it the first TLS connection panics.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let result = runtime.context("cannot start the async runtime").and_then(|runtime| {
        let telemetry = Telemetry::start(&args)?;
        let served = runtime.block_on(serve(args));
        telemetry.shutdown();
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
    let (metrics, leads, hub) = (Metrics::default(), LeaderFlag::default(), dashboard::empty_hub());
    let config = Config::infer().await.context("cannot find the configuration of the API server")?;
    let client = api::client(config, api::REQUEST_TIMEOUT, &metrics)
        .context("cannot use the configuration of the API server")?;
    let (world, queue) = (Arc::new(ClusterCache::default()), Arc::new(WorkQueue::default()));
    let feed = WatchContext {
        cache: world.clone(),
        queue: queue.clone(),
        pending: Arc::new(AtomicUsize::new(0)),
        ready: Arc::new(Notify::new()),
    };
    let namespaces: Vec<String> = args.namespaces.iter().filter(|name| !name.is_empty()).cloned().collect();
    let mut watches = watch_all(&client, &namespaces, &feed);
    let served = HttpState { metrics: metrics.clone(), cache: world, queue, pending: feed.pending.clone() };
    let mut servers = JoinSet::new();
    listen(args.listen, "serving health and metrics", router(served), &mut servers).await?;
    listen(args.read_listen, "serving the read API", read_router(leads.clone(), hub.clone()), &mut servers)
        .await?;
    tracing::info!(identity = args.identity(), "starting");
    let abilities =
        ClusterCapabilities::query(&client).await.context("cannot read the version of the API server")?;
    let start = LeaderContext {
        capabilities: Arc::new(abilities),
        args,
        client,
        watch_context: feed,
        metrics,
        leader: leads,
        hub,
        started_at: began,
    };
    let ended = tokio::select! {
        ended = lead(&start) => ended,
        _ = watches.join_next() => Err(anyhow::anyhow!("a watch ended unexpectedly")),
        ended = servers.join_next() => Err(anyhow::anyhow!("an HTTP server ended unexpectedly: {ended:?}")),
    };
    watches.abort_all();
    servers.abort_all();
    ended
}

async fn listen(
    address: SocketAddr,
    what: &str,
    router: axum::Router,
    servers: &mut JoinSet<std::io::Result<()>>,
) -> anyhow::Result<()> {
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    tracing::info!(address = %listener.local_addr()?, "{what}");
    servers.spawn(async move { axum::serve(listener, router).await });
    Ok(())
}

/// Inputs of a leader.
struct LeaderContext {
    args: Args,
    client: Client,
    watch_context: WatchContext,
    capabilities: Arc<ClusterCapabilities>,
    metrics: Metrics,
    leader: LeaderFlag,
    hub: Arc<Hub>,
    started_at: Instant,
}

impl LeaderContext {
    fn reconciler(&self, sidecars: SidecarRegistry) -> Reconciler {
        let args = &self.args;
        let reporter = Reporter { controller: MANAGER.to_owned(), instance: Some(args.identity()) };
        Reconciler {
            events: EventRecorder::new(self.client.clone(), reporter),
            client: self.client.clone(),
            cache: self.watch_context.cache.clone(),
            queue: self.watch_context.queue.clone(),
            release: Release {
                sidecar_image: args.sidecar_image.clone(),
                engine_image: args.engine_image.clone(),
                pull_secrets: args.image_pull_secrets.clone(),
                operator: args.own_labels.iter().cloned().collect(),
                operator_namespace: args.own_namespace.clone(),
            },
            capabilities: self.capabilities.clone(),
            node_grace_seconds: args.node_grace_seconds,
            status_interval: args.status_interval(),
            certificates: CertificateManager::new(self.client.clone(), &args.own_namespace)
                .with_unverified_recheck(args.secret_seconds),
            sidecars: Mutex::new(sidecars),
            metrics: self.metrics.clone(),
            reconcile_cache: ReconcileCache::default(),
        }
    }
}

/// Waits for the Lease and works while it is held. Returns an error when the Lease is lost: a restarted process
/// starts with no old state.
async fn lead(start: &LeaderContext) -> anyhow::Result<()> {
    let (args, metrics) = (&start.args, &start.metrics);
    let mut terminate = signal(SignalKind::terminate()).context("cannot install a handler for SIGTERM")?;
    let leases: Api<Lease> = Api::namespaced(start.client.clone(), &args.own_namespace);
    let mut holder = LeaderElection::new(leases, &args.lease_name, &args.identity(), args.lease_seconds);
    let stop = async {
        terminate.recv().await;
    };
    let Some(epoch) = holder.acquire(stop).await else { return Ok(()) };
    tracing::info!(epoch, "leads");
    metrics.set_leader(true);
    let (certificate, certificates) = watch::channel(None);
    let (news, events) = mpsc::unbounded_channel();
    let way = Transport::new(certificates, SIDECAR_TIMEOUT).with_port(args.sidecar_port);
    let sidecars = SidecarRegistry::new(way, epoch, news).with_poll_interval(args.poll_interval());
    let conflict = LeaderConflict::new(&holder, sidecars.fences());
    let operator = Arc::new(start.reconciler(sidecars));
    let _ = start.leader.set(operator.clone());
    let mut workers = JoinSet::new();
    workers.spawn(run_workers(operator.clone(), start.watch_context.clone(), start.started_at));
    workers.spawn(renew_certificate(operator.clone(), certificate));
    workers.spawn(dashboard::publish(operator.clone(), start.hub.clone()));
    workers.spawn(watch_upgrades(operator.clone()));
    workers.spawn(watch_api_keys(operator.clone(), start.watch_context.clone(), args.api_key_interval()));
    let ended = tokio::select! {
        lost = holder.renew_until_lost() => Err(lost.into()),
        fence = handle_sidecar_events(&operator, events, conflict) => {
            Err(anyhow::anyhow!("sidecars follow a newer leader, with directive {fence}"))
        }
        ended = workers.join_next() => Err(anyhow::anyhow!("a task of the leader ended unexpectedly: {ended:?}")),
        _ = terminate.recv() => Ok(()),
    };
    // All writes have ended before the Lease is released.
    workers.shutdown().await;
    metrics.set_leader(false);
    if ended.is_ok() {
        tracing::info!("stopping: releasing the Lease");
        holder.release().await?;
    }
    ended
}

/// Watches for new features after an upgrade of the cluster.
async fn watch_upgrades(operator: Arc<Reconciler>) {
    operator.capabilities.poll_until_complete(&operator.client, &operator.cache, &operator.queue).await;
    std::future::pending().await
}

/// Annotates pods whose API keys change.
async fn watch_api_keys(operator: Arc<Reconciler>, feed: WatchContext, interval: Duration) {
    wait_for_cache_sync(&feed).await;
    operator.watch_api_keys(interval).await;
}

/// Renews the certificate with which the operator calls sidecars.
async fn renew_certificate(
    operator: Arc<Reconciler>,
    certificate: watch::Sender<Option<Arc<rustls::ClientConfig>>>,
) {
    loop {
        let wait = match operator.certificates.own_client_config(Timestamp::now().as_second()).await {
            Ok(config) => {
                certificate.send_if_modified(|known| {
                    let other = known.as_ref().is_none_or(|known| !Arc::ptr_eq(known, &config));
                    *known = Some(config.clone());
                    other
                });
                CERTIFICATE_CHECK_INTERVAL
            }
            Err(error) => {
                tracing::warn!(%error, "no client certificate, so sidecars cannot be called");
                CERTIFICATE_RETRY
            }
        };
        tokio::time::sleep(wait).await;
    }
}

/// Handles events of sidecars, until one of them follows a newer leader.
async fn handle_sidecar_events(
    operator: &Reconciler,
    mut events: mpsc::UnboundedReceiver<SidecarEvent>,
    mut conflict: LeaderConflict<'_>,
) -> Fence {
    loop {
        match events.recv().await {
            Some(SidecarEvent::Read(gpu)) => {
                let unit = PoolKey { namespace: gpu.namespace, pool: gpu.pool };
                operator.queue.add_after(&unit, READ_DEBOUNCE);
            }
            Some(SidecarEvent::DirectiveStatus(sidecar, None)) => {
                tracing::debug!(%sidecar, "the sidecar has its directive")
            }
            Some(SidecarEvent::DirectiveStatus(sidecar, Some(problem))) => {
                tracing::warn!(%sidecar, problem, "the sidecar has not accepted its directive")
            }
            Some(SidecarEvent::Stuck(gpu)) => {
                let unit = PoolKey { namespace: gpu.namespace, pool: gpu.pool };
                operator.metrics.set_undelivered_directives(operator.undelivered_count());
                operator.queue.add_after(&unit, READ_DEBOUNCE);
            }
            Some(SidecarEvent::Deposed(sidecar, fence)) => {
                if is_deposed(&mut conflict, &sidecar, fence).await {
                    return fence;
                }
            }
            // The channel stays open as long as the operator exists.
            None => std::future::pending().await,
        }
    }
}

/// Whether a sidecar follows an existing newer leader. An unknown answer is checked again at the sidecar's next
/// report.
async fn is_deposed(conflict: &mut LeaderConflict<'_>, sidecar: &SidecarAddress, fence: Fence) -> bool {
    let epoch = fence.epoch;
    match tokio::time::timeout(SIDECAR_TIMEOUT, conflict.on_newer_leader(sidecar, fence)).await {
        Ok(Ok(ConflictAction::Deposed)) => return true,
        Ok(Ok(ConflictAction::Raised | ConflictAction::PartlyRaised)) => {}
        Ok(Ok(ConflictAction::RateLimited)) => {
            tracing::debug!(%sidecar, epoch, "the sidecar reports a newer leader again, too soon to check again")
        }
        Ok(Err(error)) => {
            tracing::warn!(%sidecar, %error, "could not check which leader the sidecar follows")
        }
        Err(_) => tracing::warn!(%sidecar, "could not check which leader the sidecar follows: the API \
                                            server does not answer"),
    }
    false
}

/// Reconciles every pool once, and then after each change.
async fn run_workers(operator: Arc<Reconciler>, feed: WatchContext, began: Instant) {
    wait_for_cache_sync(&feed).await;
    let units = feed.cache.pool_keys();
    tracing::info!(pools = units.len(), took = ?began.elapsed(), "all watches have listed their objects");
    for unit in &units {
        operator.queue.add_after(unit, Duration::ZERO);
    }
    operator.expect_initial(units);
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let operator = operator.clone();
        workers.spawn(async move { operator.run_worker().await });
    }
    tokio::join!(report_startup(&operator, began), workers.join_all());
}

/// Reports when every pool has been reconciled once, and when every GPU has been read once.
async fn report_startup(operator: &Reconciler, began: Instant) {
    operator.wait_for_initial().await;
    operator.metrics.set_initial_sync(began.elapsed());
    tracing::info!(took = ?began.elapsed(), "every pool has been reconciled once");
    let mut wait = UNREAD_CHECK_INTERVAL;
    while operator.unread_gpu_count() > 0 {
        tokio::time::sleep(wait).await;
        wait = (wait * 6 / 5).min(UNREAD_CHECK_INTERVAL_MAX);
    }
    operator.metrics.set_initial_observation(began.elapsed());
    tracing::info!(took = ?began.elapsed(), "every GPU has been read once");
}

/// Waits until every watch has listed everything: a plan from an incomplete list would be wrong.
async fn wait_for_cache_sync(feed: &WatchContext) {
    loop {
        let ready = feed.ready.notified();
        if feed.pending.load(Ordering::SeqCst) == 0 {
            return;
        }
        ready.await;
    }
}
