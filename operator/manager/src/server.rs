//! Serves health and metrics, and, on the loopback address only, the leader's state of every GPU.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use axum::Json;
use axum::Router;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;

use serde::Deserialize;
use sluice_page::hub::Hub;
use sluice_page::serve;
use sluice_wire::overview::{self, Overview};
use sluice_wire::state::TenantReport;
use sluice_wire::time::unix_ms;

use crate::cache::ClusterCache;
use crate::metrics::Metrics;
use crate::queue::WorkQueue;
use crate::reconcile::Reconciler;

/// State that the handlers read.
#[derive(Clone)]
pub struct HttpState {
    /// Metrics of the operator.
    pub metrics: Metrics,
    /// Caches of the watched objects.
    pub cache: Arc<ClusterCache>,
    /// Queue of pools.
    pub queue: Arc<WorkQueue>,
    /// Watches that have not listed everything yet.
    pub pending: Arc<AtomicUsize>,
}

/// Routes `/healthz`, `/readyz` and `/metrics`. A replica that waits for the Lease is ready too, because it can take
/// over.
pub fn router(served: HttpState) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(served)
}

async fn ready(State(served): State<HttpState>) -> (StatusCode, String) {
    match served.pending.load(Ordering::SeqCst) {
        0 => (StatusCode::OK, "ok\n".to_owned()),
        left => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("{left} watches have not listed their objects yet\n"))
        }
    }
}

async fn metrics(State(served): State<HttpState>) -> impl IntoResponse {
    let text = served.metrics.render(&served.cache, &served.queue);
    ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
}

/// The operator, once this replica leads.
pub type LeaderFlag = Arc<OnceLock<Arc<Reconciler>>>;

/// Routes `GET /v1/overview`: all GPUs, those of a namespace, or those with a slot of a tenant. A replica that does
/// not lead answers 503. The same server has the dashboard of `hub`.
pub fn read_router(leads: LeaderFlag, hub: Arc<Hub>) -> Router {
    let read = Router::new().route(overview::PATH, get(get_overview)).with_state(leads);
    serve::local_only(read.merge(serve::routes(hub)))
}

/// Filter of the overview.
#[derive(Debug, Default, Deserialize)]
struct OverviewQuery {
    namespace: Option<String>,
    tenant: Option<String>,
}

impl OverviewQuery {
    fn matches(&self, namespace: &str, tenants: &[TenantReport]) -> bool {
        let here = self.namespace.as_ref().is_none_or(|wanted| wanted == namespace);
        let named = |tenant: &str| tenants.iter().any(|report| name(report) == tenant);
        here && self.tenant.as_deref().is_none_or(named)
    }
}

fn name(report: &TenantReport) -> &str {
    match report {
        TenantReport::State(state) => &state.tenant.name,
        TenantReport::Unreachable { name, .. } => name,
    }
}

async fn get_overview(
    State(leads): State<LeaderFlag>,
    Query(asked): Query<OverviewQuery>,
) -> axum::response::Response {
    let Some(operator) = leads.get() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "this replica is not the leader\n").into_response();
    };
    let gpus = operator.overview(|namespace, tenants| asked.matches(namespace, tenants));
    let at_unix_ms = unix_ms(SystemTime::now());
    let operator = env!("CARGO_PKG_VERSION").to_owned();
    Json(Overview { at_unix_ms, operator, gpus, ..Overview::default() }).into_response()
}
