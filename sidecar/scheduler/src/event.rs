//! What goes into the scheduler and what comes out. Everything that can change a decision is one of these events.

use sluice_policy::action::Action;
use sluice_policy::config_error::ConfigError;
use sluice_policy::event::Completion;
use sluice_policy::ids::RequestId;
use sluice_policy::loan_negotiator::PeerCommand;
use sluice_policy::params::{Bounds, PolicyName};
use sluice_policy::peers::wait_time::WaitSpan;
use sluice_policy::planner::request::{PlanAnswer, PlanRequest};
use sluice_ports::compute::{ComputeEvent, Step};
use sluice_ports::peers::{PeerPortEvent, SliceCommand};
use sluice_ports::sampling::{SharedSampling, TokenLogprobs};

/// A request for tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Unique, in order of arrival.
    pub id: RequestId,
    /// Token ids of the prompt, at least one.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most, at least one.
    pub max_tokens: u32,
    /// How to choose them.
    pub sampling: SharedSampling,
    /// Higher runs first.
    pub priority: i32,
    /// Prefix cache scope: columns are shared only under equal salts.
    pub salt: u64,
    /// Its client is given a token each `tbt_ns` at most: what was made before is in store for it.
    pub paced: bool,
}

/// An input.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A request arrives.
    Submit(Request),
    /// Its client has gone, or its text met a stop string.
    Cancel(RequestId),
    /// A memory action has ended.
    Memory(Completion),
    /// The engine reports.
    Compute(ComputeEvent),
    /// A neighbour, or the turn.
    Peer(PeerPortEvent),
    /// The tenant is to give up its memory, or to take it back.
    Sleep(Sleep),
    /// Another named policy is in force from now on.
    Policy(PolicyName),
    /// Another share, and another cap on what may be remapped, are in force from now on.
    Bounds(Bounds),
    /// A plan is made.
    Plan(PlanAnswer),
    /// Time passed with nothing else to report.
    Tick,
}

/// When a tenant gives up its memory, and when it takes it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// It was idle for long enough: it sleeps until the next request. Without effect while there is work.
    Idle,
    /// It was told to: it sleeps until it is woken, and requests wait with the KV that they have.
    Ordered,
    /// The same, and no KV is kept.
    Discard,
    /// It is woken.
    WakeUp,
}

/// An order to a port.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum Command {
    /// To memory.
    Memory(Action),
    /// To compute.
    Compute(Step),
    /// To a neighbour.
    Peer(PeerCommand),
    /// About the turn.
    Turn(SliceCommand),
    /// To the planner.
    Plan(PlanRequest),
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Hash)]
pub enum RejectReason {
    /// Longer than the model's context.
    #[error(
        "the prompt has {prompt_tokens} tokens and {max_tokens} more were asked for; the context holds {limit_tokens}"
    )]
    ContextLengthExceeded {
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// Tokens asked for.
        max_tokens: u32,
        /// Tokens that the context holds.
        limit_tokens: u32,
    },
    /// The queue is full.
    #[error("{queued} requests are waiting, which is the limit")]
    QueueFull {
        /// Requests waiting.
        queued: u32,
    },
    /// No prompt token, or no token asked for.
    #[error("a request needs at least one prompt token and at least one token to generate")]
    Empty,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Finish {
    /// A stop token, which is the last token reported.
    Stop,
    /// `max_tokens` were generated.
    Length,
    /// Cancelled.
    Cancelled,
    /// The engine or the memory refused it. The text is for the client.
    Failed(String),
    /// Nobody can run it here now, and a later try may go well. Only whoever drives the scheduler knows that; the scheduler
    /// itself never ends a request so.
    Unavailable(UnavailableReason),
}

/// Why nobody can run a request. The text is for the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Hash)]
pub enum UnavailableReason {
    /// The server ends.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The engine was lost and no other has come.
    #[error("no engine came back within {held_seconds} s")]
    NoEngine {
        /// How long the request was held for it, seconds.
        held_seconds: u64,
    },
    /// The tenant sleeps, and has not woken.
    #[error("{} within {held_seconds} s", not_woken(.by_hand))]
    Asleep {
        /// How long the request was held for it, seconds.
        held_seconds: u64,
        /// An order put it to sleep: no request wakes it.
        by_hand: bool,
    },
    /// The device does not give what the tenant needs.
    #[error("{0}")]
    Device(String),
}

const fn not_woken(by_hand: &bool) -> &'static str {
    if *by_hand {
        "the tenant was put to sleep by hand and was not woken"
    } else {
        "the tenant sleeps and did not wake"
    }
}

/// What the outside learns.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum SchedulerOutput {
    /// Not taken.
    Refused {
        /// Which.
        request: RequestId,
        /// Why.
        refusal: RejectReason,
    },
    /// It runs, for the first time or again.
    Admitted {
        /// Which.
        request: RequestId,
        /// Tokens found in the prefix cache.
        cached_tokens: u32,
        /// Nanoseconds it waited since it arrived; `None` when it ran before.
        queued_ns: Option<u64>,
    },
    /// A token.
    Token {
        /// Of which request.
        request: RequestId,
        /// Token id.
        token: u32,
        /// When asked for.
        logprobs: Option<TokenLogprobs>,
    },
    /// Another policy does not fit the tenant: the one before stays in force.
    PolicyRefused {
        /// The one that was asked for.
        policy: PolicyName,
        /// What does not fit.
        refused: ConfigError,
    },
    /// Another share or cap does not fit the tenant: those before stay in force.
    BoundsRefused {
        /// Those that were asked for.
        bounds: Bounds,
        /// What does not fit.
        refused: ConfigError,
    },
    /// It lost its memory and will be recomputed; its stream goes on.
    Preempted {
        /// Which.
        request: RequestId,
        /// Tokens whose KV was dropped.
        dropped_tokens: u32,
    },
    /// It has ended. Nothing more follows.
    Finished {
        /// Which.
        request: RequestId,
        /// How.
        finish: Finish,
    },
    /// Something that neighbours have or had is here.
    Waited(WaitSpan),
    /// A plan has come, and how much faster than it a step might be, permille of its time: the proven gap.
    Planned {
        /// Rounded up.
        gap_permille: u32,
    },
    /// A step has ended: engine TBT and its parts.
    Step(StepOutput),
}

/// Figures of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StepOutput {
    /// From submission to the answer.
    pub elapsed_ns: u64,
    /// The engine's own time.
    pub engine_ns: u64,
    /// Waiting for moving layers: what remapping costs.
    pub stall_ns: u64,
    /// Waiting for weights that were on their way when the step began: what loading or waking costs.
    pub arrival_ns: u64,
    /// Waiting for KV that came from the host tier for this step.
    pub kv_stall_ns: u64,
    /// Sequences that decoded one token.
    pub decodes: u32,
    /// Tokens of prompts computed.
    pub prefill_tokens: u32,
    /// Of those, tokens that had been computed before a preemption.
    pub recomputed_tokens: u32,
}
