//! An admin port on a socket, with the test in the scheduler's place.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use serde_json::{Value, json};
use sluice_agent::admin::Admin;
use sluice_agent::admin::start::{AdminCredentials, open_directives};
use sluice_agent::admin::tls::{self, Tls};
use sluice_agent::directive::ActiveDirective;
use sluice_agent::gateway::serve::ListenerLimits;
use sluice_agent::metrics::Metrics;
use sluice_agent::peers::admin_call::{AdminCall, CallRejected, reject_grant};
use sluice_agent::scheduler_handle::{MessageSender, SchedulerHandle, SchedulerMessage, Status};
use sluice_wire::config::{SidecarConfig, SloConfig};
use sluice_wire::state::{State, Tenant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use crate::gateway::client::{Answer, Client};

/// Chunk size of the GPU, bytes.
pub const CHUNK: u64 = 65_536;
/// Token shared by the peers.
pub const PEER_TOKEN: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
/// Header of every body.
pub const JSON: (&str, &str) = ("content-type", "application/json");

/// A plain or TLS connection.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A connection to the port, with the token that it sends with each request.
pub struct AdminClient {
    pub client: Client<Box<dyn Stream>>,
    token: Option<String>,
}

/// The port under test.
pub struct AdminPort {
    pub address: SocketAddr,
    pub token: String,
    pub directive: watch::Receiver<Option<ActiveDirective>>,
    pub stop: watch::Sender<bool>,
    pub serving: JoinHandle<()>,
}

/// Returns the time-slice settings of the tests' directives.
pub fn temporal_sharing() -> Value {
    json!({"Temporal": {"order": "RoundRobin", "min_quantum_ms": 5, "max_quantum_ms": 50}})
}

/// Returns the configuration of a sidecar called `name` on a shared GPU, with its files in `folder`.
pub fn config(folder: &Path, name: &str) -> SidecarConfig {
    let any = "127.0.0.1:0";
    let text = json!({
        "namespace": "default", "name": name, "model_path": "/nowhere", "policy": "Oneiros", "memory": {},
        "gpu": {"name": "gpu", "memory_bytes": 96 << 20, "chunk_bytes": CHUNK},
        "listen": {"serve": any, "admin": any, "probes": any, "peer_token_file": folder.join("peer_tokens")},
        "gpu_ledger": {"folder": folder, "claim": "claim", "share_bytes": 48 << 20,
            "sharing": temporal_sharing()},
        "runtime_dir": folder,
    });
    std::fs::write(folder.join("peer_tokens"), format!("{PEER_TOKEN}\n")).expect("a file");
    serde_json::from_value(text).expect("a configuration")
}

/// Returns a scheduler that reports its state and makes no loans.
pub fn start_idle(name: &str) -> impl FnMut(SchedulerMessage) + Send + 'static {
    let tenant = Tenant { namespace: "default".into(), name: name.into(), ..Tenant::default() };
    move |message| match message {
        // Fails if the caller has disconnected.
        SchedulerMessage::State(reply) => {
            let state = State { tenant: tenant.clone(), ..State::default() };
            drop(reply.send(Box::new(state)));
        }
        SchedulerMessage::Admin(AdminCall::IsSleeping(answer)) => drop(answer.send(Ok(false))),
        SchedulerMessage::Admin(AdminCall::Sleep(_, answer) | AdminCall::WakeUp(answer)) => {
            drop(answer.send(Err(CallRejected("not now".into()))));
        }
        SchedulerMessage::Admin(AdminCall::Grant(_, answer)) => reject_grant(answer),
        _ => {}
    }
}

/// Returns a directive for `story` with these peers.
pub fn directive(epoch: u64, sequence: u64, peers: &[(&str, SocketAddr)]) -> Value {
    let peer = |(name, admin): &(&str, SocketAddr)| {
        json!({"namespace": "default", "name": name, "pod_uid": null, "claim_uid": null, "admin": admin,
            "priority": 0, "share_bytes": 32 << 20, "floor_bytes": 16 << 20})
    };
    json!({
        "version": 2, "epoch": epoch, "sequence": sequence, "policy": "Oneiros",
        "tenant": {"priority": 1, "max_remapped_percent": 60, "hibernate_after_seconds": 600, "idle_after_seconds": 30},
        "sharing": temporal_sharing(),
        "victim": "MostRecentlyUsed", "min_residence_ms": 500, "revoke_bound_ms": 200,
        "peers": peers.iter().map(peer).collect::<Vec<_>>(), "fallback_order": [],
    })
}

impl AdminPort {
    pub async fn start(
        config: &SidecarConfig,
        on_message: impl FnMut(SchedulerMessage) + Send + 'static,
    ) -> AdminPort {
        AdminPort::start_with(config, on_message, None).await
    }

    /// Starts a port. With `tls`, the test reloads the certificates itself.
    pub async fn start_with(
        config: &SidecarConfig,
        mut on_message: impl FnMut(SchedulerMessage) + Send + 'static,
        tls: Option<Arc<Tls>>,
    ) -> AdminPort {
        let (inbox, messages) = MessageSender::new();
        std::thread::spawn(move || messages.into_iter().for_each(&mut on_message));
        let service = SchedulerHandle::new(inbox, watch::channel(Status::Serving).1);
        let token_file = config.runtime_dir.join("token");
        let credentials = AdminCredentials::load(config, &token_file).expect("credentials");
        let directives = open_directives(config);
        let directive = directives.watch();
        let admin = Admin::new(config, service, directives, &credentials);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (stop, stopping) = watch::channel(false);
        let limits = ListenerLimits { max_connections: 64, drain_timeout: Duration::from_secs(1) };
        let metrics = Arc::new(Metrics::new("tiny", &SloConfig::default()));
        let serving = match tls {
            None => tokio::spawn(credentials.serve(listener, admin, limits, stopping, metrics)),
            Some(tls) => tokio::spawn(tls::serve(listener, admin.router(), tls, limits, stopping)),
        };
        let token = std::fs::read_to_string(token_file).expect("a token");
        AdminPort { address, token, directive, stop, serving }
    }

    /// Starts the port of `name`, with tokens.
    pub async fn start_idle(folder: &Path, name: &str) -> AdminPort {
        AdminPort::start(&config(folder, name), start_idle(name)).await
    }

    pub async fn with_token(&self, token: Option<&str>) -> AdminClient {
        let socket = TcpStream::connect(self.address).await.expect("a server listens");
        AdminClient { client: Client::new(Box::new(socket)), token: token.map(Into::into) }
    }

    pub async fn operator(&self) -> AdminClient {
        self.with_token(Some(&self.token)).await
    }

    /// Connects with TLS to the sidecar of `name`. With TLS 1.3 a refusal may become visible only later.
    pub async fn with_tls(&self, tls: Arc<ClientConfig>, name: &str) -> std::io::Result<AdminClient> {
        let socket = TcpStream::connect(self.address).await?;
        let name = format!("{name}.default.sidecar.sluice").try_into().expect("a name");
        let socket = TlsConnector::from(tls).connect(name, socket).await?;
        Ok(AdminClient { client: Client::new(Box::new(socket)), token: None })
    }

    pub async fn shutdown(self) {
        self.stop.send(true).expect("it serves");
        self.serving.await.expect("it ends");
    }
}

impl AdminClient {
    pub async fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let value = self.token.as_ref().map(|token| format!("Bearer {token}"));
        let own = value.iter().map(|value| ("authorization", value.as_str()));
        let all: Vec<_> = own.chain(headers.iter().copied()).collect();
        self.client.send(method, path, &all, body).await;
    }

    pub async fn ask(&mut self, method: &str, path: &str, body: &[u8]) -> Answer {
        self.send(method, path, &[JSON], body).await;
        self.client.answer().await
    }

    pub async fn get(&mut self, path: &str) -> Answer {
        self.ask("GET", path, b"").await
    }

    pub async fn put(&mut self, directive: &Value) -> Answer {
        self.ask("PUT", "/v1/directive", directive.to_string().as_bytes()).await
    }
}

/// Checks an error's status, field and code.
#[track_caller]
pub fn assert_refused(answer: &Answer, status: u16, field: Option<&str>, code: Option<&str>) {
    assert_eq!(answer.head.status, status, "{answer:?}");
    let error = &answer.json()["error"];
    assert_eq!((error["param"].as_str(), error["code"].as_str()), (field, code), "{answer:?}");
}
