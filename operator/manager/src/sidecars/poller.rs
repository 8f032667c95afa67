//! Reads the states of one GPU's tenants, from one sidecar for all.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use sluice_common::back_off::BackOff;
use sluice_plan::sidecar_report::{floor_bytes, owned_bytes};
use sluice_wire::state::{GpuState, Phase, State, TenantReport};
use sluice_wire::time::unix_ms;
use tokio::sync::watch;

use super::http_client::{SidecarAddress, Transport};
use super::registry::{EventSender, GpuKey, GpuReading, ReadingStore, SidecarEvent, SidecarKey};

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

/// Result of a reading.
#[derive(Clone, Debug, PartialEq)]
pub enum PollResult {
    /// New states, and their tag.
    States(Vec<TenantReport>, Option<HeaderValue>),
    /// The states are unchanged.
    NotModified,
    /// No states, with the reason.
    Failed(String),
    /// None of the GPU's sidecars answered; the reason of the last.
    AllFailed(String),
}

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
    (board, notices): (ReadingStore, EventSender),
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
        if board.record(&key, came, &all, unix_ms(SystemTime::now())) {
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
                self.last = tag.clone().map(|tag| (address.clone(), tag));
            }
        }
        came
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
    let turn = state.neighbourhood.as_ref().and_then(|place| place.turn.as_ref());
    let late = turn.is_some_and(|turn| turn.holder_overdue_ms > 0);
    late || state.engine.last_hang.as_ref().is_some_and(|hang| hang.alive)
}

/// Returns the last values of these tenants. A tenant that does not answer, or has no value after a restart, keeps
/// the previous value of the same pod, as does one whose pod the polled sidecar does not know yet.
fn last(
    tenants: &[TenantReport],
    (before, pods): (&BTreeMap<String, u64>, &BTreeMap<String, String>),
    tells: impl Fn(&State) -> Option<u64>,
) -> BTreeMap<String, u64> {
    let mut all = before.clone();
    all.retain(|name, _| pods.contains_key(name));
    let of = |report: &TenantReport| {
        let (name, told) = match report {
            TenantReport::State(state) => (&state.tenant.name, tells(state)),
            TenantReport::Unreachable { name, .. } => (name, None),
        };
        Some((name.clone(), told.or(before.get(name).copied())?))
    };
    all.extend(tenants.iter().filter_map(of));
    all
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

impl GpuReading {
    /// Applies the result for these pods; true = something changed.
    pub(super) fn apply(
        &mut self,
        came: PollResult,
        pods: BTreeMap<String, String>,
        at_unix_ms: u64,
    ) -> bool {
        match came {
            PollResult::States(tenants, _) => {
                let new = self.tenants != tenants || self.pods != pods || self.problem.is_some();
                let same = |name: &str| self.pods.get(name) == pods.get(name);
                self.floors.retain(|name, _| same(name));
                self.owned.retain(|name, _| same(name));
                let floors = last(&tenants, (&self.floors, &pods), floor_bytes);
                let owned = last(&tenants, (&self.owned, &pods), |state| Some(owned_bytes(state)));
                let (read_unix_ms, problem) = (Some(at_unix_ms), None);
                *self =
                    GpuReading { read_unix_ms, problem, is_unreachable: false, tenants, pods, floors, owned };
                new
            }
            PollResult::NotModified => {
                (self.read_unix_ms, self.is_unreachable) = (Some(at_unix_ms), false);
                let others = std::mem::replace(&mut self.pods, pods) != self.pods;
                self.problem.take().is_some() || others
            }
            PollResult::Failed(problem) => self.record_failure(problem),
            PollResult::AllFailed(problem) => {
                let first = !std::mem::replace(&mut self.is_unreachable, true);
                self.record_failure(problem) || first
            }
        }
    }
}

impl GpuReading {
    /// Records a failure; true = it is new.
    fn record_failure(&mut self, problem: String) -> bool {
        let new = self.problem.as_ref() != Some(&problem);
        self.problem = Some(problem);
        new
    }
}

#[cfg(test)]
mod tests {
    use sluice_wire::state::{EngineHang, SharingState, TurnState};

    use super::*;

    #[test]
    fn initial_spread_scales_with_gpu_count() {
        assert_eq!(
            [1, 100, 1_000, 5_000].map(|gpus| initial_spread(gpus).as_millis()),
            [10, 1_000, 10_000, 10_000]
        );
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
            let turn = Some(TurnState { holder_overdue_ms, ..TurnState::default() });
            Some(SharingState { turn, ..SharingState::default() })
        };
        assert_eq!(wait(&|state| state.engine.last_hang = Some(hang(true))), Some(RETRY_DELAY));
        assert_eq!(wait(&|state| state.neighbourhood = late(1)), Some(RETRY_DELAY));
        assert_eq!(wait(&|state| state.engine.last_hang = Some(hang(false))), None, "it was ended");
        assert_eq!(wait(&|state| state.neighbourhood = late(0)), None);
    }

    #[test]
    fn unreachable_tenant_keeps_last_report_and_removed_one_loses_it() {
        let state = |name: &str, free_bytes| {
            let mut state = State::default();
            state.tenant.name = name.into();
            (state.memory.owners.kv_bytes, state.memory.owners.free_bytes) = (70 - free_bytes, free_bytes);
            TenantReport::State(Box::new(state))
        };
        let silent = |name: &str| TenantReport::Unreachable {
            namespace: String::new(),
            name: name.into(),
            reason: "late".into(),
        };
        let mut reading = GpuReading::default();
        let mut owned = |tenants: Vec<TenantReport>, pods: &[&str]| {
            let pods = pods.iter().map(|pod| ((*pod)[..1].to_owned(), (*pod).to_owned())).collect();
            reading.apply(PollResult::States(tenants, None), pods, 0);
            reading.owned.clone().into_iter().collect::<Vec<_>>()
        };
        let of = |name: &str, bytes: u64| (name.to_owned(), bytes);
        assert_eq!(owned(vec![state("a", 10), silent("b")], &["a", "b"]), [of("a", 60)]);
        assert_eq!(owned(vec![state("a", 30), state("b", 0)], &["a", "b"]), [of("a", 40), of("b", 70)]);
        assert_eq!(owned(vec![silent("a"), state("b", 5)], &["a", "b"]), [of("a", 40), of("b", 65)]);
        assert_eq!(owned(vec![state("b", 6)], &["a", "b"]), [of("a", 40), of("b", 64)], "not told of it yet");
        assert_eq!(owned(vec![silent("a"), silent("b")], &["a2", "b"]), [of("b", 64)], "another pod of it");
        assert_eq!(owned(vec![state("b", 5)], &["b"]), [of("b", 65)]);
    }
}
