//! The live page of `sluice up --page` and `sluice demo`: its server, and one poller for each GPU.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use futures_util::future::join_all;
use sluice_page::hub::{Hub, HubConfig};
use sluice_page::serve;
use sluice_page::view::Reading;
use sluice_wire::config::SidecarConfig;
use sluice_wire::overview;
use sluice_wire::state::TenantReport;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::output::print_line;
use crate::admin::AdminClient;
use crate::{Misconfigured, now_unix_ms, runtime_dir};

/// Interval of reading a GPU.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of reading all sidecars of a GPU: one that hangs must not delay the data of the others.
const POLL_TIMEOUT: Duration = Duration::from_millis(900);
/// Most moves that are kept per GPU. Three busy tenants have four to five a second, so the moves of the page's quarter
/// of an hour are kept. They take about 1 MiB.
const MAX_MOVES: usize = 4096;

/// Default address of the page.
pub const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), overview::PORT);

/// Parses the `ADDRESS` of `--page`: `HOST:PORT`, or a port of 127.0.0.1.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let port = || text.parse().ok().map(|port| SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port));
    let address: SocketAddr = text
        .parse()
        .ok()
        .or_else(port)
        .ok_or_else(|| format!("`{text}` is not IP:PORT, such as {DEFAULT_ADDRESS}, and not a port"))?;
    if address.ip().is_loopback() {
        return Ok(address);
    }
    Err(format!(
        "{} is not a loopback address, and the page has no password; use {} and forward a port to it",
        address.ip(),
        Ipv4Addr::LOCALHOST
    ))
}

/// One tenant that the page shows.
#[derive(Clone, Debug)]
struct DashboardTenant {
    namespace: String,
    name: String,
    /// Its runtime folder.
    folder: PathBuf,
}

/// One GPU that the page shows.
#[derive(Debug)]
struct DashboardGpu {
    namespace: String,
    name: String,
    memory_bytes: u64,
    tenants: Vec<DashboardTenant>,
}

/// The last reading of each GPU.
type ReportsByGpu = Arc<Mutex<BTreeMap<usize, (u64, Vec<TenantReport>)>>>;

/// The page of this run. It ends on drop.
#[derive(Debug)]
pub struct DashboardServer {
    hub: Arc<Hub>,
    admin: AdminClient,
    /// Tasks that read the sidecars and publish the readings.
    readers: JoinSet<()>,
    _server: JoinSet<()>,
}

impl DashboardServer {
    /// Serves the page of the tenants `configs` at `wanted`, and prints where. `source` is the command that the
    /// page names. If [`DEFAULT_ADDRESS`] is taken, it serves at a free port.
    ///
    /// # Errors
    /// Another address is taken, or is not one of this machine.
    pub async fn start(
        wanted: SocketAddr,
        configs: &[&SidecarConfig],
        admin: &AdminClient,
        source: &str,
    ) -> anyhow::Result<DashboardServer> {
        let listener = listen(wanted).await?;
        let address = listener.local_addr().context("--page")?;
        let note = "No sidecar has answered yet.".to_owned();
        let hub =
            Hub::new(HubConfig { source: source.into(), interval: POLL_INTERVAL, moves: MAX_MOVES, note });
        let router = serve::local_only(serve::routes(hub.clone()));
        let mut server = JoinSet::new();
        server.spawn(async move {
            // The server fails only if the listener does.
            let _ = axum::serve(listener, router).await;
        });
        let mut page =
            DashboardServer { hub, admin: admin.clone(), readers: JoinSet::new(), _server: server };
        page.set_tenants(configs);
        print_line(format_args!("page http://{address}/"));
        Ok(page)
    }

    /// Replaces the shown GPUs by those of the tenants `configs`, at the same address. The history is kept.
    pub fn set_tenants(&mut self, configs: &[&SidecarConfig]) {
        let (gpus, board) = (Arc::new(gpus(configs)), ReportsByGpu::default());
        // Stops the previous readers.
        self.readers = JoinSet::new();
        for at in 0..gpus.len() {
            self.readers.spawn(poll(gpus.clone(), at, self.admin.clone(), board.clone()));
        }
        self.readers.spawn(publish(gpus, board, self.hub.clone()));
    }
}

async fn listen(wanted: SocketAddr) -> anyhow::Result<TcpListener> {
    let bound = match TcpListener::bind(wanted).await {
        Err(error) if error.kind() == ErrorKind::AddrInUse && wanted == DEFAULT_ADDRESS => {
            TcpListener::bind(SocketAddr::new(wanted.ip(), 0)).await
        }
        bound => bound,
    };
    bound.map_err(|error| {
        let advice = "choose another address, or omit it";
        Misconfigured(format!("--page {wanted}: {error}; {advice}")).into()
    })
}

fn gpus(configs: &[&SidecarConfig]) -> Vec<DashboardGpu> {
    let mut gpus: Vec<DashboardGpu> = Vec::new();
    for config in configs {
        let (namespace, name) = (config.namespace.clone(), config.name.clone());
        let tenant =
            DashboardTenant { namespace: namespace.clone(), name, folder: config.runtime_dir.clone() };
        match gpus.iter_mut().find(|gpu| gpu.namespace == namespace && gpu.name == config.gpu.name) {
            Some(gpu) => gpu.tenants.push(tenant),
            None => gpus.push(DashboardGpu {
                namespace,
                name: config.gpu.name.clone(),
                memory_bytes: config.gpu.memory_bytes,
                tenants: vec![tenant],
            }),
        }
    }
    gpus
}

/// Reads the sidecars of one GPU periodically.
async fn poll(gpus: Arc<Vec<DashboardGpu>>, at: usize, admin: AdminClient, board: ReportsByGpu) {
    let mut ticks = interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let reports = join_all(gpus[at].tenants.iter().map(|tenant| poll_tenant(&admin, tenant))).await;
        board.lock().unwrap_or_else(PoisonError::into_inner).insert(at, (now_unix_ms(), reports));
    }
}

async fn poll_tenant(admin: &AdminClient, tenant: &DashboardTenant) -> TenantReport {
    let silent = |reason: String| TenantReport::Unreachable {
        namespace: tenant.namespace.clone(),
        name: tenant.name.clone(),
        reason,
    };
    // A sidecar that restarts writes a new record.
    let Some(record) = runtime_dir::read_record(&tenant.folder).ok().flatten() else {
        return silent("it has not started yet".into());
    };
    match timeout(POLL_TIMEOUT, admin.state(&record)).await {
        Ok(Ok(state)) => TenantReport::State(Box::new(state)),
        Ok(Err(error)) => silent(format!("{error:#}")),
        Err(_) => silent(format!("no answer in {POLL_TIMEOUT:?}")),
    }
}

/// Publishes the last readings periodically.
async fn publish(gpus: Arc<Vec<DashboardGpu>>, board: ReportsByGpu, hub: Arc<Hub>) {
    let mut ticks = interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let board = board.lock().unwrap_or_else(PoisonError::into_inner);
        if board.is_empty() {
            continue;
        }
        hub.update(now_unix_ms(), |update| {
            for (at, (read_unix_ms, tenants)) in board.iter() {
                let gpu = &gpus[*at];
                update.gpu(&Reading {
                    namespace: &gpu.namespace,
                    name: &gpu.name,
                    capacity_bytes: Some(gpu.memory_bytes),
                    read_unix_ms: Some(*read_unix_ms),
                    tenants,
                    ..Reading::default()
                });
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_port_or_a_loopback_address_with_one() {
        assert_eq!(parse_address("127.0.0.1:9"), Ok(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 9)));
        assert_eq!(parse_address("8003"), Ok(DEFAULT_ADDRESS));
        assert_eq!(parse_address("[::1]:0").map(|address| address.is_ipv6()), Ok(true));
        let refused = parse_address("0.0.0.0:8003").unwrap_err();
        assert!(refused.starts_with("0.0.0.0 is not a loopback address"), "{refused}");
        let refused = parse_address("page").unwrap_err();
        assert_eq!(refused, "`page` is not IP:PORT, such as 127.0.0.1:8003, and not a port");
    }

    /// A tenant of the one GPU, which has `memory_bytes`.
    fn config(memory_bytes: u64) -> SidecarConfig {
        let nowhere = "127.0.0.1:0";
        let config = serde_json::json!({
            "namespace": "team", "name": "chat", "model_path": "/nowhere", "policy": "Oneiros", "memory": {},
            "gpu": {"name": "gpu-0", "memory_bytes": memory_bytes, "chunk_bytes": 65536},
            "listen": {"serve": nowhere, "admin": nowhere, "probes": nowhere},
            "runtime_dir": "/nowhere",
        });
        serde_json::from_value(config).unwrap()
    }

    /// Waits until a viewer of `page` sees a GPU of `memory_bytes`.
    async fn wait_until_shown(page: &DashboardServer, memory_bytes: u64) {
        let expected = format!("\"capacity_bytes\":{memory_bytes},");
        let seen = async {
            let mut viewer = page.hub.viewer(None).unwrap();
            while let Some(messages) = viewer.next().await {
                if messages.iter().any(|(kind, json)| *kind == "gpu" && json.contains(&expected)) {
                    return;
                }
            }
            panic!("no update will come");
        };
        timeout(Duration::from_secs(60), seen).await.expect("the GPU is seen");
    }

    #[tokio::test]
    async fn a_page_shows_the_gpus_that_it_was_given_last() {
        // Another test of this process may have installed it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let anywhere = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
        let admin = AdminClient::new().unwrap();
        let mut page = DashboardServer::start(anywhere, &[&config(96 << 20)], &admin, "test").await.unwrap();
        wait_until_shown(&page, 96 << 20).await;
        page.set_tenants(&[&config(128 << 20)]);
        wait_until_shown(&page, 128 << 20).await;
    }

    #[tokio::test]
    async fn a_taken_port_is_refused_where_it_was_asked_for() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = taken.local_addr().unwrap();
        let refused = listen(address).await.unwrap_err();
        assert!(refused.is::<Misconfigured>());
        assert!(refused.to_string().starts_with(&format!("--page {address}: ")), "{refused}");
    }
}
