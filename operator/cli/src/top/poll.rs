//! Finds sidecars and asks each for its state. One that does not answer is a finding like any other.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use sluice_wire::state::TenantReport;
use sluice_wire::{Overview, State};

use super::{REFRESH, REFRESH_CLUSTER};
use crate::admin::Admin;
use crate::cluster::{Leader, Scope};
use crate::runtime::{Running, RuntimeFolder};

/// What was seen of one sidecar.
#[derive(Clone, Debug)]
pub struct Sighting {
    /// `NAMESPACE/NAME`.
    pub title: String,
    /// Its state, or why it could not be had.
    pub state: Result<State, String>,
    /// Tokens generated per second since the look before; `None` = there was none.
    pub tokens_per_s: Option<f64>,
}

/// Where sidecars are found.
#[derive(Debug)]
pub enum Source {
    /// On this machine.
    Here(RuntimeFolder, Admin),
    /// In a cluster.
    Cluster(Box<Leader>, Scope),
}

/// A sidecar and its state, or why that cannot be had.
type Seen = (String, Result<State, String>);

impl Source {
    /// All sidecars, in order of their titles.
    async fn look(&mut self) -> anyhow::Result<Vec<Seen>> {
        match self {
            Source::Here(runtime, admin) => {
                let running = runtime.running()?;
                Ok(join_all(running.into_iter().map(|sidecar| ask(admin, sidecar))).await)
            }
            Source::Cluster(leader, scope) => Ok(seen(leader.overview(scope).await?)),
        }
    }
}

/// What an overview tells, in order of titles; a tenant that is on several GPUs is told apart by them.
fn seen(overview: Overview) -> Vec<Seen> {
    let mut all: Vec<(String, String, Result<State, String>)> = Vec::new();
    for gpu in overview.gpus {
        if let Some(problem) = gpu.problem {
            let title = format!("{}/{}", gpu.namespace, gpu.name);
            all.push((title, String::new(), Err(format!("the GPU's sidecars were not read: {problem}"))));
        }
        for report in gpu.tenants {
            let (title, state) = reported(report);
            all.push((title, gpu.name.clone(), state));
        }
    }
    all.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
    let shown = |at: usize| {
        let (title, gpu, _) = &all[at];
        let twice = all.iter().filter(|other| other.0 == *title).count() > 1;
        if twice { format!("{title}@{gpu}") } else { title.clone() }
    };
    let titles: Vec<String> = (0..all.len()).map(shown).collect();
    titles.into_iter().zip(all).map(|(title, (_, _, state))| (title, state)).collect()
}

fn reported(report: TenantReport) -> Seen {
    match report {
        TenantReport::State(state) => {
            (format!("{}/{}", state.tenant.namespace, state.tenant.name), Ok(*state))
        }
        TenantReport::Unreachable { namespace, name, reason } => (format!("{namespace}/{name}"), Err(reason)),
    }
}

/// Looks at all sidecars and remembers what a rate needs.
#[derive(Debug)]
pub struct Poller {
    source: Source,
    before: BTreeMap<String, Count>,
}

/// A counter at a moment.
#[derive(Clone, Copy, Debug)]
struct Count {
    at_unix_ms: u64,
    tokens: u64,
}

impl Poller {
    /// A poller that has seen nothing.
    pub fn new(source: Source) -> Self {
        Poller { source, before: BTreeMap::new() }
    }

    /// What to say when there is nobody.
    pub const fn nobody(&self) -> &'static str {
        match self.source {
            Source::Here(..) => "no sidecar runs; start one with sluice up -f FILE",
            Source::Cluster(..) => {
                "no tenant has a GPU here; kubectl get modeltenants says why, -A looks everywhere"
            }
        }
    }

    /// Whether it looks into a cluster.
    pub const fn is_of_cluster(&self) -> bool {
        matches!(self.source, Source::Cluster(..))
    }

    /// Time between two looks.
    pub const fn refresh(&self) -> Duration {
        if self.is_of_cluster() { REFRESH_CLUSTER } else { REFRESH }
    }

    /// One look at all, in order of their titles.
    ///
    /// # Errors
    /// The runtime folder cannot be read, or the operator's leader does not answer.
    pub async fn poll(&mut self) -> anyhow::Result<Vec<Sighting>> {
        let states = self.source.look().await?;
        let counts: BTreeMap<_, _> =
            states.iter().filter_map(|(title, s)| Some((title.clone(), count(s.as_ref().ok()?)))).collect();
        let sightings = states.into_iter().map(|(title, state)| Sighting {
            tokens_per_s: counts.get(&title).and_then(|now| rate(*self.before.get(&title)?, *now)),
            state,
            title,
        });
        let sightings = sightings.collect();
        self.before = counts;
        Ok(sightings)
    }
}

fn count(state: &State) -> Count {
    Count { at_unix_ms: state.at_unix_ms, tokens: state.figures.decode_tokens_total }
}

/// `None` where a rate means nothing: no time went by, or the sidecar began anew.
fn rate(before: Count, now: Count) -> Option<f64> {
    let tokens = now.tokens.checked_sub(before.tokens)?;
    let ms = now.at_unix_ms.checked_sub(before.at_unix_ms).filter(|ms| *ms > 0)?;
    Some(tokens as f64 * 1e3 / ms as f64)
}

async fn ask(admin: &Admin, sidecar: Running) -> Seen {
    let state = match sidecar.record {
        Ok(record) => admin.state(&record).await,
        Err(error) => Err(error),
    };
    (sidecar.title, state.map_err(|error| format!("{error:#}")))
}

#[cfg(test)]
mod tests {
    use sluice_wire::overview::GpuOverview;

    use super::*;

    const fn at(at_unix_ms: u64, tokens: u64) -> Count {
        Count { at_unix_ms, tokens }
    }

    #[test]
    fn a_rate_is_tokens_over_the_sidecars_own_time() {
        assert_eq!(rate(at(1000, 10), at(1500, 60)), Some(100.0));
    }

    #[test]
    fn a_sidecar_that_began_anew_or_stood_still_has_no_rate() {
        assert_eq!(rate(at(1000, 10), at(1500, 4)), None);
        assert_eq!(rate(at(1000, 10), at(1000, 10)), None);
        assert_eq!(rate(at(1000, 10), at(900, 20)), None);
    }

    #[test]
    fn a_tenant_on_two_gpus_is_told_apart_by_them_and_a_gpu_that_was_not_read_is_a_finding() {
        let silent = |name: &str| TenantReport::Unreachable {
            namespace: "team".into(),
            name: name.into(),
            reason: "gone".into(),
        };
        let gpu = |name: &str, tenants: Vec<TenantReport>, problem: Option<&str>| GpuOverview {
            namespace: "team".into(),
            name: name.into(),
            problem: problem.map(Into::into),
            tenants,
            ..GpuOverview::default()
        };
        let gpus = vec![
            gpu("p-b-1", vec![silent("chat")], None),
            gpu("p-b-0", vec![silent("chat"), silent("code")], None),
            gpu("p-b-2", Vec::new(), Some("no sidecar is ready")),
        ];
        let titles: Vec<_> =
            seen(Overview { gpus, ..Overview::default() }).into_iter().map(|s| s.0).collect();
        assert_eq!(titles, ["team/chat@p-b-0", "team/chat@p-b-1", "team/code", "team/p-b-2"]);
    }
}
