//! Servers to measure in this process: a gateway with or without a tenant, and a bare server without the gateway's
//! work, which gives the floor of the machine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use sluice_agent::gateway::limits::RequestLimiter;
use sluice_agent::gateway::serve::{ListenerLimits, serve};
use sluice_agent::gateway::{ApiKeys, Gateway};
use sluice_agent::metrics::Metrics;
use sluice_agent::model::text::Text;
use sluice_agent::scheduler_handle::{
    MessageSender, RequestUpdate, SchedulerHandle, SchedulerMessage, Status,
};
use sluice_policy::token_deposit::Pacing;
use sluice_wire::config::{LimitsConfig, SloConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};

use crate::tiny;

/// Sender of the tokens of one stream.
pub type Updates = mpsc::UnboundedSender<RequestUpdate>;

/// Kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// The gateway.
    #[allow(dead_code, reason = "one of the two examples has its gateway from a tenant")]
    Gateway,
    /// The control without HTTP, text and metrics: one task per stream writes constant bytes of an event's size.
    Bare,
}

/// Bytes that the control writes per token: an event of the gateway in an HTTP chunk.
const EVENT: &[u8] = b"dc\r\ndata: {\"id\":\"cmpl-69206b1e-2710\",\"object\":\"text_completion\",\
\"created\":1763740000,\"model\":\"tiny\",\"choices\":[{\"index\":0,\"text\":\"a\",\"logprobs\":null,\
\"finish_reason\":null}]}\n\n\r\n";

/// A server that runs until it is dropped.
pub struct Host {
    pub address: SocketAddr,
    pub metrics: Arc<Metrics>,
    stop: watch::Sender<bool>,
    runtime: Runtime,
    /// Status of the absent scheduler.
    _status: Option<watch::Sender<Status>>,
}

/// Starts a server without a tenant. The second value receives the sender of every stream that clients open.
pub fn start(server: Server, streams: u32, pacing: Pacing) -> anyhow::Result<(Host, Receiver<Updates>)> {
    let (opened, streams_opened) = channel();
    match server {
        Server::Bare => {
            let (host, listener) = Host::new(Arc::new(Metrics::new("tiny", &SloConfig::default())))?;
            host.runtime.spawn(accept(listener, pacing, opened));
            Ok((host, streams_opened))
        }
        Server::Gateway => {
            let folder = tempfile::tempdir()?;
            let (status, watched) = watch::channel(Status::Serving);
            let service = SchedulerHandle::new(scheduler(opened), watched);
            let metrics = Arc::new(Metrics::new("tiny", &SloConfig::default()));
            let text = Arc::new(tiny::text(folder.path()));
            let host = Host::serve(text, service, streams, pacing, metrics)?;
            Ok((Host { _status: Some(status), ..host }, streams_opened))
        }
    }
}

impl Host {
    /// Creates a runtime with as many threads as a sidecar, and a listener.
    fn new(metrics: Arc<Metrics>) -> anyhow::Result<(Host, TcpListener)> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let (address, stop) = (listener.local_addr()?, watch::channel(false).0);
        Ok((Host { address, metrics, stop, runtime, _status: None }, listener))
    }

    /// Waits until the tenant of `status` serves.
    #[allow(dead_code, reason = "one of the two examples has a tenant")]
    pub fn until_serving(&self, status: &mut watch::Receiver<Status>) -> anyhow::Result<()> {
        self.runtime.block_on(status.wait_for(|status| *status == Status::Serving))?;
        Ok(())
    }

    /// Starts a gateway that sends its requests to `service`.
    pub fn serve(
        text: Arc<Text>,
        service: SchedulerHandle,
        streams: u32,
        stream_pacing: Pacing,
        metrics: Arc<Metrics>,
    ) -> anyhow::Result<Host> {
        let (host, listener) = Host::new(metrics.clone())?;
        let gateway = Gateway {
            text,
            service,
            served_names: vec!["tiny".into()],
            vocab: tiny::VOCAB,
            max_model_tokens: 1 << 20,
            limiter: RequestLimiter::new(streams, metrics.clone()),
            limits: LimitsConfig { max_streams: streams, ..LimitsConfig::default() },
            stream_pacing,
            api_keys: ApiKeys::default(),
            metrics,
            started: Gateway::unix_seconds(),
            next_response: AtomicU64::new(1),
        };
        let limits = ListenerLimits {
            max_connections: streams as usize + 1024,
            drain_timeout: Duration::from_secs(1),
        };
        host.runtime.spawn(serve(listener, Arc::new(gateway).router(), limits, host.stop.subscribe()));
        Ok(host)
    }
}

/// Starts a stand-in for the scheduler that forwards the senders of streams and makes no tokens.
fn scheduler(opened: Sender<Updates>) -> MessageSender {
    let (inbox, messages) = MessageSender::new();
    std::thread::spawn(move || {
        for message in messages {
            if let SchedulerMessage::Submit(_, updates) = message {
                // Fails after the end of the measurement.
                let _ = opened.send(updates);
            }
        }
    });
    inbox
}

async fn accept(listener: TcpListener, pacing: Pacing, opened: Sender<Updates>) {
    while let Ok((socket, _)) = listener.accept().await {
        let (updates, tokens) = mpsc::unbounded_channel();
        let _ = opened.send(updates);
        tokio::spawn(write(socket, tokens, pacing));
    }
}

/// Writes one stream of the control: every token immediately, or an interval after the last one.
async fn write(mut socket: TcpStream, mut tokens: mpsc::UnboundedReceiver<RequestUpdate>, pacing: Pacing) {
    let mut request = [0; 1024];
    if socket.set_nodelay(true).is_err() || socket.read(&mut request).await.is_err() {
        return;
    }
    while tokens.recv().await.is_some() && socket.write_all(EVENT).await.is_ok() {
        if let Pacing::Paced { interval_ns } = pacing {
            tokio::time::sleep(Duration::from_nanos(interval_ns)).await;
        }
    }
}

/// Returns the bytes of a request for a stream of `max_tokens` tokens.
pub fn request(prompt: &str, max_tokens: u32) -> Vec<u8> {
    let body = format!(r#"{{"prompt":"{prompt}","stream":true,"max_tokens":{max_tokens}}}"#);
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    format!("{head}content-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// Prints one result; `floor` is the same value for [`Server::Bare`].
pub fn print_check(name: &str, value: f64, limit: f64, unit: &str, floor: Option<f64>) -> bool {
    let passed = value <= limit;
    let floor = floor.map_or(String::new(), |floor| format!("  (the bare server: {floor:.2} {unit})"));
    println!(
        "{name:<34} {value:>10.2} {unit:<4} limit {limit:>8.2} {unit:<4} {}{floor}",
        if passed { "PASS" } else { "FAIL" }
    );
    passed
}
