//! A directive on its way to one sidecar.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{HeaderMap, Method, StatusCode, header};
use sluice_wire::directive::{Current, Directive, Fence};

use super::call::{Address, Way};

/// First wait after a failure; doubled up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// No leader has ever had a higher epoch, which is a number of leaders: a sidecar that tells of one is not believed.
const MOST_EPOCH: u64 = 1 << 30;
/// Longest wait between two tries.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Sequences of one leader.
#[derive(Debug)]
pub struct Fences {
    epoch: u64,
    last: AtomicU64,
}

impl Fences {
    /// Those of the leader of `epoch`.
    pub fn new(epoch: u64) -> Arc<Fences> {
        Arc::new(Fences { epoch, last: AtomicU64::new(0) })
    }

    /// One higher than any before.
    pub fn next(&self) -> Fence {
        Fence { epoch: self.epoch, sequence: self.last.fetch_add(1, Ordering::Relaxed) + 1 }
    }

    /// Sequences from now on are beyond this one.
    fn beyond(&self, sequence: u64) {
        self.last.fetch_max(sequence, Ordering::Relaxed);
    }
}

/// How a directive fared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fared {
    /// It is in force.
    Taken(Fence),
    /// A newer leader has told the sidecar already: this one is none any more.
    Deposed(Fence),
}

/// What one try came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tried {
    /// It is over.
    Over(Fared),
    /// A directive of this epoch that is newer is in force, put by hand: the next one goes past it.
    Past(Fence),
    /// It failed, and is tried again: the sidecar is not there yet, or cannot follow before its pod is replaced.
    Again(String),
}

/// Tries until the sidecar has the directive or another leader. `trouble` hears of every failure, and of the end of them.
pub async fn deliver(
    way: &Way,
    address: &Address,
    directive: &Directive,
    fences: &Fences,
    mut trouble: impl FnMut(Option<&str>),
) -> Fared {
    let (mut wait, mut fence) = (FIRST_WAIT, fences.next());
    loop {
        let fenced = Directive { epoch: fence.epoch, sequence: fence.sequence, ..directive.clone() };
        match attempt(way, address, &fenced).await {
            Tried::Over(fared) => {
                trouble(None);
                return fared;
            }
            Tried::Past(current) => {
                fences.beyond(current.sequence);
                fence = fences.next();
            }
            Tried::Again(problem) => {
                trouble(Some(&problem));
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(LONGEST_WAIT);
            }
        }
    }
}

async fn attempt(way: &Way, address: &Address, directive: &Directive) -> Tried {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    let body = serde_json::to_vec(directive).expect("a directive serialises");
    match way.call(address, Method::PUT, "/v1/directive", headers, body).await {
        Err(error) => Tried::Again(error.to_string()),
        Ok(answer) => judged(answer.status, &answer.body, directive.fence(), || answer.words()),
    }
}

fn judged(status: StatusCode, body: &[u8], fence: Fence, words: impl Fn() -> String) -> Tried {
    match (status, serde_json::from_slice::<Current>(body)) {
        (StatusCode::OK, _) => Tried::Over(Fared::Taken(fence)),
        (StatusCode::CONFLICT, Ok(Current { current })) if current.epoch > MOST_EPOCH.max(fence.epoch) => {
            Tried::Again(format!("it tells of a leader of epoch {}, which cannot be", current.epoch))
        }
        (StatusCode::CONFLICT, Ok(Current { current })) if current.epoch > fence.epoch => {
            Tried::Over(Fared::Deposed(current))
        }
        (StatusCode::CONFLICT, Ok(Current { current })) => Tried::Past(current),
        (status, _) => Tried::Again(format!("{status}: {}", words())),
    }
}
