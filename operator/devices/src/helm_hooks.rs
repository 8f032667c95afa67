//! Implements the chart's hooks: the Job before it is uninstalled, and the check of `helm test`.

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

/// Name of the operator's Deployment, and label selector of its pods.
const OPERATOR: &str = "sluice-operator";
const OPERATOR_PODS: &str = "app.kubernetes.io/name=sluice-operator";
/// Prefix of Sluice's finalizers.
const FINALIZERS: &str = "sluice.dev/";
/// Label of tenants' pods.
const TENANT_LABEL: &str = "sluice.dev/tenant";
/// Time between two checks for a change that another process makes.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Time limit for the operator's answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// The release that is being uninstalled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// Name of the release.
    pub name: String,
    /// Namespace of the release.
    pub namespace: String,
    /// Revision of the release that the Job belongs to.
    pub revision: u32,
}

impl Release {
    /// Returns the commands that recover from a refusal. helm marks a release `uninstalling` before the Job runs and
    /// leaves it so. In that state the release cannot be upgraded, but it can be rolled back or uninstalled again.
    pub fn recovery_hint(&self) -> String {
        let Release { name, namespace, revision } = self;
        format!(
            "Nothing has changed in the cluster, but the release has the status `uninstalling`, and helm does not upgrade it in this state.\n\
             To keep it:\n\
             \x20 helm rollback {name} {revision} --namespace {namespace}\n\
             To uninstall it when no tenant and no pod of a tenant is left:\n\
             \x20 helm uninstall {name} --namespace {namespace}\n\
             To uninstall it and keep the tenants:\n\
             \x20 helm rollback {name} {revision} --namespace {namespace}\n\
             \x20 helm upgrade {name} CHART --namespace {namespace} --reset-then-reuse-values --set hooks.keepTenants=true\n\
             \x20 helm uninstall {name} --namespace {namespace}"
        )
    }
}

/// Tenants exist: without the driver their pods cannot terminate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{count} ModelTenants exist, the first is {first}. Without the driver their pods would continue to \
     serve but could not be deleted. Delete the tenants first (kubectl delete modeltenants), or keep them"
)]
pub struct TenantsRemain {
    count: usize,
    first: String,
}

/// Pods of deleted tenants are still terminating and need the driver for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{count} pods of tenants are terminating, the first is {first}, and without the driver they could not \
     be deleted. Wait until they are deleted (kubectl get pods -A -l {TENANT_LABEL}), or keep them"
)]
pub struct PodsRemain {
    count: usize,
    first: String,
}

/// Whether a retry a few seconds later would fail in the same way, because a person has to act or wait first. A retry
/// begins when half of the time is over: it could stop the operator and have no time for the rest.
pub fn is_final(error: &anyhow::Error) -> bool {
    error.is::<TenantsRemain>() || error.is::<PodsRemain>()
}

/// Checks that no tenants exist, except those that are being deleted.
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

/// Waits until no tenant's pod exists, at most for `limit`.
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

/// Stops the operator in `namespace`, then removes its finalizers from all pools (tenants have none), so that no
/// remaining object waits for the stopped operator. Waits at most half of `limit` for the operator's pods to
/// terminate, then continues. Returns the number of changed objects.
///
/// # Errors
/// The API server does not answer or refuses, or `limit` is over.
pub async fn uninstall(client: &Client, namespace: &str, limit: Duration) -> anyhow::Result<usize> {
    tokio::time::timeout(limit, async {
        stop_operator(client, namespace, Instant::now() + limit / 2).await?;
        remove_finalizers::<GpuPool>(client).await.context("GpuPools")
    })
    .await
    .with_context(|| format!("not complete after {} s", limit.as_secs()))?
}

/// Scales the operator down, because a running operator adds its finalizers again.
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
            tracing::warn!("the pods of the operator still run: continuing without them");
            break;
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
    Ok(())
}

fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// Removes Sluice's finalizers from all objects of a kind and returns the number of changed objects; 0 if the cluster
/// does not have this kind.
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

/// Removes Sluice's finalizers from `object` and keeps foreign ones. Returns `false` if the object no longer exists.
async fn remove_finalizers_of(
    client: &Client,
    resource: &ApiResource,
    object: &PartialObjectMeta<DynamicObject>,
) -> anyhow::Result<bool> {
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, resource);
    let kept: Vec<_> = object.finalizers().iter().filter(|name| !is_own_finalizer(name)).collect();
    // With the resource version, a finalizer that another client adds concurrently is not lost.
    let patch = json!({"metadata": {"finalizers": kept, "resourceVersion": object.resource_version()}});
    match api.patch_metadata(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(_) => {
            tracing::info!(kind = resource.kind, namespace, name, "removed the finalizer");
            Ok(true)
        }
        Err(error) if is_not_found(&error) => Ok(false),
        Err(error) => Err(error).with_context(|| format!("{} {namespace}/{name}", resource.kind)),
    }
}

/// Checks that an installation works: the API server serves both kinds, the operator at `operator` (HOST:PORT) is
/// ready, and, with `devices`, at least one node offers devices. Retries until `limit` is over, because pods and
/// devices start some time after the installation.
///
/// # Errors
/// The first failure of the last attempt.
pub async fn check(client: &Client, operator: &str, devices: bool, limit: Duration) -> anyhow::Result<()> {
    let until = Instant::now() + limit;
    loop {
        match check_once(client, operator, devices).await {
            Err(error) if Instant::now() + RETRY_INTERVAL < until => {
                tracing::info!("the check failed and is repeated: {error:#}")
            }
            last => return last,
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

async fn check_once(client: &Client, operator: &str, devices: bool) -> anyhow::Result<()> {
    let one = ListParams::default().limit(1);
    Api::<GpuPool>::all(client.clone()).list_metadata(&one).await.context("cannot list GpuPools")?;
    let tenants = Api::<ModelTenant>::all(client.clone()).list_metadata(&one).await;
    tenants.context("cannot list ModelTenants")?;
    let answer = tokio::time::timeout(PROBE_TIMEOUT, check_operator_ready(operator)).await;
    answer.context("the operator did not answer")?.context(operator.to_owned())?;
    if devices {
        let slices = Api::<ResourceSlice>::all(client.clone());
        let ours =
            slices.list_metadata(&ListParams::default().fields(&format!("spec.driver={DRIVER}"))).await?;
        ensure!(
            !ours.items.is_empty(),
            "no node offers devices of {DRIVER}: check the pods of the DaemonSet sluice-devices"
        );
    }
    Ok(())
}

async fn check_operator_ready(operator: &str) -> anyhow::Result<()> {
    let address: SocketAddr = tokio::net::lookup_host(operator)
        .await?
        .next()
        .context("the name of the operator resolves to no address")?;
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
