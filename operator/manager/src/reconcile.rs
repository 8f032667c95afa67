//! Reconciles one pool with its tenants, in five steps.
//!
//! 1. **dereference**: collects the observed state from the caches, without requests to the API server.
//! 2. **validate** and 3. **build**: `sluice-plan` computes the desired state.
//! 4. **apply**: sends missing, changed or drifted objects, deletes obsolete ones, updates certificates, and sends
//!    directives.
//! 5. **status**: reports the result.

mod apply;
mod directives;
mod events;
mod finalizer;
mod lock;
mod observe;
mod own_kind;
mod render_cache;
mod rendered_objects;
mod status;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use kube::Client;
use sluice_plan::objects::Release;
use sluice_plan::observed::ObservedPod;
use sluice_plan::plan_context::PlanContext;
use sluice_plan::pool_plan::{ApplyErrors, plan};
use sluice_wire::overview::GpuOverview;
use sluice_wire::state::TenantReport;
use tokio::sync::Notify;
use tracing::Instrument as _;

pub use self::events::EventRecorder;
use self::lock::lock;
use self::own_kind::OwnKind;
use self::rendered_objects::RenderedObjects;
use crate::cache::{ClusterCache, NamespacedName, PoolKey};
use crate::capabilities::ClusterCapabilities;
use crate::credentials::CertificateManager;
use crate::metrics::Metrics;
use crate::queue::WorkQueue;
use crate::sidecars::{GpuKey, GpuRead, SidecarRegistry};

/// State and clients of a reconciliation.
pub struct Reconciler {
    /// Access to the API server.
    pub client: Client,
    pub cache: Arc<ClusterCache>,
    pub queue: Arc<WorkQueue>,
    /// Settings for every pod.
    pub release: Release,
    pub capabilities: Arc<ClusterCapabilities>,
    /// A node that has not been ready for this long is lost, seconds.
    pub node_grace_seconds: i64,
    /// Minimum time between two writes of a status with unchanged conditions.
    pub status_interval: Duration,
    pub certificates: CertificateManager,
    /// Connections to sidecars.
    pub sidecars: Mutex<SidecarRegistry>,
    pub metrics: Metrics,
    pub events: EventRecorder,
    /// Caches of this leader. They only save requests; no decision depends on them.
    pub reconcile_cache: ReconcileCache,
}

/// See [`Reconciler::reconcile_cache`].
#[derive(Debug, Default)]
pub struct ReconcileCache {
    /// When each object's status was written last.
    status_written_at: Mutex<HashMap<(OwnKind, NamespacedName), Instant>>,
    /// The last rendered objects of tenants and of GPUs (under [`OwnKind::Pool`]).
    rendered: Mutex<HashMap<(OwnKind, NamespacedName), RenderedObjects>>,
    /// The last directive of each sidecar.
    directive_states: Mutex<HashMap<DirectiveKey, sluice_plan::directives::DirectiveState>>,
    /// Pools of the start that have not been reconciled yet.
    pending_initial: Mutex<HashSet<PoolKey>>,
    /// Notified when none is left.
    initial_done: Notify,
}

/// A sidecar: its GPU, its tenant and the uid of its pod.
type DirectiveKey = (GpuKey, String, String);

/// Why a reconciliation must be repeated.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// The API server rejected a request, or did not answer.
    #[error("{what}: {error}")]
    Api {
        /// What was attempted.
        what: String,
        /// Its answer.
        error: Box<kube::Error>,
    },
    /// Objects of tenants could not be applied; the status of each tenant has the reason.
    #[error("objects of {count} tenants could not be applied; the first error: {first}")]
    ApplyFailed {
        /// Number of tenants.
        count: usize,
        /// The first error.
        first: String,
    },
}

impl ReconcileError {
    fn api(what: impl Into<String>, error: kube::Error) -> ReconcileError {
        ReconcileError::Api { what: what.into(), error: Box::new(error) }
    }
}

impl Reconciler {
    /// GPUs whose states have never been read.
    pub fn unread_gpu_count(&self) -> usize {
        lock(&self.sidecars).unread_count()
    }

    /// Sidecars that have been without their directive for a while.
    pub fn undelivered_count(&self) -> usize {
        lock(&self.sidecars).undelivered_count()
    }

    /// Returns the known state of the GPUs that `wanted` selects by namespace and reports.
    pub fn overview(&self, wanted: impl Fn(&str, &[TenantReport]) -> bool) -> Vec<GpuOverview> {
        lock(&self.sidecars).overview(wanted)
    }

    /// Calls `see` with the last reading of each GPU.
    pub fn for_each_gpu(&self, see: impl FnMut(&GpuRead<'_>)) {
        lock(&self.sidecars).for_each_gpu(see);
    }

    /// Registers pools whose first reconciliation [`Reconciler::wait_for_initial`] awaits.
    pub fn expect_initial(&self, units: impl IntoIterator<Item = PoolKey>) {
        lock(&self.reconcile_cache.pending_initial).extend(units);
    }

    /// Waits until all registered pools have been reconciled once, with any result.
    pub async fn wait_for_initial(&self) {
        loop {
            // The future must exist before the check, so that no notification is missed.
            let all_seen = self.reconcile_cache.initial_done.notified();
            if lock(&self.reconcile_cache.pending_initial).is_empty() {
                return;
            }
            all_seen.await;
        }
    }

    fn exists(&self, kind: OwnKind, at: &NamespacedName) -> bool {
        match kind {
            OwnKind::Pool => self.cache.pools.get(at).is_some(),
            OwnKind::Tenant => self.cache.tenants.get(at).is_some(),
        }
    }

    fn mark_reconciled(&self, unit: &PoolKey) {
        let mut unseen = lock(&self.reconcile_cache.pending_initial);
        if unseen.remove(unit) && unseen.is_empty() {
            self.reconcile_cache.initial_done.notify_waiters();
        }
    }

    /// Reconciles one pool after the other, forever.
    pub async fn run_worker(&self) {
        loop {
            let unit = self.queue.next().await;
            let began = Instant::now();
            let span = tracing::info_span!("reconcile", namespace = unit.namespace, pool = unit.pool);
            let result = self.reconcile(&unit).instrument(span).await;
            let took = began.elapsed();
            self.metrics.observe_reconcile(took, result.is_ok());
            match &result {
                Ok(()) => tracing::debug!(namespace = unit.namespace, pool = unit.pool, ?took, "reconciled"),
                Err(error) => {
                    tracing::warn!(
                        namespace = unit.namespace, pool = unit.pool, %error,
                        "reconciliation failed and will be retried"
                    );
                }
            }
            self.queue.done(&unit, took, result.is_err());
            self.mark_reconciled(&unit);
        }
    }

    /// Brings one pool to its desired state.
    ///
    /// # Errors
    /// A step failed; independent steps were completed.
    async fn reconcile(&self, unit: &PoolKey) -> Result<(), ReconcileError> {
        let now = Timestamp::now().as_second();
        let scene = tracing::info_span!("dereference").in_scope(|| self.observe(unit, now));
        if scene.pool.is_none() && scene.tenants.is_empty() {
            self.push_directives(unit, Vec::new());
            self.forget(unit);
            return Ok(());
        }
        if let Some(pool) = &scene.pool {
            self.sync_pool_finalizer(pool, !scene.are_all_tenants_gone).await?;
        }
        let tenants: Vec<_> = scene.tenants.iter().map(AsRef::as_ref).collect();
        let pool = scene.pool.as_deref();
        let given = PlanContext {
            pool,
            tenants: &tenants,
            observed: &scene.observed,
            cluster: self.capabilities.current(),
            grace_seconds: self.node_grace_seconds,
            disruption: self.cache.outage(now),
            now,
        };
        let plan = tracing::info_span!("build").in_scope(|| plan(&given));
        let failures = match pool {
            Some(pool) => {
                self.invalidate_secrets(unit, &scene.observed.pods);
                self.push_directives(unit, self.gpus(unit, pool, &plan, &given));
                self.apply(unit, pool, &plan, now).instrument(tracing::info_span!("apply")).await
            }
            None => {
                lock(&self.sidecars).mark_pool_absent(&unit.namespace, &unit.pool);
                ApplyErrors::new()
            }
        };
        let failed = failures
            .values()
            .next()
            .map(|first| ReconcileError::ApplyFailed { count: failures.len(), first: first.message.clone() });
        self.write_statuses(unit, &given, &plan, &failures).instrument(tracing::info_span!("status")).await?;
        if let Some(seconds) = plan.requeue_after_seconds() {
            self.queue.add_after(unit, Duration::from_secs(u64::try_from(seconds).unwrap_or(0) + 1));
        }
        failed.map_or(Ok(()), Err)
    }

    /// A missing or damaged Secret may keep a pod from starting.
    fn invalidate_secrets(&self, unit: &PoolKey, pods: &[ObservedPod]) {
        for pod in pods.iter().filter(|pod| pod.failure_reason.is_some() && pod.is_current()) {
            self.certificates.invalidate(&unit.namespace, &format!("sluice-{}-{}", pod.tenant, pod.index));
        }
    }

    /// Drops the cached state of a removed pool.
    fn forget(&self, unit: &PoolKey) {
        lock(&self.sidecars).forget(&unit.namespace, &unit.pool);
        self.queue.forget(unit);
        self.certificates.retain(|namespace, _| namespace != unit.namespace);
        lock(&self.reconcile_cache.status_written_at)
            .retain(|(kind, at), _| at.namespace != unit.namespace || self.exists(*kind, at));
        lock(&self.reconcile_cache.rendered).retain(|(_, at), _| at.namespace != unit.namespace);
    }
}
