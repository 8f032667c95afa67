//! From the start to the end of the process.

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

use crate::abilities::Abilities;
use crate::api;
use crate::args::Args;
use crate::credentials::Keeper;
use crate::lease::Holder;
use crate::metrics::Metrics;
use crate::page;
use crate::queue::Queue;
use crate::reconcile::{Announcer, Memory, Operator};
use crate::server::{Leads, Served, read_router, router};
use crate::sidecars::call::{Address, Way};
use crate::sidecars::contest::{Contest, Verdict};
use crate::sidecars::{News, Sidecars};
use crate::telemetry::Telemetry;
use crate::world::{Feed, Unit, World, watch_all};

/// Pools that are looked at at a time.
const WORKERS: usize = 4;
/// Longest time that a sidecar gets to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// States that come in shortly after each other are told together.
const READ_SETTLE: Duration = Duration::from_secs(1);
/// Time between two looks at the operator's own certificate, and after a failure.
const CERTIFICATE_EVERY: Duration = Duration::from_secs(60);
const CERTIFICATE_RETRY: Duration = Duration::from_secs(5);
/// Time between two looks at whether every GPU has been read.
const UNREAD_EVERY: Duration = Duration::from_millis(200);
/// Longest time between two such looks: one GPU whose sidecars never answer is waited for as long as it is there.
const UNREAD_AT_MOST: Duration = Duration::from_secs(10);
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
    let (metrics, leads, hub) = (Metrics::default(), Leads::default(), page::hub());
    let config = Config::infer().await.context("no way to the API server")?;
    let client = api::client(config, api::LIMIT, &metrics).context("no way to the API server")?;
    let (world, queue) = (Arc::new(World::default()), Arc::new(Queue::default()));
    let feed = Feed {
        world: world.clone(),
        queue: queue.clone(),
        pending: Arc::new(AtomicUsize::new(0)),
        ready: Arc::new(Notify::new()),
    };
    let namespaces: Vec<String> = args.namespaces.iter().filter(|name| !name.is_empty()).cloned().collect();
    let mut watches = watch_all(&client, &namespaces, &feed);
    let served = Served { metrics: metrics.clone(), world, queue, pending: feed.pending.clone() };
    let mut servers = JoinSet::new();
    listen(args.listen, "serves health and metrics", router(served), &mut servers).await?;
    listen(args.read_listen, "serves the read API", read_router(leads.clone(), hub.clone()), &mut servers)
        .await?;
    tracing::info!(identity = args.identity(), "starts");
    let abilities = Abilities::ask(&client).await.context("the API server tells no version")?;
    let start = Start { abilities: Arc::new(abilities), args, client, feed, metrics, leads, hub, began };
    let ended = tokio::select! {
        ended = lead(&start) => ended,
        _ = watches.join_next() => Err(anyhow::anyhow!("a watch ended")),
        ended = servers.join_next() => Err(anyhow::anyhow!("a server ended: {ended:?}")),
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
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen at {address}"))?;
    tracing::info!(address = %listener.local_addr()?, "{what}");
    servers.spawn(async move { axum::serve(listener, router).await });
    Ok(())
}

/// What a leader starts from.
struct Start {
    args: Args,
    client: Client,
    feed: Feed,
    abilities: Arc<Abilities>,
    metrics: Metrics,
    leads: Leads,
    hub: Arc<Hub>,
    began: Instant,
}

impl Start {
    fn operator(&self, sidecars: Sidecars) -> Operator {
        let args = &self.args;
        let reporter = Reporter { controller: MANAGER.to_owned(), instance: Some(args.identity()) };
        Operator {
            announcer: Announcer::new(self.client.clone(), reporter),
            client: self.client.clone(),
            world: self.feed.world.clone(),
            queue: self.feed.queue.clone(),
            release: Release {
                sidecar_image: args.sidecar_image.clone(),
                engine_image: args.engine_image.clone(),
                pull_secrets: args.image_pull_secrets.clone(),
                operator: args.own_labels.iter().cloned().collect(),
                operator_namespace: args.own_namespace.clone(),
            },
            abilities: self.abilities.clone(),
            grace_seconds: args.node_grace_seconds,
            status_every: args.status_every(),
            keeper: Keeper::new(self.client.clone(), &args.own_namespace),
            sidecars: Mutex::new(sidecars),
            metrics: self.metrics.clone(),
            memory: Memory::default(),
        }
    }
}

/// Waits for the Lease and works for as long as it is held. Ends well when told to end, and with an error when the Lease is
/// lost: whoever starts this process again gives it a new chance, with nothing left of the old one.
async fn lead(start: &Start) -> anyhow::Result<()> {
    let (args, metrics) = (&start.args, &start.metrics);
    let mut terminate = signal(SignalKind::terminate()).context("no handler for SIGTERM")?;
    let leases: Api<Lease> = Api::namespaced(start.client.clone(), &args.own_namespace);
    let mut holder = Holder::new(leases, &args.lease_name, &args.identity(), args.lease_seconds);
    let stop = async {
        terminate.recv().await;
    };
    let Some(epoch) = holder.acquire(stop).await else { return Ok(()) };
    tracing::info!(epoch, "leads");
    metrics.leads(true);
    let (certificate, certificates) = watch::channel(None);
    let (news, heard) = mpsc::unbounded_channel();
    let way = Way::new(certificates, PATIENCE).at_port(args.sidecar_port);
    let sidecars = Sidecars::new(way, epoch, news).read_every(args.poll_every());
    let contest = Contest::new(&holder, sidecars.fences());
    let operator = Arc::new(start.operator(sidecars));
    let _ = start.leads.set(operator.clone());
    let mut workers = JoinSet::new();
    workers.spawn(work(operator.clone(), start.feed.clone(), start.began));
    workers.spawn(certify(operator.clone(), certificate));
    workers.spawn(page::feed(operator.clone(), start.hub.clone()));
    workers.spawn(upgrades(operator.clone()));
    workers.spawn(keys(operator.clone(), start.feed.clone()));
    let ended = tokio::select! {
        lost = holder.keep() => Err(lost.into()),
        fence = hear(&operator, heard, contest) => {
            Err(anyhow::anyhow!("sidecars follow a newer leader: {fence}"))
        }
        ended = workers.join_next() => Err(anyhow::anyhow!("the work ended: {ended:?}")),
        _ = terminate.recv() => Ok(()),
    };
    // Nothing is written any more when the Lease is given back.
    workers.shutdown().await;
    metrics.leads(false);
    if ended.is_ok() {
        tracing::info!("ends, and gives the Lease back");
        holder.release().await?;
    }
    ended
}

/// Sees what an upgrade of the cluster brings.
async fn upgrades(operator: Arc<Operator>) {
    operator.abilities.follow(&operator.client, &operator.world, &operator.queue).await;
    std::future::pending().await
}

/// Tells kubelets of API keys that change.
async fn keys(operator: Arc<Operator>, feed: Feed) {
    listed(&feed).await;
    operator.follow_keys().await;
}

/// Keeps the certificate that sidecars are called with.
async fn certify(operator: Arc<Operator>, certificate: watch::Sender<Option<Arc<rustls::ClientConfig>>>) {
    loop {
        let wait = match operator.keeper.own(Timestamp::now().as_second()).await {
            Ok(config) => {
                certificate.send_if_modified(|known| {
                    let other = known.as_ref().is_none_or(|known| !Arc::ptr_eq(known, &config));
                    *known = Some(config.clone());
                    other
                });
                CERTIFICATE_EVERY
            }
            Err(error) => {
                tracing::warn!(%error, "sidecars cannot be called");
                CERTIFICATE_RETRY
            }
        };
        tokio::time::sleep(wait).await;
    }
}

/// Hears what comes from sidecars, until one of them follows a newer leader.
async fn hear(
    operator: &Operator,
    mut heard: mpsc::UnboundedReceiver<News>,
    mut contest: Contest<'_>,
) -> Fence {
    loop {
        match heard.recv().await {
            Some(News::Read(gpu)) => {
                let unit = Unit { namespace: gpu.namespace, pool: gpu.pool };
                operator.queue.add_after(&unit, READ_SETTLE);
            }
            Some(News::Told(sidecar, None)) => tracing::debug!(%sidecar, "has its directive"),
            Some(News::Told(sidecar, Some(problem))) => tracing::warn!(%sidecar, problem, "has no directive"),
            Some(News::Stuck(gpu)) => {
                let unit = Unit { namespace: gpu.namespace, pool: gpu.pool };
                operator.metrics.untold(operator.untold_count());
                operator.queue.add_after(&unit, READ_SETTLE);
            }
            Some(News::Deposed(sidecar, fence)) => {
                if is_deposed(&mut contest, &sidecar, fence).await {
                    return fence;
                }
            }
            // The operator that it speaks of has the other end.
            None => std::future::pending().await,
        }
    }
}

/// Whether a sidecar follows a newer leader that there is. What cannot be found out is asked again: the sidecar tells again.
async fn is_deposed(contest: &mut Contest<'_>, sidecar: &Address, fence: Fence) -> bool {
    let epoch = fence.epoch;
    match tokio::time::timeout(PATIENCE, contest.hear(sidecar, fence)).await {
        Ok(Ok(Verdict::Deposed)) => return true,
        Ok(Ok(Verdict::Beyond | Verdict::Nearer)) => {}
        Ok(Ok(Verdict::TooOften)) => tracing::debug!(%sidecar, epoch, "is not believed so soon again"),
        Ok(Err(error)) => tracing::warn!(%sidecar, %error, "whom it follows is not known"),
        Err(_) => tracing::warn!(%sidecar, "whom it follows is not known: the API server does not answer"),
    }
    false
}

/// Looks at everything once, and then at whatever changes.
async fn work(operator: Arc<Operator>, feed: Feed, began: Instant) {
    listed(&feed).await;
    let units = feed.world.units();
    tracing::info!(pools = units.len(), took = ?began.elapsed(), "everything is listed");
    for unit in &units {
        operator.queue.add_after(unit, Duration::ZERO);
    }
    operator.expect(units);
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let operator = operator.clone();
        workers.spawn(async move { operator.work().await });
    }
    tokio::join!(tell_start(&operator, began), workers.join_all());
}

/// Tells when everything has been looked at once, and when every GPU has been read once.
async fn tell_start(operator: &Operator, began: Instant) {
    operator.all_seen().await;
    operator.metrics.looked(began.elapsed());
    tracing::info!(took = ?began.elapsed(), "everything has been looked at once");
    let mut wait = UNREAD_EVERY;
    while operator.unread() > 0 {
        tokio::time::sleep(wait).await;
        wait = (wait * 6 / 5).min(UNREAD_AT_MOST);
    }
    operator.metrics.observed(began.elapsed());
    tracing::info!(took = ?began.elapsed(), "every GPU has been read once");
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
