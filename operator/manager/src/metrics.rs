//! Prometheus metrics of the operator.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use sluice_types::ModelTenant;

use crate::cache::ClusterCache;
use crate::queue::WorkQueue;

/// The metrics. Clones share their values.
#[derive(Clone, Debug)]
pub struct Metrics {
    reconciles: Family<ReconcileLabels, Counter>,
    reconcile_seconds: Histogram,
    writes: Family<WriteLabels, Counter>,
    leader: Gauge,
    queued: Gauge,
    objects: Family<ObjectKindLabels, Gauge>,
    tenants: Family<TenantReadyLabels, Gauge>,
    not_ready: Gauge,
    nodes_holding_claims: Gauge,
    undelivered_directives: Gauge,
    initial_sync_seconds: Gauge<f64, AtomicU64>,
    initial_observation_seconds: Gauge<f64, AtomicU64>,
    registry: Arc<Registry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReconcileLabels {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    kind: &'static str,
    verb: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ObjectKindLabels {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TenantReadyLabels {
    ready: String,
    reason: String,
}

impl TenantReadyLabels {
    /// Returns the tenant's condition `Ready`, or the initial value of a condition before it has one.
    fn from_tenant(tenant: &ModelTenant) -> TenantReadyLabels {
        let conditions = tenant.status.as_ref().map(|status| status.conditions.as_slice());
        let ready = conditions.unwrap_or_default().iter().find(|one| one.type_ == "Ready");
        let (ready, reason) =
            ready.map_or(("Unknown", "NotObserved"), |one| (one.status.as_str(), one.reason.as_str()));
        TenantReadyLabels { ready: ready.to_owned(), reason: reason.to_owned() }
    }
}

/// Bounds of the buckets of reconciliations, seconds.
const RECONCILE_BUCKETS: [f64; 9] = [0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 5.0, 15.0, 60.0];

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Metrics {
            reconciles: Family::default(),
            reconcile_seconds: Histogram::new(RECONCILE_BUCKETS),
            writes: Family::default(),
            leader: Gauge::<i64, AtomicI64>::default(),
            queued: Gauge::default(),
            objects: Family::default(),
            tenants: Family::default(),
            not_ready: Gauge::default(),
            nodes_holding_claims: Gauge::default(),
            undelivered_directives: Gauge::default(),
            initial_sync_seconds: Gauge::default(),
            initial_observation_seconds: Gauge::default(),
            registry: Arc::default(),
        };
        metrics.registry = Arc::new(metrics.register());
        metrics
    }
}

impl Metrics {
    fn register(&self) -> Registry {
        let mut registry = Registry::with_prefix("sluice_operator");
        registry.register("reconciles", "Reconciliations of pools, by result", self.reconciles.clone());
        registry.register(
            "reconcile_seconds",
            "Duration of a reconciliation of a pool",
            self.reconcile_seconds.clone(),
        );
        registry.register(
            "writes",
            "Write requests to the API server, by kind and verb, without those for the Lease",
            self.writes.clone(),
        );
        registry.register("leader", "1 = this replica is the leader", self.leader.clone());
        registry.register("queue_depth", "Pools that wait to be reconciled", self.queued.clone());
        registry.register("objects", "Watched objects, by kind", self.objects.clone());
        let help = "Tenants, by status and reason of their condition Ready";
        registry.register("tenants", help, self.tenants.clone());
        let help = "Nodes with claims that are not ready";
        registry.register("nodes_not_ready", help, self.not_ready.clone());
        let help = "1 = no GPU moves to another node, because too many nodes are not ready at the same time";
        registry.register("claims_held", help, self.nodes_holding_claims.clone());
        let help =
            "Sidecars that have not accepted their newest directive for a while and follow an older one";
        registry.register("directives_not_taken", help, self.undelivered_directives.clone());
        registry.register(
            "looked_seconds",
            "Time from the start until every pool was reconciled once; 0 = not yet",
            self.initial_sync_seconds.clone(),
        );
        registry.register(
            "observed_seconds",
            "Time from the start until the sidecars of every GPU were read once; 0 = not yet",
            self.initial_observation_seconds.clone(),
        );
        registry
    }

    /// Records that a reconciliation took `took`, and whether it succeeded.
    pub fn observe_reconcile(&self, took: Duration, fine: bool) {
        let result = if fine { "ok" } else { "failed" };
        self.reconciles.get_or_create(&ReconcileLabels { result }).inc();
        self.reconcile_seconds.observe(took.as_secs_f64());
    }

    /// Counts a request that may change something.
    pub fn count_write(&self, kind: &'static str, verb: &'static str) {
        self.writes.get_or_create(&WriteLabels { kind, verb }).inc();
    }

    /// Sets whether this replica leads.
    pub fn set_leader(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }

    /// Sets the number of sidecars that have been without their directive for a while.
    pub fn set_undelivered_directives(&self, sidecars: usize) {
        self.undelivered_directives.set(i64::try_from(sidecars).unwrap_or(i64::MAX));
    }

    /// Sets the time from the start until every pool was reconciled once.
    pub fn set_initial_sync(&self, since_start: Duration) {
        self.initial_sync_seconds.set(since_start.as_secs_f64());
    }

    /// Sets the time from the start until every pool was reconciled once and every GPU's sidecars were read once.
    pub fn set_initial_observation(&self, since_start: Duration) {
        self.initial_observation_seconds.set(since_start.as_secs_f64());
    }

    /// Returns all metrics as text.
    pub fn render(&self, world: &ClusterCache, queue: &WorkQueue) -> String {
        self.queued.set(i64::try_from(queue.len()).unwrap_or(i64::MAX));
        for (kind, count) in world.object_counts() {
            self.objects
                .get_or_create(&ObjectKindLabels { kind })
                .set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let outage = world.outage(Timestamp::now().as_second());
        self.not_ready.set(i64::try_from(outage.not_ready).unwrap_or(i64::MAX));
        self.nodes_holding_claims.set(i64::from(outage.is_active()));
        self.tenants.clear();
        for labels in world.tenants.filter_map(|_, tenant| Some(TenantReadyLabels::from_tenant(tenant))) {
            self.tenants.get_or_create(&labels).inc();
        }
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("a string takes every text");
        text
    }
}
