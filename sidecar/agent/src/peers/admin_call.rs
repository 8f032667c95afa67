//! Calls from the admin port that the scheduler's thread decides.

use sluice_wire::grants::{GrantAnswer, GrantRequest, RefusalReason};
use tokio::sync::oneshot;

/// A call and the sender of its reply. If the sender's `send` returns the reply, the caller did not receive it, and its
/// effects must be undone.
#[derive(Debug)]
pub enum AdminCall {
    /// Request of a peer about memory.
    Grant(GrantRequest, oneshot::Sender<GrantAnswer>),
    /// Release all device memory (`POST /sleep`).
    Sleep(SleepLevel, oneshot::Sender<Result<(), CallRejected>>),
    /// Take device memory again (`POST /wake_up`).
    WakeUp(oneshot::Sender<Result<(), CallRejected>>),
    /// Whether the tenant sleeps (`GET /is_sleeping`).
    IsSleeping(oneshot::Sender<Result<bool, CallRejected>>),
}

/// Sleep level, as in vLLM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepLevel {
    /// Weights and KV of requests stay in host memory.
    One,
    /// Only the host's master copy of the weights stays.
    Two,
}

/// Reason why a call was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CallRejected(pub String);

/// Rejects a grant request if the sidecar trades no memory.
pub fn reject_grant(answer: oneshot::Sender<GrantAnswer>) {
    // The receiver may be dropped.
    let _ = answer.send(GrantAnswer::refused(RefusalReason::NotTraded));
}
