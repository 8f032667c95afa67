//! Opens and closes what every sidecar has with any engine: its sockets, the credentials of the admin port, and its
//! record.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use axum::Router;
use sluice_policy::token_deposit::Pacing;
use sluice_wire::config::{SidecarConfig, SidecarRecord};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::failure::{Failure, config_error, other_error};
use crate::admin::start::{AdminCredentials, StartError};
use crate::admin::{self, Admin};
use crate::credential_reload::{self, RELOAD_INTERVAL};
use crate::directive::DirectiveStore;
use crate::gateway::ApiKeys;
use crate::gateway::limits::RequestLimiter;
use crate::gateway::scrape::MetricsScrape;
use crate::gateway::serve::{CLOSE_GRACE, ListenerLimits, drain, serve, serve_with_timeouts};
use crate::gateway::timeouts::Timeouts;
use crate::heartbeat::Heartbeat;
use crate::open_files::max_connections;
use crate::peers::client::PeerClient;
use crate::probes::{self, DrainHook};

/// Listening sockets of a sidecar.
struct Sockets {
    serve: TcpListener,
    admin: TcpListener,
    probes: TcpListener,
}

impl Sockets {
    async fn bind(config: &SidecarConfig) -> Result<Self, Failure> {
        let bind = async |field, address: SocketAddr| {
            let bound = TcpListener::bind(address).await;
            bound.with_context(|| format!("cannot listen on {address}")).map_err(|e| Failure::Field(field, e))
        };
        let listen = &config.listen;
        Ok(Sockets {
            serve: bind("listen.serve", listen.serve).await?,
            admin: bind("listen.admin", listen.admin).await?,
            probes: bind("listen.probes", listen.probes).await?,
        })
    }

    /// Writes the addresses, through which other processes find this sidecar.
    fn write_record(&self, config: &SidecarConfig, token_file: &Path) -> anyhow::Result<()> {
        let record = SidecarRecord {
            namespace: config.namespace.clone(),
            name: config.name.clone(),
            pid: std::process::id(),
            serve: self.serve.local_addr()?,
            admin: self.admin.local_addr()?,
            probes: self.probes.local_addr()?,
            token_file: token_file.to_owned(),
            gpu: config.gpu.name.clone(),
        };
        let path = config.runtime_dir.join(SidecarRecord::FILE);
        let part = path.with_extension("json.part");
        std::fs::write(&part, serde_json::to_vec_pretty(&record)?)
            .with_context(|| part.display().to_string())?;
        std::fs::rename(&part, &path).with_context(|| path.display().to_string())
    }
}

/// Listening sockets, and the state of the admin port.
pub(crate) struct Listeners {
    sockets: Sockets,
    credentials: AdminCredentials,
    /// Store of the directive in force.
    pub directives: Arc<DirectiveStore>,
}

/// Everything that the listeners serve.
pub(crate) struct ServeContext {
    /// Routes of `:8000`.
    pub router: Router,
    /// Source of the state and the metrics.
    pub scrape: MetricsScrape,
    /// Limiter of open requests.
    pub open_requests: RequestLimiter,
    /// Heartbeat of the scheduler's thread.
    pub heartbeat: Heartbeat,
    /// Keys of the API.
    pub keys: ApiKeys,
}

impl Listeners {
    /// Binds the sockets and writes their addresses.
    pub async fn open(config: &SidecarConfig) -> Result<Listeners, Failure> {
        let sockets = Sockets::bind(config).await?;
        let token_file: PathBuf = config.runtime_dir.join("token");
        let credentials = AdminCredentials::load(config, &token_file).map_err(admin_failure)?;
        let directives = admin::start::open_directives(config);
        sockets.write_record(config, &token_file).map_err(other_error)?;
        Ok(Listeners { sockets, credentials, directives })
    }

    /// Creates the client for calls to peers.
    pub fn client(&self) -> Arc<PeerClient> {
        self.credentials.client()
    }

    /// Serves all ports.
    pub fn serve(self, config: &SidecarConfig, behind: ServeContext) -> ServerTasks {
        let Listeners { sockets, credentials, directives } = self;
        let ServeContext { router, scrape, open_requests: open, keys, heartbeat } = behind;
        let (stop, stopping) = watch::channel(false);
        let drain = Duration::from_secs(u64::from(config.drain_seconds));
        let limits = ListenerLimits {
            max_connections: max_connections(config.limits.max_streams),
            drain_timeout: drain + CLOSE_GRACE,
        };
        let small = ListenerLimits { max_connections: 64, drain_timeout: Duration::from_secs(1) };
        let admin = Admin::new(config, scrape.service.clone(), directives, &credentials);
        let metrics = scrape.metrics.clone();
        if let Some(keys) = keys.file() {
            tokio::spawn(credential_reload::reload_until_stopped(
                keys,
                RELOAD_INTERVAL,
                stopping.clone(),
                metrics.clone(),
            ));
        }
        let admin = credentials.serve(sockets.admin, admin, small, stopping.clone(), metrics);
        let admin = tokio::spawn(admin);
        let key = config.listen.drain_key.clone();
        let hook = config.listen.drain_hook.then(|| DrainHook::new(open, drain, DrainHook::SETTLE, key));
        let probes = probes::router(scrape, hook.clone(), heartbeat);
        let probes = tokio::spawn(serve(sockets.probes, probes, small, stopping.clone()));
        let gateway = tokio::spawn(serve_with_timeouts(
            sockets.serve,
            router,
            limits,
            Timeouts::for_clients(),
            stopping,
        ));
        ServerTasks { gateway, admin, probes, stop, drain, hook }
    }
}

/// Servers that run.
pub(crate) struct ServerTasks {
    gateway: JoinHandle<()>,
    admin: JoinHandle<()>,
    probes: JoinHandle<()>,
    stop: watch::Sender<bool>,
    drain: Duration,
    hook: Option<DrainHook>,
}

impl ServerTasks {
    /// Waits until the hooks of a pod have drained it. Never returns if there are no hooks.
    pub async fn wait_drained(&self) {
        match &self.hook {
            Some(hook) => hook.wait_drained().await,
            None => std::future::pending().await,
        }
    }

    /// Stops accepting connections and waits for running responses, unless hooks have already waited for them. Then
    /// `cut` ends the remaining ones. `cut` also runs if none remain.
    pub async fn drain(self, cut: impl FnOnce()) {
        tracing::info!("draining");
        // The receivers are the tasks below, which still run.
        let _ = self.stop.send(true);
        let waited = self.hook.is_some_and(|hook| hook.answered());
        let patience = if waited { Duration::ZERO } else { self.drain };
        let _ = tokio::join!(drain(self.gateway, patience, cut), self.admin, self.probes);
    }
}

fn admin_failure(error: StartError) -> Failure {
    match error {
        StartError::Token { .. } => other_error(error),
        _ => config_error(error),
    }
}

/// Returns the names under which clients request the model. The first one is reported.
pub(crate) fn model_names(config: &SidecarConfig) -> Vec<String> {
    if config.served_names.is_empty() { vec![config.name.clone()] } else { config.served_names.clone() }
}

/// Returns the pacing of streams.
pub(crate) fn stream_pacing(config: &SidecarConfig) -> Result<Pacing, Failure> {
    let interval_ns = u64::from(config.slo.tbt_milliseconds) * 1_000_000;
    match config.pacing.as_str() {
        "TokenDeposit" => Ok(Pacing::Paced { interval_ns }),
        "Immediate" => Ok(Pacing::Immediate),
        other => {
            let problem = anyhow!("`{other}` is not supported; use TokenDeposit or Immediate");
            Err(Failure::Field("pacing", problem))
        }
    }
}

/// Returns the keys of the API.
pub(crate) fn api_keys(config: &SidecarConfig) -> Result<ApiKeys, Failure> {
    let keys = config.api_keys_file.as_deref().map_or(Ok(ApiKeys::default()), ApiKeys::load);
    keys.map_err(|error| Failure::Field("api_keys_file", error.into()))
}
