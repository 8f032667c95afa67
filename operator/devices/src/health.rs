//! Serves probes and metrics over HTTP.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Router, http::header};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::proto::connect;
use crate::proto::dra::NodePrepareResourcesRequest;
use crate::proto::dra::dra_plugin_client::DraPluginClient;
use crate::proto::pluginregistration::InfoRequest;
use crate::proto::pluginregistration::registration_client::RegistrationClient;

/// Time limit for both sockets to answer a liveness probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Content type of the metrics.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Call {
    call: &'static str,
    result: &'static str,
}

/// Metrics of the driver.
pub struct DriverMetrics {
    registry: Mutex<Registry>,
    calls: Family<Call, Counter>,
    claims: Gauge,
    bad_records: Gauge,
}

impl Default for DriverMetrics {
    fn default() -> Self {
        let (calls, claims, bad_records) = (Family::default(), Gauge::default(), Gauge::default());
        let mut registry = Registry::with_prefix("sluice_devices");
        registry.register("calls", "Claims in calls of the kubelet, by call and result", calls.clone());
        registry.register("claims", "Claims prepared on this node", claims.clone());
        let help = "Records of claims that this driver could not read and has renamed";
        registry.register("bad_records", help, bad_records.clone());
        DriverMetrics { registry: Mutex::new(registry), calls, claims, bad_records }
    }
}

impl DriverMetrics {
    /// Counts a prepare call for one claim.
    pub fn prepared(&self, well: bool) {
        self.call("prepare", well);
    }

    /// Counts an unprepare call for one claim.
    pub fn unprepared(&self, well: bool) {
        self.call("unprepare", well);
    }

    fn call(&self, call: &'static str, well: bool) {
        let result = if well { "ok" } else { "error" };
        self.calls.get_or_create(&Call { call, result }).inc();
    }

    /// Sets the numbers of prepared claims and of records that were put aside.
    pub fn records(&self, claims: usize, bad: usize) {
        self.claims.set(i64::try_from(claims).unwrap_or(i64::MAX));
        self.bad_records.set(i64::try_from(bad).unwrap_or(i64::MAX));
    }

    fn text(&self) -> String {
        let registry = self.registry.lock().expect("no holder of the lock of the registry panics");
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("writing to a string");
        text
    }
}

/// State that the probes read.
#[derive(Clone)]
pub struct Health {
    /// Sockets of the registration service and of the claim service.
    pub sockets: [PathBuf; 2],
    /// Whether the kubelet has registered the driver, and whether the slice is published.
    pub ready: [watch::Receiver<bool>; 2],
    /// Metrics that `/metrics` returns.
    pub metrics: std::sync::Arc<DriverMetrics>,
}

/// Routes `/live`, `/ready` and `/metrics`.
pub fn router(health: Health) -> Router {
    let routes = Router::new().route("/live", get(live)).route("/ready", get(ready));
    routes.route("/metrics", get(metrics)).with_state(health)
}

async fn live(State(health): State<Health>) -> (StatusCode, String) {
    match tokio::time::timeout(PROBE_TIMEOUT, check_sockets(&health.sockets)).await {
        Ok(Ok(())) => (StatusCode::OK, "live\n".into()),
        Ok(Err(error)) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error:#}\n")),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the gRPC sockets of the driver do not answer\n".into()),
    }
}

/// Calls both services, as the kubelet does.
async fn check_sockets(sockets: &[PathBuf; 2]) -> anyhow::Result<()> {
    let no_claims = NodePrepareResourcesRequest::default();
    RegistrationClient::new(connect(&sockets[0]).await?).get_info(InfoRequest {}).await?;
    DraPluginClient::new(connect(&sockets[1]).await?).node_prepare_resources(no_claims).await?;
    Ok(())
}

async fn ready(State(health): State<Health>) -> (StatusCode, &'static str) {
    match health.ready.each_ref().map(|state| *state.borrow()) {
        [true, true] => (StatusCode::OK, "ready\n"),
        [false, _] => (StatusCode::SERVICE_UNAVAILABLE, "not registered with the kubelet\n"),
        [true, false] => (StatusCode::SERVICE_UNAVAILABLE, "the ResourceSlice is not published\n"),
    }
}

async fn metrics(State(health): State<Health>) -> ([(header::HeaderName, &'static str); 1], String) {
    ([(header::CONTENT_TYPE, OPEN_METRICS)], health.metrics.text())
}
