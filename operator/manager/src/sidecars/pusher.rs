//! A directive on its way to one sidecar.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{HeaderMap, Method, StatusCode, header};
use sluice_wire::directive::{CurrentFence, Directive, Fence};

use super::http_client::{SidecarAddress, Transport};

/// First wait after a failure; doubled up to [`MAX_BACKOFF`].
const BASE_BACKOFF: Duration = Duration::from_millis(500);
/// No leader can have a higher epoch: a Lease counts no further. A sidecar that tells of one is not believed.
pub const MAX_EPOCH: u64 = i32::MAX as u64;
/// Nor has one ever sent so many directives.
const MAX_SEQUENCE: u64 = 1 << 62;
/// Longest wait between two tries.
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// What one leader's directives are sent with.
#[derive(Debug)]
pub struct FenceCounter(Mutex<Fence>);

impl FenceCounter {
    /// Those of the leader of `epoch`.
    pub fn new(epoch: u64) -> Arc<FenceCounter> {
        Arc::new(FenceCounter(Mutex::new(Fence { epoch, sequence: 0 })))
    }

    /// One higher than any before.
    pub fn next(&self) -> Fence {
        let mut last = self.last();
        last.sequence += 1;
        *last
    }

    /// The leader's epoch.
    pub fn epoch(&self) -> u64 {
        self.last().epoch
    }

    /// The leader has at least this epoch from now on.
    pub fn raise(&self, epoch: u64) {
        let mut last = self.last();
        last.epoch = last.epoch.max(epoch);
    }

    /// Sequences from now on are beyond this one.
    fn skip_to(&self, sequence: u64) {
        let mut last = self.last();
        last.sequence = last.sequence.max(sequence);
    }

    fn last(&self) -> MutexGuard<'_, Fence> {
        // Whoever panicked has left a whole pair.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a directive fared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PushResult {
    /// It is in force.
    Accepted(Fence),
    /// A newer leader has told the sidecar already, as it says.
    Deposed(Fence),
}

/// What one try came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PushAttempt {
    /// It is over.
    Done(PushResult),
    /// A directive of this epoch that is newer is in force, put by hand: the next one goes past it.
    Behind(Fence),
    /// It failed, and is tried again: the sidecar is not there yet, or cannot follow before its pod is replaced.
    Retry(String),
}

/// Tries until the sidecar has the directive. `deposed` hears of a newer leader that it follows: whoever sees to it that this
/// one is beyond that raises `fences`, and with that it is tried again, as after every failure. `trouble` hears of all
/// failures, and of the end of them.
pub async fn push_until_accepted(
    way: &Transport,
    address: &SidecarAddress,
    directive: &Directive,
    fences: &FenceCounter,
    mut deposed: impl FnMut(Fence),
    mut trouble: impl FnMut(Option<&str>),
) {
    let mut wait = BASE_BACKOFF;
    while let PushResult::Deposed(current) =
        push_until_done(way, address, directive, fences, &mut trouble).await
    {
        // Another sidecar's word came first.
        if fences.epoch() > current.epoch {
            continue;
        }
        deposed(current);
        trouble(Some(&format!("409: it follows a newer leader, of epoch {}", current.epoch)));
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(MAX_BACKOFF);
    }
}

/// Tries until the sidecar has the directive or another leader. `trouble` hears of every failure, and of the end of them.
pub async fn push_until_done(
    way: &Transport,
    address: &SidecarAddress,
    directive: &Directive,
    fences: &FenceCounter,
    mut trouble: impl FnMut(Option<&str>),
) -> PushResult {
    let (mut wait, mut fence, mut past) = (BASE_BACKOFF, fences.next(), false);
    loop {
        let fenced = Directive { epoch: fence.epoch, sequence: fence.sequence, ..directive.clone() };
        let problem = match push_once(way, address, &fenced).await {
            PushAttempt::Done(fared) => {
                if let PushResult::Accepted(_) = fared {
                    trouble(None);
                }
                return fared;
            }
            PushAttempt::Behind(current) => {
                fences.skip_to(current.sequence);
                fence = fences.next();
                // Whoever is always ahead is asked no more often than who always fails.
                if !std::mem::replace(&mut past, true) {
                    continue;
                }
                format!("409: it has a directive of sequence {} in store", current.sequence)
            }
            PushAttempt::Retry(problem) => problem,
        };
        trouble(Some(&problem));
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(MAX_BACKOFF);
    }
}

async fn push_once(way: &Transport, address: &SidecarAddress, directive: &Directive) -> PushAttempt {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    let body = serde_json::to_vec(directive).expect("a directive serialises");
    match way.call(address, Method::PUT, "/v1/directive", headers, body).await {
        Err(error) => PushAttempt::Retry(error.to_string()),
        Ok(answer) => classify_response(answer.status, &answer.body, directive.fence(), || answer.summary()),
    }
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
            PushAttempt::Retry(format!("it tells of a leader of epoch {}, which cannot be", current.epoch))
        }
        (StatusCode::CONFLICT, Ok(CurrentFence { current })) if current.epoch > fence.epoch => {
            PushAttempt::Done(PushResult::Deposed(current))
        }
        (StatusCode::CONFLICT, Ok(CurrentFence { current }))
            if current.sequence > MAX_SEQUENCE.max(fence.sequence) =>
        {
            PushAttempt::Retry(format!("it tells of {} directives, which cannot be", current.sequence))
        }
        (StatusCode::CONFLICT, Ok(CurrentFence { current })) => PushAttempt::Behind(current),
        (status, _) => PushAttempt::Retry(format!("{status}: {}", words())),
    }
}
