//! Reads a tenant from the API server.

use anyhow::{Context, bail};
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;
use sluice_types::{GpuPool, ModelTenant};

use super::{Cluster, EventSummary, TenantWithEvents};

/// Lists all pools and tenants of a namespace.
///
/// # Errors
/// The API server does not answer.
pub async fn list_objects(
    cluster: &Cluster,
    namespace: &str,
) -> anyhow::Result<(Vec<GpuPool>, Vec<ModelTenant>)> {
    let pools: Api<GpuPool> = Api::namespaced(cluster.client.clone(), namespace);
    let pools = pools.list(&ListParams::default()).await;
    let pools = pools.with_context(|| format!("cannot read the GpuPools of namespace {namespace}"))?;
    let tenants: Api<ModelTenant> = Api::namespaced(cluster.client.clone(), namespace);
    let tenants = tenants.list(&ListParams::default()).await;
    let tenants =
        tenants.with_context(|| format!("cannot read the ModelTenants of namespace {namespace}"))?;
    Ok((pools.items, tenants.items))
}

/// Finds the tenant `name` and its Events.
///
/// # Errors
/// There is no such tenant, or the API server does not answer.
pub async fn find_tenant(cluster: &Cluster, name: &str) -> anyhow::Result<TenantWithEvents> {
    let namespace = &cluster.namespace;
    let tenants: Api<ModelTenant> = Api::namespaced(cluster.client.clone(), namespace);
    let read = tenants.get_opt(name).await;
    let read = read.with_context(|| format!("cannot read ModelTenant {namespace}/{name}"))?;
    let Some(tenant) = read else {
        bail!("no ModelTenant `{name}` in namespace `{namespace}`; choose another namespace with -n")
    };
    let events = events(cluster, &tenant).await.map_err(|error| error.to_string());
    Ok(TenantWithEvents { tenant, events })
}

async fn events(cluster: &Cluster, tenant: &ModelTenant) -> Result<Vec<EventSummary>, kube::Error> {
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    // Select by uid, to exclude Events of an earlier tenant of the same name.
    let uid = tenant.metadata.uid.as_deref().unwrap_or_default();
    let about = format!("regarding.kind=ModelTenant,regarding.uid={uid}");
    let mut summaries: Vec<_> =
        events.list(&ListParams::default().fields(&about)).await?.items.iter().map(event_summary).collect();
    summaries.sort_by_key(|event| event.at_unix_s);
    Ok(summaries)
}

fn event_summary(event: &Event) -> EventSummary {
    let series = event.series.as_ref();
    let last = series.map(|series| series.last_observed_time.0);
    // Writers of the older Events API do not set the newer fields.
    let at = last
        .or_else(|| event.event_time.as_ref().map(|time| time.0))
        .or_else(|| event.deprecated_last_timestamp.as_ref().map(|time| time.0))
        .or_else(|| event.metadata.creation_timestamp.as_ref().map(|time| time.0));
    EventSummary {
        at_unix_s: at.map_or(0, |at| at.as_second()),
        is_warning: event.type_.as_deref() == Some("Warning"),
        count: series.map(|series| series.count).or(event.deprecated_count).unwrap_or(1),
        reason: event.reason.clone().unwrap_or_default(),
        note: event.note.clone().unwrap_or_default(),
    }
}
