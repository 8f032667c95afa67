//! Reads the states of one GPU's tenants, from one sidecar for all.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use sluice_common::back_off::BackOff;
use sluice_wire::state::{GpuState, Phase, State, TenantReport};
use sluice_wire::time::unix_ms;
use tokio::sync::watch;

use super::gpu_reading::{GpuKey, PollResult, ReadingStore, SidecarKey};
use super::http_client::{SidecarAddress, Transport};
use super::sidecar_event::{EventSender, SidecarEvent};

/// Time between two readings of a GPU, before its jitter.
pub const POLL_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum jitter of a reading in either direction, permille of the interval.
const JITTER_PERMILLE: u64 = 100;
/// The first readings of all GPUs are spread over at most this time.
pub(super) const INITIAL_SPREAD_MAX: Duration = Duration::from_secs(10);
/// Spread per GPU: with few GPUs the leader reads all soon, because it sends no directives before it has.
const INITIAL_SPREAD_PER_GPU: Duration = Duration::from_millis(10);
/// Delay after a failure until another sidecar of the GPU is polled.
const RETRY_DELAY: Duration = Duration::from_secs(2);
/// Moves kept per state, because there are thousands of states.
const MAX_MOVES: usize = 8;

/// Reads the states of a GPU from one sidecar. `tag`: ETag of its last answer.
pub async fn poll_once(way: &Transport, address: &SidecarAddress, tag: Option<&HeaderValue>) -> PollResult {
    let tag = tag.map(|tag| (header::IF_NONE_MATCH, tag.clone()));
    let headers: HeaderMap = tag.into_iter().collect();
    let answer = match way.call(address, Method::GET, "/v1/state?scope=gpu", headers, Vec::new()).await {
        Ok(answer) => answer,
        Err(error) => return PollResult::Failed(error.to_string()),
    };
    match answer.status {
        StatusCode::NOT_MODIFIED => PollResult::NotModified,
        StatusCode::OK => match GpuState::from_json(&answer.body) {
            Ok(read) => PollResult::States(
                truncate_moves(read.tenants),
                answer.headers.get(header::ETAG).and_then(detached),
            ),
            Err(error) => PollResult::Failed(format!("{address}: {error}")),
        },
        status => PollResult::Failed(format!("{address}: {status}: {}", answer.summary())),
    }
}

/// Copies a value, which otherwise keeps the whole read buffer alive.
fn detached(value: &HeaderValue) -> Option<HeaderValue> {
    HeaderValue::from_bytes(value.as_bytes()).ok()
}

fn truncate_moves(mut tenants: Vec<TenantReport>) -> Vec<TenantReport> {
    for report in &mut tenants {
        if let TenantReport::State(state) = report {
            let before = state.moves.len().saturating_sub(MAX_MOVES);
            state.moves.drain(..before);
            state.moves.shrink_to_fit();
        }
    }
    tenants
}

/// Returns the time over which the first readings of this many GPUs are spread.
pub(super) fn initial_spread(gpus: usize) -> Duration {
    INITIAL_SPREAD_MAX.min(INITIAL_SPREAD_PER_GPU * u32::try_from(gpus).unwrap_or(u32::MAX))
}

/// Reads a GPU forever, for the first time within `first`.
pub(super) async fn poll_forever(
    way: Transport,
    key: GpuKey,
    mut sidecars: watch::Receiver<Vec<SidecarKey>>,
    (readings, notices): (ReadingStore, EventSender),
    (first, every): (Duration, Duration),
) {
    // Without a certificate the calls report that after a while.
    let _ = tokio::time::timeout(INITIAL_SPREAD_MAX, way.wait_for_credentials()).await;
    let spread = Jitter::default();
    let mut asked = PollCursor::default();
    let mut wait = spread.within(first.min(every));
    loop {
        // A new sidecar is read soon, but not in its first seconds.
        let news = tokio::time::timeout(wait, sidecars.changed()).await;
        match news {
            Ok(Err(_)) => return,
            Ok(Ok(())) => tokio::time::sleep(RETRY_DELAY.min(wait)).await,
            Err(_) => {}
        }
        let all = sidecars.borrow_and_update().clone();
        if all.is_empty() {
            wait = every;
            continue;
        }
        let came = asked.next(&way, &all).await;
        wait = asked.retry_delay(&came).unwrap_or_else(|| spread.around(every));
        if readings.record(&key, came, &all, unix_ms(SystemTime::now())) {
            // The receiver is dropped when the operator ends.
            let _ = notices.send(SidecarEvent::Read(key.clone()));
        }
    }
}

/// The sidecar to poll, and its last answer.
#[derive(Default)]
struct PollCursor {
    next_index: usize,
    failures: usize,
    last: Option<(SidecarAddress, HeaderValue)>,
    /// The last states will change soon.
    is_transient: bool,
    /// Delays between readings of such states.
    back_off: Option<BackOff>,
}

impl PollCursor {
    async fn next(&mut self, way: &Transport, all: &[SidecarKey]) -> PollResult {
        let (address, _) = &all[self.next_index % all.len()];
        let tag = self.last.as_ref().filter(|(from, _)| from == address).map(|(_, tag)| tag);
        let came = poll_once(way, address, tag).await;
        match &came {
            PollResult::Failed(problem) | PollResult::AllFailed(problem) => {
                (self.next_index, self.failures) = (self.next_index.wrapping_add(1), self.failures + 1);
                if self.failures >= all.len() {
                    return PollResult::AllFailed(problem.clone());
                }
            }
            PollResult::NotModified => self.failures = 0,
            PollResult::States(tenants, tag) => {
                self.failures = 0;
                self.is_transient = is_transient(tenants, all.len());
                self.skip_blind_sidecar(tenants);
                self.last = tag.clone().map(|tag| (address.clone(), tag));
            }
        }
        came
    }

    /// Polls another sidecar next if this one could not read a peer: during an upgrade, a sidecar of the version before
    /// cannot read the states of the next one, but those can read its own.
    fn skip_blind_sidecar(&mut self, tenants: &[TenantReport]) {
        if tenants.iter().any(|report| matches!(report, TenantReport::Unreachable { .. })) {
            self.next_index = self.next_index.wrapping_add(1);
        }
    }

    /// Returns the delay until the next reading after `came`; `None` = the normal interval.
    fn retry_delay(&mut self, came: &PollResult) -> Option<Duration> {
        match came {
            PollResult::Failed(_) => return Some(RETRY_DELAY),
            PollResult::AllFailed(_) => return None,
            PollResult::States(..) | PollResult::NotModified => {}
        }
        if !self.is_transient {
            self.back_off = None;
            return None;
        }
        let wait = self.back_off.get_or_insert(BackOff::new(RETRY_DELAY, POLL_INTERVAL)).next_delay();
        // A sidecar that never completes loading is finally polled at the normal interval.
        (wait < POLL_INTERVAL).then_some(wait)
    }
}

/// Whether a state will change soon: without a retry the state of a start would be reported for half a minute.
fn is_transient(tenants: &[TenantReport], sidecars: usize) -> bool {
    let on_its_way = |report: &TenantReport| match report {
        TenantReport::State(state) => {
            matches!(state.phase, Phase::Loading | Phase::Waking | Phase::EngineLost | Phase::Draining)
                || is_hung(state)
        }
        TenantReport::Unreachable { .. } => true,
    };
    tenants.len() < sidecars || tenants.iter().any(on_its_way)
}

/// Whether an engine exceeded a deadline and has not exited, or a holder of the time slice is past its own: both end
/// soon.
fn is_hung(state: &State) -> bool {
    let slice = state.peers.as_ref().and_then(|place| place.time_slice.as_ref());
    let late = slice.is_some_and(|slice| slice.holder_overdue_ms > 0);
    late || state.engine.last_hang.as_ref().is_some_and(|hang| hang.alive)
}

/// Random delays, so that a thousand GPUs are not read at the same time.
#[derive(Default)]
struct Jitter(RandomState);

impl Jitter {
    /// Returns a random delay of at most `most`.
    fn within(&self, most: Duration) -> Duration {
        let permille = self.0.hash_one(tokio::time::Instant::now()) % 1001;
        most * u32::try_from(permille).unwrap_or(0) / 1000
    }

    /// Returns `middle`, plus or minus up to [`JITTER_PERMILLE`].
    fn around(&self, middle: Duration) -> Duration {
        let jitter = middle * u32::try_from(JITTER_PERMILLE).unwrap_or(0) / 1000;
        middle - jitter + self.within(2 * jitter)
    }
}

#[cfg(test)]
mod tests {
    use sluice_wire::state::{EngineHang, SharingState, TimeSliceState};

    use super::*;

    #[test]
    fn initial_spread_scales_with_gpu_count() {
        assert_eq!(
            [1, 100, 1_000, 5_000].map(|gpus| initial_spread(gpus).as_millis()),
            [10, 1_000, 10_000, 10_000]
        );
    }

    #[test]
    fn sidecar_that_cannot_read_a_peer_is_not_polled_next() {
        let state = || TenantReport::State(Box::default());
        let unreachable = || TenantReport::Unreachable {
            namespace: "ns".into(),
            name: "code".into(),
            reason: "new".into(),
        };
        let mut cursor = PollCursor::default();
        cursor.skip_blind_sidecar(&[state(), state()]);
        assert_eq!(cursor.next_index, 0);
        cursor.skip_blind_sidecar(&[state(), unreachable()]);
        assert_eq!(cursor.next_index, 1);
    }

    #[test]
    fn lasting_hang_is_polled_again_within_seconds() {
        let wait = |edit: &dyn Fn(&mut State)| {
            let mut state = State { phase: Phase::Active, ..State::default() };
            edit(&mut state);
            let tenants = vec![TenantReport::State(Box::new(state))];
            let mut asked = PollCursor { is_transient: is_transient(&tenants, 1), ..PollCursor::default() };
            asked.retry_delay(&PollResult::States(tenants, None))
        };
        let hang = |alive| EngineHang { alive, ..EngineHang::default() };
        let late = |holder_overdue_ms| {
            let time_slice = Some(TimeSliceState { holder_overdue_ms, ..TimeSliceState::default() });
            Some(SharingState { time_slice, ..SharingState::default() })
        };
        assert_eq!(wait(&|state| state.engine.last_hang = Some(hang(true))), Some(RETRY_DELAY));
        assert_eq!(wait(&|state| state.peers = late(1)), Some(RETRY_DELAY));
        assert_eq!(wait(&|state| state.engine.last_hang = Some(hang(false))), None, "it was ended");
        assert_eq!(wait(&|state| state.peers = late(0)), None);
    }
}
