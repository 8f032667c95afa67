//! What comes in by the admin port for the scheduler's thread to decide.

use sluice_wire::grants::{GrantAnswer, GrantRequest, RefusalReason};
use tokio::sync::oneshot;

/// Something to decide, and where the answer goes. An answer that nobody takes any more (the sender's `send` gives it
/// back) was not heard: what it promised must be undone.
#[derive(Debug)]
pub enum AdminCall {
    /// A neighbour's request about memory.
    Grant(GrantRequest, oneshot::Sender<GrantAnswer>),
    /// Give up all device memory (`POST /sleep`).
    Sleep(SleepLevel, oneshot::Sender<Result<(), CallRejected>>),
    /// Take it back (`POST /wake_up`).
    WakeUp(oneshot::Sender<Result<(), CallRejected>>),
    /// Whether it is given up (`GET /is_sleeping`).
    IsSleeping(oneshot::Sender<Result<bool, CallRejected>>),
}

/// How deep a tenant sleeps, in vLLM's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepLevel {
    /// Weights stay in host memory.
    One,
    /// Nothing stays but the host's master copy of the weights.
    Two,
}

/// Why an order was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CallRejected(pub String);

/// The answer of a sidecar that trades nothing.
pub fn reject_grant(answer: oneshot::Sender<GrantAnswer>) {
    // Whoever asked may have gone.
    let _ = answer.send(GrantAnswer::refused(RefusalReason::NotTraded));
}
