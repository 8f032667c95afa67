//! What the chart does at its own events: before it is uninstalled, and when it is tested.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind, PartialObjectMeta};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;
use sluice_types::{GROUP, GpuPool, ModelTenant, VERSION};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use crate::DRIVER;

/// The operator's Deployment, and the label of its pods.
const OPERATOR: &str = "sluice-operator";
const OPERATOR_PODS: &str = "app.kubernetes.io/name=sluice-operator";
/// Start of the names of all finalizers of ours.
const FINALIZERS: &str = "sluice.dev/";
/// Label of tenants' pods.
const TENANT_LABEL: &str = "sluice.dev/tenant";
/// Time between two looks at something that somebody else brings about.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Time for the operator's answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// The release that is being uninstalled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// The revision whose Job this is.
    pub revision: u32,
}

impl Release {
    /// What to do after the Job has refused. helm marks a release `uninstalling` before its Job runs and leaves it so: it
    /// takes no upgrade then, but a rollback, and it can be uninstalled again.
    pub fn recovery_hint(&self) -> String {
        let Release { name, namespace, revision } = self;
        format!(
            "Nothing has changed in the cluster, but helm calls the release `uninstalling`, and does not upgrade it like that.\n\
             To keep it:\n\
             \x20 helm rollback {name} {revision} --namespace {namespace}\n\
             To uninstall it once nothing of tenants is left:\n\
             \x20 helm uninstall {name} --namespace {namespace}\n\
             To uninstall it and leave tenants as they are:\n\
             \x20 helm rollback {name} {revision} --namespace {namespace}\n\
             \x20 helm upgrade {name} CHART --namespace {namespace} --reset-then-reuse-values --set hooks.keepTenants=true\n\
             \x20 helm uninstall {name} --namespace {namespace}"
        )
    }
}

/// Tenants that are there: without the driver their pods could not end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{count} ModelTenants are there, {first} among them. Their pods would go on serving, and without the driver none of them \
     could end. Delete the tenants first (kubectl delete modeltenants), or leave them as they are"
)]
pub struct TenantsRemain {
    count: usize,
    first: String,
}

/// Pods of tenants that are gone end by themselves, and need the driver for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{count} pods of tenants are still ending, {first} among them, and without the driver they could not. Wait until they have \
     gone (kubectl get pods -A -l {TENANT_LABEL}), or leave them as they are"
)]
pub struct PodsRemain {
    count: usize,
    first: String,
}

/// Whether another try, a few seconds later, would say the same: somebody has to do something first, or to wait. Else a second
/// try begins when half of the time is over, and could stop the operator and have no time for the rest.
pub fn is_final(error: &anyhow::Error) -> bool {
    error.is::<TenantsRemain>() || error.is::<PodsRemain>()
}

/// Sees that there are no tenants, but for those that are being deleted.
///
/// # Errors
/// [`TenantsRemain`], or the API server does not answer.
pub async fn ensure_no_tenants(client: &Client) -> anyhow::Result<()> {
    let all: Api<ModelTenant> = Api::all(client.clone());
    let found = match all.list_metadata(&ListParams::default()).await {
        Err(error) if is_not_found(&error) => return Ok(()),
        found => found.context("ModelTenants")?.items,
    };
    let staying: Vec<_> = found.iter().filter(|one| one.metadata.deletion_timestamp.is_none()).collect();
    match staying.first() {
        Some(first) => Err(TenantsRemain { count: staying.len(), first: title(*first) }.into()),
        None => Ok(()),
    }
}

/// Waits for the pods of tenants that are gone, at most for `limit`.
///
/// # Errors
/// [`PodsRemain`], or the API server does not answer.
pub async fn wait_for_no_pods(client: &Client, limit: Duration) -> anyhow::Result<()> {
    let (all, until) = (Api::<Pod>::all(client.clone()), Instant::now() + limit);
    let of_tenants = ListParams::default().labels(TENANT_LABEL);
    loop {
        let found = all.list_metadata(&of_tenants).await.context("pods of tenants")?.items;
        let Some(first) = found.first() else { return Ok(()) };
        if Instant::now() >= until {
            return Err(PodsRemain { count: found.len(), first: title(first) }.into());
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

fn title<K: ResourceExt>(object: &K) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}

/// Stops the operator in `namespace`, then takes its finalizers off all pools (tenants have none): nothing that stays behind
/// waits for somebody who is gone. Waits for the operator's end for half of `limit`, and goes on without it.
///
/// # Errors
/// The API server does not answer, or refuses.
pub async fn uninstall(client: &Client, namespace: &str, limit: Duration) -> anyhow::Result<usize> {
    tokio::time::timeout(limit, async {
        stop_operator(client, namespace, Instant::now() + limit / 2).await?;
        remove_finalizers::<GpuPool>(client).await.context("GpuPools")
    })
    .await
    .with_context(|| format!("not done in {} seconds", limit.as_secs()))?
}

/// An operator that runs would put its finalizers back.
async fn stop_operator(client: &Client, namespace: &str, until: Instant) -> anyhow::Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let none = Patch::Merge(json!({"spec": {"replicas": 0}}));
    match deployments.patch_scale(OPERATOR, &PatchParams::default(), &none).await {
        Ok(_) => {}
        Err(error) if is_not_found(&error) => return Ok(()),
        Err(error) => return Err(error).context("scaling the operator down"),
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let ours = ListParams::default().labels(OPERATOR_PODS);
    while !pods.list_metadata(&ours).await.context("the operator's pods")?.items.is_empty() {
        if Instant::now() >= until {
            tracing::warn!("the operator's pods are still there: going on without waiting for them");
            break;
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
    Ok(())
}

fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// Takes our finalizers off all objects of a kind; says off how many. Kinds that are not there have none.
async fn remove_finalizers<K>(client: &Client) -> anyhow::Result<usize>
where
    K: Resource<DynamicType = ()>,
{
    let kind = GroupVersionKind::gvk(GROUP, VERSION, &K::kind(&()));
    let resource = ApiResource::from_gvk_with_plural(&kind, &K::plural(&()));
    let all: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let objects = match all.list_metadata(&ListParams::default()).await {
        Ok(list) => list.items,
        Err(error) if is_not_found(&error) => return Ok(0),
        Err(error) => return Err(error.into()),
    };
    let mut released = 0;
    for object in
        objects.iter().filter(|object| object.finalizers().iter().any(|name| is_own_finalizer(name)))
    {
        released += usize::from(remove_finalizers_of(client, &resource, object).await?);
    }
    Ok(released)
}

fn is_own_finalizer(finalizer: &str) -> bool {
    finalizer.starts_with(FINALIZERS)
}

/// Foreign finalizers stay. `false` if the object is gone meanwhile.
async fn remove_finalizers_of(
    client: &Client,
    resource: &ApiResource,
    object: &PartialObjectMeta<DynamicObject>,
) -> anyhow::Result<bool> {
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, resource);
    let kept: Vec<_> = object.finalizers().iter().filter(|name| !is_own_finalizer(name)).collect();
    // With the version, so that a finalizer that somebody adds meanwhile is not lost.
    let patch = json!({"metadata": {"finalizers": kept, "resourceVersion": object.resource_version()}});
    match api.patch_metadata(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(_) => {
            tracing::info!(kind = resource.kind, namespace, name, "finalizer taken off");
            Ok(true)
        }
        Err(error) if is_not_found(&error) => Ok(false),
        Err(error) => Err(error).with_context(|| format!("{} {namespace}/{name}", resource.kind)),
    }
}

/// Whether an installation works: the API server serves both kinds, the operator at `operator` (HOST:PORT) is ready, and,
/// with `devices`, some node offers devices. Looks again until `limit` is over: right after installing, pods and devices are
/// on their way.
///
/// # Errors
/// The first thing that does not work at the last look.
pub async fn check(client: &Client, operator: &str, devices: bool, limit: Duration) -> anyhow::Result<()> {
    let until = Instant::now() + limit;
    loop {
        match check_once(client, operator, devices).await {
            Err(error) if Instant::now() + RETRY_INTERVAL < until => tracing::info!("not yet: {error:#}"),
            last => return last,
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

async fn check_once(client: &Client, operator: &str, devices: bool) -> anyhow::Result<()> {
    let one = ListParams::default().limit(1);
    Api::<GpuPool>::all(client.clone()).list_metadata(&one).await.context("GpuPools cannot be listed")?;
    let tenants = Api::<ModelTenant>::all(client.clone()).list_metadata(&one).await;
    tenants.context("ModelTenants cannot be listed")?;
    let answer = tokio::time::timeout(PROBE_TIMEOUT, check_operator_ready(operator)).await;
    answer.context("the operator does not answer")?.context(operator.to_owned())?;
    if devices {
        let slices = Api::<ResourceSlice>::all(client.clone());
        let ours =
            slices.list_metadata(&ListParams::default().fields(&format!("spec.driver={DRIVER}"))).await?;
        ensure!(
            !ours.items.is_empty(),
            "no node offers devices of {DRIVER}: see the DaemonSet sluice-devices"
        );
    }
    Ok(())
}

async fn check_operator_ready(operator: &str) -> anyhow::Result<()> {
    let address: SocketAddr =
        tokio::net::lookup_host(operator).await?.next().context("the name has no address")?;
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let status = answer.split(' ').nth(1).unwrap_or_default();
    if status != "200" {
        bail!("/readyz answers {status}, not 200");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_objects_are_a_final_error() {
        let (count, first) = (1, "a/b".to_owned());
        assert!(is_final(&TenantsRemain { count, first: first.clone() }.into()));
        assert!(is_final(&anyhow::Error::from(PodsRemain { count, first })));
        assert!(!is_final(&anyhow::anyhow!("the API server does not answer")));
    }
}
