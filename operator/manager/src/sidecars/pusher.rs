//! Sends a directive to one sidecar.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{HeaderMap, Method, StatusCode, header};
use sluice_common::back_off::BackOff;
use sluice_wire::directive::{CurrentFence, Directive, Fence};

use super::http_client::{SidecarAddress, Transport};

/// First delay after a failure; doubled up to [`MAX_BACKOFF`].
const BASE_BACKOFF: Duration = Duration::from_millis(500);
/// Maximum epoch of a leader, which is the limit of the Lease's counter. A report of a higher one is ignored.
pub const MAX_EPOCH: u64 = i32::MAX as u64;
/// Maximum sequence of a leader.
const MAX_SEQUENCE: u64 = 1 << 62;
/// Maximum delay between two attempts.
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// Epoch and last sequence of one leader's directives.
#[derive(Debug)]
pub struct FenceCounter(Mutex<Fence>);

impl FenceCounter {
    /// Creates the counter of the leader of `epoch`.
    pub fn new(epoch: u64) -> Arc<FenceCounter> {
        Arc::new(FenceCounter(Mutex::new(Fence { epoch, sequence: 0 })))
    }

    /// Returns a fence higher than all before.
    pub fn next(&self) -> Fence {
        let mut last = self.last();
        last.sequence += 1;
        *last
    }

    /// The leader's epoch.
    pub fn epoch(&self) -> u64 {
        self.last().epoch
    }

    /// Raises the leader's epoch to at least `epoch`.
    pub fn raise(&self, epoch: u64) {
        let mut last = self.last();
        last.epoch = last.epoch.max(epoch);
    }

    /// Makes the next sequences higher than `sequence`.
    fn skip_to(&self, sequence: u64) {
        let mut last = self.last();
        last.sequence = last.sequence.max(sequence);
    }

    fn last(&self) -> MutexGuard<'_, Fence> {
        // A panic leaves the pair complete.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Result of a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PushResult {
    /// It is in force.
    Accepted(Fence),
    /// The sidecar reports that it follows a newer leader.
    Deposed(Fence),
}

/// Result of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PushAttempt {
    /// The push is complete.
    Done(PushResult),
    /// A newer directive of this epoch is in force, applied manually: the next sequence is higher.
    Behind(Fence),
    /// The attempt failed and is repeated: the sidecar is not reachable yet, or cannot follow before its pod is
    /// replaced.
    Retry(String),
}

/// Repeats the push until the sidecar has the directive. `deposed` receives a newer leader that it follows; once
/// `fences` is raised above that, the push is repeated, as after every failure. `report_error` receives all failures,
/// and their end.
pub async fn push_until_accepted(
    way: &Transport,
    address: &SidecarAddress,
    directive: &Directive,
    fences: &FenceCounter,
    mut deposed: impl FnMut(Fence),
    mut report_error: impl FnMut(Option<&str>),
) {
    let mut back_off = BackOff::new(BASE_BACKOFF, MAX_BACKOFF);
    while let PushResult::Deposed(current) =
        push_until_done(way, address, directive, fences, &mut report_error).await
    {
        // The report of another sidecar was handled first.
        if fences.epoch() > current.epoch {
            continue;
        }
        deposed(current);
        report_error(Some(&format!("409: the sidecar follows a newer leader, of epoch {}", current.epoch)));
        tokio::time::sleep(back_off.next_delay()).await;
    }
}

/// Repeats the push until the sidecar has the directive or another leader. `report_error` receives every failure, and
/// their end.
pub async fn push_until_done(
    way: &Transport,
    address: &SidecarAddress,
    directive: &Directive,
    fences: &FenceCounter,
    mut report_error: impl FnMut(Option<&str>),
) -> PushResult {
    let mut back_off = BackOff::new(BASE_BACKOFF, MAX_BACKOFF);
    let (mut fence, mut past) = (fences.next(), false);
    loop {
        let fenced = Directive { epoch: fence.epoch, sequence: fence.sequence, ..directive.clone() };
        let problem = match push_once(way, address, &fenced).await {
            PushAttempt::Done(fared) => {
                if let PushResult::Accepted(_) = fared {
                    report_error(None);
                }
                return fared;
            }
            PushAttempt::Behind(current) => {
                fences.skip_to(current.sequence);
                fence = fences.next();
                // A sidecar that is always ahead is called no more often than one that always fails.
                if !std::mem::replace(&mut past, true) {
                    continue;
                }
                format!("409: the sidecar already has a directive of sequence {}", current.sequence)
            }
            PushAttempt::Retry(problem) => problem,
        };
        report_error(Some(&problem));
        tokio::time::sleep(back_off.next_delay()).await;
    }
}

/// Sends the directive, and in the words of version 1 if the sidecar knows no later one: during an upgrade the pods of
/// the version before still run.
async fn push_once(way: &Transport, address: &SidecarAddress, directive: &Directive) -> PushAttempt {
    let put = async |body| {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        way.call(address, Method::PUT, "/v1/directive", headers, body).await
    };
    let mut answer = put(serde_json::to_vec(directive).expect("a directive serialises")).await;
    if answer.as_ref().is_ok_and(|answer| is_newer_version(answer.status, &answer.body)) {
        answer = put(directive.to_json_v1().expect("a directive serialises")).await;
    }
    match answer {
        Err(error) => PushAttempt::Retry(error.to_string()),
        Ok(answer) => classify_response(answer.status, &answer.body, directive.fence(), || answer.summary()),
    }
}

/// Whether the sidecar refused a message because its version is newer than those that the sidecar knows.
fn is_newer_version(status: StatusCode, body: &[u8]) -> bool {
    let code = || serde_json::from_slice::<serde_json::Value>(body).ok()?.pointer("/error/code").cloned();
    status == StatusCode::UNPROCESSABLE_ENTITY && code().is_some_and(|code| code == "newer_version")
}

fn classify_response(
    status: StatusCode,
    body: &[u8],
    fence: Fence,
    words: impl Fn() -> String,
) -> PushAttempt {
    match (status, serde_json::from_slice::<CurrentFence>(body)) {
        (StatusCode::OK, _) => PushAttempt::Done(PushResult::Accepted(fence)),
        (StatusCode::CONFLICT, Ok(CurrentFence { current })) if current.epoch >= MAX_EPOCH => {
            PushAttempt::Retry(format!(
                "409: the sidecar reports a leader of epoch {}, which is not a possible epoch",
                current.epoch
            ))
        }
        (StatusCode::CONFLICT, Ok(CurrentFence { current })) if current.epoch > fence.epoch => {
            PushAttempt::Done(PushResult::Deposed(current))
        }
        (StatusCode::CONFLICT, Ok(CurrentFence { current }))
            if current.sequence > MAX_SEQUENCE.max(fence.sequence) =>
        {
            PushAttempt::Retry(format!(
                "409: the sidecar reports a directive of sequence {}, which is not a possible sequence",
                current.sequence
            ))
        }
        (StatusCode::CONFLICT, Ok(CurrentFence { current })) => PushAttempt::Behind(current),
        (status, _) => PushAttempt::Retry(format!("{status}: {}", words())),
    }
}
