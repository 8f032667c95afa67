//! Finds sidecars and reads their states. A sidecar that does not answer is part of the result.

use std::time::Duration;

use futures_util::future::join_all;
use sluice_page::rates::Rates;
use sluice_wire::overview::GpuOverview;
use sluice_wire::state::TenantReport;
use sluice_wire::{Overview, State};

use crate::admin::AdminClient;
use crate::cluster::{LeaderClient, OverviewScope};
use crate::now_unix_ms;
use crate::runtime_dir::{RunningSidecar, RuntimeDir};

/// Interval of reading the sidecars of this machine.
const REFRESH_INTERVAL: Duration = Duration::from_millis(500);
/// Refresh interval of a cluster, whose operator reads its sidecars twice a minute.
const CLUSTER_REFRESH_INTERVAL: Duration = Duration::from_secs(5);

/// The reading of one sidecar.
#[derive(Clone, Debug)]
pub struct SidecarPoll {
    /// `NAMESPACE/NAME`.
    pub title: String,
    /// Its state, or why it is missing.
    pub state: Result<State, String>,
    /// Tokens generated per second since the previous reading; `None` = there was none.
    pub token_rate: Option<f32>,
}

/// Source of readings.
#[derive(Debug)]
pub enum PollSource {
    /// Sidecars of this machine.
    Local(RuntimeDir, AdminClient),
    /// A cluster.
    Cluster(Box<LeaderClient>, OverviewScope),
}

impl PollSource {
    /// Returns the text for an empty result.
    pub const fn empty_text(&self) -> &'static str {
        match self {
            PollSource::Local(..) => "no sidecar runs; start one with sluice run MODEL or sluice up -f FILE",
            PollSource::Cluster(..) => {
                "no tenant has a GPU in this namespace; kubectl get modeltenants shows why, -A shows all namespaces"
            }
        }
    }

    /// Whether the source is a cluster.
    pub const fn is_cluster(&self) -> bool {
        matches!(self, PollSource::Cluster(..))
    }

    /// Returns the time between two readings.
    pub const fn refresh(&self) -> Duration {
        if self.is_cluster() { CLUSTER_REFRESH_INTERVAL } else { REFRESH_INTERVAL }
    }

    /// Reads all GPUs and their tenants.
    ///
    /// # Errors
    /// The runtime folder cannot be read, or the operator's leader does not answer.
    pub async fn poll(&mut self) -> anyhow::Result<Overview> {
        match self {
            PollSource::Local(runtime, admin) => {
                let asked = runtime.running()?.into_iter().map(|sidecar| poll_sidecar(admin, sidecar));
                Ok(group_by_gpu(join_all(asked).await, now_unix_ms()))
            }
            PollSource::Cluster(leader, scope) => leader.overview(scope).await,
        }
    }
}

/// The name of a sidecar's GPU, empty if unknown, and the sidecar's report.
type TenantAnswer = (String, TenantReport);

async fn poll_sidecar(admin: &AdminClient, sidecar: RunningSidecar) -> TenantAnswer {
    let (namespace, name) = sidecar.title.split_once('/').unwrap_or(("", &sidecar.title));
    let silent = |error: anyhow::Error| TenantReport::Unreachable {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        reason: format!("{error:#}"),
    };
    match sidecar.record {
        Ok(record) => {
            let report = admin.state(&record).await;
            (record.gpu, report.map_or_else(silent, |state| TenantReport::State(Box::new(state))))
        }
        Err(error) => (String::new(), silent(error)),
    }
}

/// Groups the answers by GPU, in the order of their first tenants.
fn group_by_gpu(answers: Vec<TenantAnswer>, now_unix_ms: u64) -> Overview {
    let mut gpus: Vec<GpuOverview> = Vec::new();
    for (name, report) in answers {
        let namespace = title_of(&report).0;
        match gpus.iter_mut().find(|gpu| gpu.namespace == namespace && gpu.name == name) {
            Some(gpu) => gpu.tenants.push(report),
            None => gpus.push(GpuOverview {
                namespace: namespace.to_owned(),
                name,
                read_unix_ms: Some(now_unix_ms),
                tenants: vec![report],
                ..GpuOverview::default()
            }),
        }
    }
    Overview { at_unix_ms: now_unix_ms, gpus, ..Overview::default() }
}

fn title_of(report: &TenantReport) -> (&str, &str) {
    match report {
        TenantReport::State(state) => (&state.tenant.namespace, &state.tenant.name),
        TenantReport::Unreachable { namespace, name, .. } => (namespace, name),
    }
}

/// Lists the tenants of an overview by title. The slots of a tenant on several GPUs are named after their GPUs.
pub fn sidecar_polls(overview: Overview, rates: &mut Rates) -> Vec<SidecarPoll> {
    let mut all: Vec<(String, String, Result<State, String>)> = Vec::new();
    for gpu in overview.gpus {
        if let Some(problem) = gpu.problem {
            let title = format!("{}/{}", gpu.namespace, gpu.name);
            all.push((
                title,
                String::new(),
                Err(format!("the sidecars of the GPU could not be read: {problem}")),
            ));
        }
        for report in gpu.tenants {
            let (namespace, name) = title_of(&report);
            let title = format!("{namespace}/{name}");
            let state = match report {
                TenantReport::State(state) => Ok(*state),
                TenantReport::Unreachable { reason, .. } => Err(reason),
            };
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
    let answered = titles
        .iter()
        .zip(&all)
        .filter_map(|(title, (_, _, state))| Some((title.clone(), state.as_ref().ok()?)));
    rates.read(answered);
    let sighting = |(title, (_, _, state)): (String, (String, String, Result<State, String>))| SidecarPoll {
        token_rate: rates.get(&title),
        state,
        title,
    };
    titles.into_iter().zip(all).map(sighting).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silent(name: &str) -> TenantReport {
        TenantReport::Unreachable { namespace: "team".into(), name: name.into(), reason: "gone".into() }
    }

    #[test]
    fn tenant_on_two_gpus_has_two_rows_and_unread_gpu_is_reported() {
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
        let all = sidecar_polls(Overview { gpus, ..Overview::default() }, &mut Rates::default());
        let titles: Vec<_> = all.into_iter().map(|s| s.title).collect();
        assert_eq!(titles, ["team/chat@p-b-0", "team/chat@p-b-1", "team/code", "team/p-b-2"]);
    }

    #[test]
    fn local_tenants_are_grouped_by_gpu_even_when_unreachable() {
        let answers =
            vec![("a".into(), silent("chat")), ("b".into(), silent("code")), ("a".into(), silent("mail"))];
        let overview = group_by_gpu(answers, 5);
        let gpus: Vec<_> = overview
            .gpus
            .iter()
            .map(|gpu| (gpu.name.as_str(), gpu.tenants.len(), gpu.read_unix_ms))
            .collect();
        assert_eq!(gpus, [("a", 2, Some(5)), ("b", 1, Some(5))]);
    }
}
