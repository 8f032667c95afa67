//! Connects async code with the scheduler's thread: requests in one direction, tokens in the other.
//!
//! One thread owns the scheduler and its backend, and all other code holds a [`SchedulerHandle`]. The gateway holds a
//! [`RequestHandle`] per request. Dropping it cancels the request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use sluice_policy::ids::RequestId;
use sluice_ports::sampling::{Sampling, TokenLogprobs};
use sluice_scheduler::{Finish, RejectReason, Request};
use tokio::sync::{mpsc, oneshot, watch};

/// Request of a client, in token ids.
#[derive(Clone, Debug)]
pub struct Submission {
    /// Prompt, at least one token.
    pub prompt: Vec<u32>,
    /// Maximum number of tokens to generate.
    pub max_tokens: u32,
    /// Sampling parameters.
    pub sampling: Sampling,
    /// Priority. Higher runs first.
    pub priority: i32,
    /// Prefix cache scope.
    pub salt: u64,
    /// Whether tokens that are generated early wait until they are due.
    pub paced: bool,
}

/// Update of a request.
#[derive(Clone, Debug)]
pub enum RequestUpdate {
    /// A token was generated.
    Token {
        /// Token id.
        token: u32,
        /// Log probabilities, if requested.
        logprobs: Option<TokenLogprobs>,
        /// Time at which the engine's answer was read.
        at: Instant,
    },
    /// The request was refused. No update follows.
    Refused(RejectReason),
    /// The request has ended. No update follows.
    Finished(Finish),
}

/// A running request. Dropping it cancels the request and frees its memory within one step.
#[derive(Debug)]
pub struct RequestHandle {
    id: RequestId,
    updates: mpsc::UnboundedReceiver<RequestUpdate>,
    inbox: MessageSender,
}

impl RequestHandle {
    /// Returns the id of the request.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Returns the next update. `None` if the scheduler has ended.
    pub async fn next(&mut self) -> Option<RequestUpdate> {
        self.updates.recv().await
    }

    /// Polls for the next update. `None` if the scheduler has ended.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<RequestUpdate>> {
        self.updates.poll_recv(cx)
    }

    /// Returns the next update if it has already arrived.
    pub fn try_next(&mut self) -> Option<RequestUpdate> {
        self.updates.try_recv().ok()
    }
}

impl Drop for RequestHandle {
    fn drop(&mut self) {
        self.inbox.send(SchedulerMessage::Cancel(self.id));
    }
}

/// Message to the scheduler's thread.
#[derive(Debug)]
pub enum SchedulerMessage {
    /// A request, and the sender of its updates.
    Submit(Request, mpsc::UnboundedSender<RequestUpdate>),
    /// The client has disconnected.
    Cancel(RequestId),
    /// A port has events to poll.
    Wake,
    /// Event of the engine.
    Engine(Box<crate::engine_loop::engine_event::EngineConnEvent>),
    /// Call of a peer or the operator.
    Admin(crate::peers::admin_call::AdminCall),
    /// Event of a peer or of the time slice.
    Peer(Box<sluice_ports::peers::PeerPortEvent>),
    /// Query of the state.
    State(oneshot::Sender<Box<sluice_wire::State>>),
    /// Stop. Running requests are cut.
    Stop,
}

/// Sender of messages. It is unbounded, because the limits on open requests, checked before each send, bound its
/// length.
#[derive(Clone, Debug)]
pub struct MessageSender(std::sync::mpsc::Sender<SchedulerMessage>);

impl MessageSender {
    /// Creates an inbox and its receiver.
    pub fn new() -> (MessageSender, std::sync::mpsc::Receiver<SchedulerMessage>) {
        let (sender, receiver) = std::sync::mpsc::channel();
        (MessageSender(sender), receiver)
    }

    /// Sends a message. If the scheduler has ended, the message is dropped, and a caller that waits for its answer sees
    /// the channel close.
    pub fn send(&self, message: SchedulerMessage) {
        let _ = self.0.send(message);
    }
}

/// Whether requests can be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// Weights are being loaded, or no engine has attached yet.
    Loading,
    /// Requests run.
    Serving,
    /// The engine exited and its successor has not attached yet. Requests are held.
    EngineLost,
    /// The tenant cannot serve, for this reason.
    Failed(String),
}

/// Timeout of a state query.
const STATE_TIMEOUT: Duration = Duration::from_secs(2);

/// A handle to the scheduler. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SchedulerHandle {
    inbox: MessageSender,
    next_id: Arc<AtomicU64>,
    status: watch::Receiver<Status>,
}

impl SchedulerHandle {
    /// Creates a handle whose requests go to `inbox`.
    pub fn new(inbox: MessageSender, status: watch::Receiver<Status>) -> Self {
        SchedulerHandle { inbox, next_id: Arc::new(AtomicU64::new(1)), status }
    }

    /// Submits a request to the scheduler.
    pub fn submit(&self, submission: Submission) -> RequestHandle {
        let Submission { prompt, max_tokens, sampling, priority, salt, paced } = submission;
        let id = RequestId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let (sender, updates) = mpsc::unbounded_channel();
        let sampling = Arc::new(sampling);
        let request = Request { id, prompt, max_tokens, sampling, priority, salt, paced };
        self.inbox.send(SchedulerMessage::Submit(request, sender));
        RequestHandle { id, updates, inbox: self.inbox.clone() }
    }

    /// Returns the state. `None` if the scheduler has ended, or loads weights.
    pub async fn state(&self) -> Option<sluice_wire::State> {
        self.query(STATE_TIMEOUT, SchedulerMessage::State).await.map(|state| *state)
    }

    /// Sends a query and waits at most `patience` for its answer. `None` if the scheduler has ended or did not answer
    /// in time. Then its send fails.
    pub async fn query<T>(
        &self,
        patience: Duration,
        question: impl FnOnce(oneshot::Sender<T>) -> SchedulerMessage,
    ) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        self.inbox.send(question(sender));
        tokio::time::timeout(patience, receiver).await.ok()?.ok()
    }

    /// Makes the scheduler check everything that it watches.
    pub fn wake(&self) {
        self.inbox.send(SchedulerMessage::Wake);
    }

    /// Returns a watch on whether requests can be served.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }
}
