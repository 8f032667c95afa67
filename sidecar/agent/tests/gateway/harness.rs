//! A gateway on a socket, with the test in the scheduler's place.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use serde_json::Value;
use sluice_agent::gateway::limits::RequestLimiter;
use sluice_agent::gateway::scrape::MetricsScrape;
use sluice_agent::gateway::serve::{ListenerLimits, serve_with_timeouts};
use sluice_agent::gateway::timeouts::Timeouts;
use sluice_agent::gateway::{ApiKeys, Gateway};
use sluice_agent::metrics::Metrics;
use sluice_agent::model::text::Text;
use sluice_agent::scheduler_handle::{
    MessageSender, RequestUpdate, SchedulerHandle, SchedulerMessage, Status,
};
use sluice_policy::ids::RequestId;
use sluice_policy::token_deposit::Pacing;
use sluice_scheduler::{Finish, Request};
use sluice_wire::config::{LimitsConfig, SloConfig};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::client::{Answer, Client, TIMEOUT};
use super::tiny;

/// Settings that differ between tests.
pub struct HarnessConfig {
    pub limits: LimitsConfig,
    pub pacing: Pacing,
    pub keys: Vec<String>,
    pub status: Status,
    pub slo: SloConfig,
    pub context: u32,
    pub connections: usize,
    pub drain: Duration,
    pub timeouts: Timeouts,
    /// Writes the model; returns its text parts and its vocabulary size.
    pub model: fn(&std::path::Path) -> (Text, u32),
}

impl Default for HarnessConfig {
    fn default() -> Self {
        HarnessConfig {
            limits: LimitsConfig::default(),
            pacing: Pacing::Immediate,
            keys: Vec::new(),
            status: Status::Serving,
            slo: SloConfig::default(),
            context: 1000,
            connections: 4096,
            drain: Duration::from_secs(10),
            timeouts: Timeouts::default(),
            model: |folder| (tiny::text(folder), tiny::VOCAB),
        }
    }
}

/// Returns the keys of a file, if there are any.
fn keys(folder: &Path, keys: &[String]) -> ApiKeys {
    if keys.is_empty() {
        return ApiKeys::default();
    }
    let path = folder.join("keys");
    std::fs::write(&path, keys.join("\n")).expect("a file");
    ApiKeys::load(&path).expect("keys")
}

/// The gateway under test.
pub struct Harness {
    pub address: SocketAddr,
    pub scheduler: FakeScheduler,
    pub status: watch::Sender<Status>,
    pub service: SchedulerHandle,
    pub metrics: Arc<Metrics>,
    pub open: RequestLimiter,
    pub stop: watch::Sender<bool>,
    pub serving: JoinHandle<()>,
    _folder: tempfile::TempDir,
}

/// The scheduler's end of the message channel.
pub struct FakeScheduler(Receiver<SchedulerMessage>);

/// A request as the scheduler receives it.
pub struct ReceivedRequest {
    pub request: Request,
    updates: mpsc::UnboundedSender<RequestUpdate>,
}

impl Harness {
    pub async fn start(setup: HarnessConfig) -> Harness {
        let folder = tempfile::tempdir().expect("a folder");
        let (text, vocab) = (setup.model)(folder.path());
        let (inbox, messages) = MessageSender::new();
        let (status, watched) = watch::channel(setup.status);
        let service = SchedulerHandle::new(inbox, watched);
        let metrics = Arc::new(Metrics::new("tiny", &setup.slo));
        let open = RequestLimiter::new(setup.limits.max_streams, metrics.clone());
        let gateway = Arc::new(Gateway {
            text: Arc::new(text),
            service: service.clone(),
            served_names: vec!["tiny".into(), "org/tiny".into()],
            vocab,
            max_model_tokens: setup.context,
            limiter: open.clone(),
            limits: setup.limits,
            stream_pacing: setup.pacing,
            api_keys: keys(folder.path(), &setup.keys),
            metrics: metrics.clone(),
            started: Gateway::unix_seconds(),
            next_response: AtomicU64::new(1),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (stop, stopping) = watch::channel(false);
        let limits = ListenerLimits { max_connections: setup.connections, drain_timeout: setup.drain };
        let serving =
            tokio::spawn(serve_with_timeouts(listener, gateway.router(), limits, setup.timeouts, stopping));
        Harness {
            address,
            scheduler: FakeScheduler(messages),
            status,
            service,
            metrics,
            open,
            stop,
            serving,
            _folder: folder,
        }
    }

    /// Returns the handler of `/metrics`.
    pub fn scrape(&self) -> MetricsScrape {
        MetricsScrape::native(self.service.clone(), self.metrics.clone())
    }

    pub async fn client(&self) -> Client {
        Client::connect(self.address).await
    }

    /// Sends a body; the caller reads the response.
    pub async fn start_post(&self, path: &str, body: &Value) -> Client {
        let mut client = self.client().await;
        client.post(path, body).await;
        client
    }

    /// Sends a body and returns the response, for requests that do not reach the scheduler.
    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.start_post(path, body).await.answer().await
    }

    pub async fn get(&self, path: &str) -> Answer {
        let mut client = self.client().await;
        client.send("GET", path, &[], b"").await;
        client.answer().await
    }

    /// Waits until exactly `tokens` tokens are generated and not yet written.
    pub async fn wait_for_deposit(&self, tokens: u64) {
        let until = Instant::now() + TIMEOUT;
        while self.metrics.streams().deposit_tokens != tokens {
            assert!(Instant::now() < until, "{:?}, not {tokens}", self.metrics.streams());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Answers every request at once with `text`, on a thread that ends with the gateway.
    pub fn answer_all(&mut self, text: &'static str) {
        let (_, nothing) = std::sync::mpsc::channel();
        let FakeScheduler(messages) = std::mem::replace(&mut self.scheduler, FakeScheduler(nothing));
        std::thread::spawn(move || {
            for message in messages {
                match message {
                    SchedulerMessage::Submit(request, updates) => {
                        let taken = ReceivedRequest { request, updates };
                        taken.send_text(text);
                        taken.finish(Finish::Length);
                    }
                    SchedulerMessage::State(answer) => drop(answer.send(Box::default())),
                    _ => {}
                }
            }
        });
    }
}

impl FakeScheduler {
    /// Returns the next message, if one arrives in time.
    pub async fn next(&self, patience: Duration) -> Option<SchedulerMessage> {
        let until = Instant::now() + patience;
        loop {
            match self.0.try_recv() {
                Ok(message) => return Some(message),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) if Instant::now() > until => return None,
                Err(TryRecvError::Empty) => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    }

    /// Returns the next request. Skips cancellations of finished requests.
    pub async fn recv_request(&self) -> ReceivedRequest {
        loop {
            match self.next(TIMEOUT).await.expect("a request") {
                SchedulerMessage::Submit(request, updates) => return ReceivedRequest { request, updates },
                SchedulerMessage::Cancel(_) => {}
                other => panic!("expected a request, not {other:?}"),
            }
        }
    }

    /// Returns the next cancellation.
    pub async fn cancelled(&self, patience: Duration) -> Option<RequestId> {
        match self.next(patience).await {
            Some(SchedulerMessage::Cancel(id)) => Some(id),
            None => None,
            other => panic!("expected a cancellation, not {other:?}"),
        }
    }
}

impl ReceivedRequest {
    pub fn update(&self, update: RequestUpdate) {
        // A disconnected client is not an error here.
        let _ = self.updates.send(update);
    }

    pub fn token(&self, token: u32) {
        self.update(RequestUpdate::Token { token, logprobs: None, at: Instant::now() });
    }

    /// Sends one token per byte.
    pub fn send_text(&self, text: &str) {
        text.bytes().for_each(|byte| self.token(u32::from(byte)));
    }

    pub fn finish(&self, finish: Finish) {
        self.update(RequestUpdate::Finished(finish));
    }

    pub fn prompt(&self) -> String {
        String::from_utf8(self.request.prompt.iter().map(|id| *id as u8).collect()).expect("text")
    }
}
