//! The last report of the sidecars of each GPU.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use http::HeaderValue;
use sluice_plan::sidecar_report::{floor_bytes, owned_bytes};
use sluice_wire::state::{State, TenantReport};

use super::http_client::SidecarAddress;

/// Name of a GPU in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuKey {
    /// Namespace of its pool.
    pub namespace: String,
    /// Its pool.
    pub pool: String,
    /// Its name.
    pub name: String,
}

/// The last report of a GPU's sidecars.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuReading {
    /// Time of the reading, milliseconds since 1970; `None` = never.
    pub read_unix_ms: Option<u64>,
    /// Why the last reading failed; `None` = it did not.
    pub problem: Option<String>,
    /// All sidecars were polled, and none has answered since.
    pub is_unreachable: bool,
    /// States of all its tenants.
    pub tenants: Vec<TenantReport>,
    /// Uids of the pods of these states, by tenant, as known when the sidecar was polled.
    pub pods: BTreeMap<String, String>,
    /// The last reported floors of its tenants, bytes, also of those that do not answer now.
    pub floors: BTreeMap<String, u64>,
    /// Device memory that its tenants own, bytes, as last reported, also of those that do not answer now.
    pub owned: BTreeMap<String, u64>,
}

impl GpuReading {
    /// Whether all of its sidecars have reported, or none answers.
    pub(super) fn is_complete(&self) -> bool {
        let states = self.tenants.iter().filter_map(|report| match report {
            TenantReport::State(state) => Some(state.tenant.name.as_str()),
            TenantReport::Unreachable { .. } => None,
        });
        let reported: BTreeSet<&str> = states.collect();
        let all = self.pods.keys().all(|name| reported.contains(name.as_str()));
        self.is_unreachable || (self.read_unix_ms.is_some() && all)
    }

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

    /// Records a failure; true = it is new.
    fn record_failure(&mut self, problem: String) -> bool {
        let new = self.problem.as_ref() != Some(&problem);
        self.problem = Some(problem);
        new
    }
}

/// A sidecar and the uid of its pod.
pub(super) type SidecarKey = (SidecarAddress, String);

/// Node and reading of each GPU.
pub(super) type Readings = BTreeMap<GpuKey, (Option<String>, GpuReading)>;

/// Readings by GPU.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadingStore(Arc<Mutex<Readings>>);

impl ReadingStore {
    pub(super) fn with<T>(&self, of: impl FnOnce(&mut Readings) -> T) -> T {
        // A panic leaves entries complete.
        of(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records a reading; true = something changed. Readings of a removed GPU are dropped.
    pub(super) fn record(
        &self,
        key: &GpuKey,
        came: PollResult,
        asked: &[SidecarKey],
        at_unix_ms: u64,
    ) -> bool {
        let pods = asked.iter().map(|(address, pod)| (address.name.clone(), pod.clone())).collect();
        self.with(|all| all.get_mut(key).is_some_and(|(_, reading)| reading.apply(came, pods, at_unix_ms)))
    }
}

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

/// Returns the last values of these tenants. A tenant that does not answer, or has no value after a restart, keeps
/// the previous value of the same pod, as does one whose pod the polled sidecar does not know yet.
fn last(
    tenants: &[TenantReport],
    (before, pods): (&BTreeMap<String, u64>, &BTreeMap<String, String>),
    value: impl Fn(&State) -> Option<u64>,
) -> BTreeMap<String, u64> {
    let mut all = before.clone();
    all.retain(|name, _| pods.contains_key(name));
    let of = |report: &TenantReport| {
        let (name, reported) = match report {
            TenantReport::State(state) => (&state.tenant.name, value(state)),
            TenantReport::Unreachable { name, .. } => (name, None),
        };
        Some((name.clone(), reported.or(before.get(name).copied())?))
    };
    all.extend(tenants.iter().filter_map(of));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(owned(vec![state("b", 6)], &["a", "b"]), [of("a", 40), of("b", 64)], "not known yet");
        assert_eq!(owned(vec![silent("a"), silent("b")], &["a2", "b"]), [of("b", 64)], "another pod of it");
        assert_eq!(owned(vec![state("b", 5)], &["b"]), [of("b", 65)]);
    }
}
