//! The door between the async world and the scheduler's thread: requests in, tokens out.
//!
//! One thread owns the scheduler and its body; everything else holds a [`Service`]. What the gateway knows of a
//! request is its [`Ticket`]; dropping it cancels the request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use sluice_policy::ids::RequestId;
use sluice_ports::sampling::{Sampling, TokenLogprobs};
use sluice_scheduler::{Finish, RejectReason, Request};
use tokio::sync::{mpsc, oneshot, watch};

/// What a client asks for, in token ids.
#[derive(Clone, Debug)]
pub struct Submission {
    /// Prompt, at least one token.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most.
    pub max_tokens: u32,
    /// How to choose them.
    pub sampling: Sampling,
    /// Higher runs first.
    pub priority: i32,
    /// Prefix cache scope.
    pub salt: u64,
    /// Tokens that are made early wait until they are due.
    pub paced: bool,
}

/// What happens to a request.
#[derive(Clone, Debug)]
pub enum RequestUpdate {
    /// A token was generated.
    Token {
        /// Token id.
        token: u32,
        /// When asked for.
        logprobs: Option<TokenLogprobs>,
        /// When the engine's answer was read.
        at: Instant,
    },
    /// It was not taken. Nothing follows.
    Refused(RejectReason),
    /// It has ended. Nothing follows.
    Finished(Finish),
}

/// A request under way. Dropping it cancels the request and frees its memory within one step.
#[derive(Debug)]
pub struct RequestHandle {
    id: RequestId,
    updates: mpsc::UnboundedReceiver<RequestUpdate>,
    inbox: MessageSender,
}

impl RequestHandle {
    /// Its name.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// The next update. `None` = the scheduler has gone.
    pub async fn next(&mut self) -> Option<RequestUpdate> {
        self.updates.recv().await
    }

    /// The next update, or word to `cx` when it comes. `None` = the scheduler has gone.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<RequestUpdate>> {
        self.updates.poll_recv(cx)
    }

    /// The next update if it is there already.
    pub fn try_next(&mut self) -> Option<RequestUpdate> {
        self.updates.try_recv().ok()
    }
}

impl Drop for RequestHandle {
    fn drop(&mut self) {
        self.inbox.send(Message::Cancel(self.id));
    }
}

/// What the scheduler's thread is told.
#[derive(Debug)]
pub enum Message {
    /// A request and where its updates go.
    Submit(Request, mpsc::UnboundedSender<RequestUpdate>),
    /// Its client has gone.
    Cancel(RequestId),
    /// A port has something to say: poll it.
    Wake,
    /// Something about the engine.
    Engine(Box<crate::engine_loop::engine_acceptor::EngineConnEvent>),
    /// A neighbour, or whoever places tenants, wants something.
    Admin(crate::peers::admin_call::AdminCall),
    /// A neighbour has something to say, or the turn has come.
    Peer(Box<sluice_ports::peers::PeerPortEvent>),
    /// The state, please.
    State(oneshot::Sender<Box<sluice_wire::State>>),
    /// End: running requests are cut.
    Stop,
}

/// The sending end. Unbounded: its length is bounded by the limits on open requests, checked before anything is sent.
#[derive(Clone, Debug)]
pub struct MessageSender(std::sync::mpsc::Sender<Message>);

impl MessageSender {
    /// A new inbox and its reading end.
    pub fn new() -> (MessageSender, std::sync::mpsc::Receiver<Message>) {
        let (sender, receiver) = std::sync::mpsc::channel();
        (MessageSender(sender), receiver)
    }

    /// Sends. A scheduler that has gone hears nothing, and whoever waits for its answer sees the channel close.
    pub fn send(&self, message: Message) {
        let _ = self.0.send(message);
    }
}

/// Whether requests can be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// Weights are being loaded, or the first engine has not come yet.
    Loading,
    /// Requests run.
    Serving,
    /// The engine died and its successor has not attached yet; requests are held.
    EngineLost,
    /// Cannot serve, and why.
    Failed(String),
}

/// How long a question about the state waits for the scheduler.
const STATE_TIMEOUT: Duration = Duration::from_secs(2);

/// A handle to the scheduler. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SchedulerHandle {
    inbox: MessageSender,
    next_id: Arc<AtomicU64>,
    status: watch::Receiver<Status>,
}

impl SchedulerHandle {
    /// A service whose requests go to `inbox`.
    pub fn new(inbox: MessageSender, status: watch::Receiver<Status>) -> Self {
        SchedulerHandle { inbox, next_id: Arc::new(AtomicU64::new(1)), status }
    }

    /// Hands a request to the scheduler.
    pub fn submit(&self, submission: Submission) -> RequestHandle {
        let Submission { prompt, max_tokens, sampling, priority, salt, paced } = submission;
        let id = RequestId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let (sender, updates) = mpsc::unbounded_channel();
        let sampling = Arc::new(sampling);
        let request = Request { id, prompt, max_tokens, sampling, priority, salt, paced };
        self.inbox.send(Message::Submit(request, sender));
        RequestHandle { id, updates, inbox: self.inbox.clone() }
    }

    /// The state. `None` = the scheduler has gone, or is busy loading weights.
    pub async fn state(&self) -> Option<sluice_wire::State> {
        self.query(STATE_TIMEOUT, Message::State).await.map(|state| *state)
    }

    /// Sends a question and waits for its answer so long. `None` = the scheduler has gone, or did not answer in time;
    /// then it sees that nobody waits any more.
    pub async fn query<T>(
        &self,
        patience: Duration,
        question: impl FnOnce(oneshot::Sender<T>) -> Message,
    ) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        self.inbox.send(question(sender));
        tokio::time::timeout(patience, receiver).await.ok()?.ok()
    }

    /// Lets the scheduler look at what it watches.
    pub fn wake(&self) {
        self.inbox.send(Message::Wake);
    }

    /// Whether requests can be served, now and when it changes.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }
}
