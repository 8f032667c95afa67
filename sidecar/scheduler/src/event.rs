//! Defines the scheduler's inputs, commands and outputs. Every input that can change a decision is an [`Event`].

use sluice_policy::action::Action;
use sluice_policy::config_error::ConfigError;
use sluice_policy::event::Completion;
use sluice_policy::ids::RequestId;
use sluice_policy::loan_negotiator::PeerCommand;
use sluice_policy::params::Bounds;
use sluice_policy::peers::wait_time::WaitSpan;
use sluice_policy::placement_planner::request::{PlanAnswer, PlanRequest};
use sluice_policy::reclaim::PolicyName;
use sluice_ports::compute::{ComputeEvent, Step};
use sluice_ports::peers::{PeerPortEvent, SliceCommand};
use sluice_ports::sampling::{SharedSampling, TokenLogprobs};

/// A generation request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Unique, in order of arrival.
    pub id: RequestId,
    /// Token ids of the prompt, at least one.
    pub prompt: Vec<u32>,
    /// Maximum number of tokens to generate, at least one.
    pub max_tokens: u32,
    /// Sampling parameters.
    pub sampling: SharedSampling,
    /// Priority; higher values run first.
    pub priority: i32,
    /// Prefix cache scope: only requests with equal salts share KV blocks.
    pub salt: u64,
    /// Whether its client receives at most one token per `tbt_ns`; earlier tokens are buffered.
    pub paced: bool,
}

#[cfg(test)]
impl Request {
    /// A request of a unit test, with a prompt of `tokens` tokens.
    pub(crate) fn of_test(id: u64, tokens: usize) -> Request {
        Request {
            id: RequestId(id),
            prompt: vec![1; tokens],
            max_tokens: 5,
            sampling: std::sync::Arc::default(),
            priority: 0,
            salt: 0,
            paced: true,
        }
    }
}

/// An input of the scheduler.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A request arrives.
    Submit(Request),
    /// The request's client disconnected, or its text matched a stop string.
    Cancel(RequestId),
    /// A memory action completed or failed.
    Memory(Completion),
    /// The engine reports a step, its attachment or its loss.
    Compute(ComputeEvent),
    /// A message from a peer, or a change of the time slice.
    Peer(PeerPortEvent),
    /// The tenant releases its memory or restores it.
    Sleep(Sleep),
    /// Switches to another named policy.
    Policy(PolicyName),
    /// Changes the memory share and the cap on remapped memory.
    Bounds(Bounds),
    /// The planner's answer.
    Plan(PlanAnswer),
    /// Time passed with nothing else to report.
    Tick,
}

/// When a tenant releases its memory, and when it restores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// Sleep after idleness, until the next request. Ignored while there is work.
    Idle,
    /// Sleep by order, until an explicit wake-up. Requests wait and keep their KV.
    Ordered,
    /// Sleep by order and discard all KV.
    Discard,
    /// Explicit wake-up.
    WakeUp,
}

/// A command to a port.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum Command {
    /// To the memory backend.
    Memory(Action),
    /// To the engine.
    Compute(Step),
    /// To a peer.
    Peer(PeerCommand),
    /// Requests or releases the time slice.
    Slice(SliceCommand),
    /// To the placement planner.
    Plan(PlanRequest),
}

/// Why a request was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Hash)]
pub enum RejectReason {
    /// Prompt and output exceed the model's context.
    #[error(
        "the prompt has {prompt_tokens} tokens and the request asks for {max_tokens} more; the context \
         holds {limit_tokens}"
    )]
    ContextLengthExceeded {
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// Requested output tokens.
        max_tokens: u32,
        /// Maximum tokens of the context.
        limit_tokens: u32,
    },
    /// The queue is full.
    #[error("{queued} requests wait, which is the limit")]
    QueueFull {
        /// Waiting requests.
        queued: u32,
    },
    /// The prompt is empty, or no output token was requested.
    #[error("a request needs at least one prompt token and at least one token to generate")]
    Empty,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Finish {
    /// A stop token; it is the last token reported.
    Stop,
    /// `max_tokens` were generated.
    Length,
    /// Cancelled.
    Cancelled,
    /// The engine or memory refused it. The text is returned to the client.
    Failed(String),
    /// No engine can run the request now; a later retry can succeed. Only the scheduler's caller can decide this: the
    /// scheduler itself never returns it.
    Unavailable(UnavailableReason),
}

/// Why a request cannot run now. The text is returned to the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Hash)]
pub enum UnavailableReason {
    /// The server is shutting down.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The engine was lost and did not reattach in time.
    #[error("no engine attached within {held_seconds} s")]
    NoEngine {
        /// Time that the request waited for an engine, seconds.
        held_seconds: u64,
    },
    /// The tenant sleeps and did not wake in time.
    #[error("{} within {held_seconds} s", wake_hint(.by_hand))]
    Asleep {
        /// Time that the request waited for the wake-up, seconds.
        held_seconds: u64,
        /// Whether an order put it to sleep, so that requests do not wake it.
        by_hand: bool,
    },
    /// The device does not provide the memory that the tenant needs.
    #[error("{0}")]
    Device(String),
}

const fn wake_hint(by_hand: &bool) -> &'static str {
    if *by_hand {
        "the tenant was put to sleep by hand and was not woken"
    } else {
        "the tenant sleeps and did not wake"
    }
}

/// An output of the scheduler.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum SchedulerOutput {
    /// A request was rejected.
    Refused {
        /// The request.
        request: RequestId,
        /// The reason.
        refusal: RejectReason,
    },
    /// A request started to run, for the first time or again.
    Admitted {
        /// The request.
        request: RequestId,
        /// Tokens found in the prefix cache.
        cached_tokens: u32,
        /// Time from arrival to the first admission, nanoseconds; `None` for a later admission.
        queued_ns: Option<u64>,
    },
    /// A generated token.
    Token {
        /// The request.
        request: RequestId,
        /// Token id.
        token: u32,
        /// Log probabilities, if requested.
        logprobs: Option<TokenLogprobs>,
    },
    /// A new policy does not fit the tenant; the previous one stays in force.
    PolicyRefused {
        /// The requested policy.
        policy: PolicyName,
        /// The reason.
        refused: ConfigError,
    },
    /// A new share or cap does not fit the tenant; the previous bounds stay in force.
    BoundsRefused {
        /// The requested bounds.
        bounds: Bounds,
        /// The reason.
        refused: ConfigError,
    },
    /// A request lost its memory and will be recomputed; its stream continues.
    Preempted {
        /// The request.
        request: RequestId,
        /// Tokens whose KV was dropped.
        dropped_tokens: u32,
    },
    /// A request ended. No further output follows for it.
    Finished {
        /// The request.
        request: RequestId,
        /// How it ended.
        finish: Finish,
    },
    /// A wait for peers ended.
    Waited(WaitSpan),
    /// A plan arrived, with its proven gap: the bound on how much faster a step could be, permille of its time.
    Planned {
        /// The gap, rounded up.
        gap_permille: u32,
    },
    /// A step ended: time between tokens of the engine, and its parts.
    Step(StepOutput),
}

/// Measurements of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StepOutput {
    /// Time from submission to the answer, nanoseconds.
    pub elapsed_ns: u64,
    /// The engine's own time, nanoseconds.
    pub engine_ns: u64,
    /// Wait for remapped layers, nanoseconds: the cost of remapping.
    pub stall_ns: u64,
    /// Wait for weights that were loading when the step began, nanoseconds: the cost of loading or waking.
    pub arrival_ns: u64,
    /// Wait for KV loaded from the host tier for this step, nanoseconds.
    pub kv_stall_ns: u64,
    /// Sequences that decoded one token.
    pub decodes: u32,
    /// Prompt tokens computed.
    pub prefill_tokens: u32,
    /// Those of `prefill_tokens` that were computed before a preemption.
    pub recomputed_tokens: u32,
}
