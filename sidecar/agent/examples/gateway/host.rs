//! A gateway in this process with nothing behind it but an inbox, for measurements.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use sluice_agent::gateway::Gateway;
use sluice_agent::gateway::open::OpenRequests;
use sluice_agent::gateway::serve::{Limits, serve};
use sluice_agent::metrics::Metrics;
use sluice_agent::service::{Inbox, Message, Service, Status};
use sluice_policy::deposit::Pacing;
use sluice_wire::config::{LimitsConfig, SloConfig};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::tiny;

/// A gateway that serves while this lives.
pub struct Host {
    pub address: SocketAddr,
    pub metrics: Arc<Metrics>,
    _running: (watch::Sender<Status>, watch::Sender<bool>, tempfile::TempDir, tokio::runtime::Runtime),
}

/// Starts it on as many threads as a sidecar has. What clients ask for arrives at the second value.
pub fn start(streams: u32, pacing: Pacing) -> anyhow::Result<(Host, Receiver<Message>)> {
    let folder = tempfile::tempdir()?;
    let (inbox, messages) = Inbox::new();
    let (status, watched) = watch::channel(Status::Serving);
    let metrics = Arc::new(Metrics::new("tiny", &SloConfig::default()));
    let gateway = Arc::new(Gateway {
        text: Arc::new(tiny::text(folder.path())),
        service: Service::new(inbox, watched),
        names: vec!["tiny".into()],
        vocab: tiny::VOCAB,
        max_model_tokens: 1 << 20,
        open: OpenRequests::new(streams, metrics.clone()),
        limits: LimitsConfig { max_streams: streams, ..LimitsConfig::default() },
        stream_pacing: pacing,
        api_keys: Vec::new(),
        metrics: metrics.clone(),
        started: Gateway::unix_seconds(),
        answers: AtomicU64::new(1),
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
    let address = listener.local_addr()?;
    let (stop, stopping) = watch::channel(false);
    let limits = Limits { connections: streams as usize + 1024, drain: Duration::from_secs(1) };
    runtime.spawn(serve(listener, gateway.router(), limits, stopping));
    Ok((Host { address, metrics, _running: (status, stop, folder, runtime) }, messages))
}

/// A request for an endless stream, as bytes on the wire.
pub fn request() -> Vec<u8> {
    let body = r#"{"prompt":"p","stream":true,"max_tokens":1000000}"#;
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    format!("{head}content-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// The value of rank `permille` in `sorted`.
pub fn rank(sorted: &[u64], permille: usize) -> u64 {
    sorted[(sorted.len() * permille).div_ceil(1000).clamp(1, sorted.len()) - 1]
}

/// One line of a verdict.
pub fn verdict(name: &str, value: f64, limit: f64, unit: &str) -> bool {
    let passed = value <= limit;
    println!(
        "{name:<34} {value:>10.2} {unit:<4} limit {limit:>8.2} {unit:<4} {}",
        if passed { "PASS" } else { "FAIL" }
    );
    passed
}
