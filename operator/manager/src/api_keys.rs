//! Annotates pods with the version of their API key Secret when it changes.
//!
//! A kubelet syncs the files of a pod about every 90 s, and at once when the pod object changes. A revoked key must
//! fail within a minute. The annotation holds the Secret's resource version. The operator reads only the metadata of
//! a Secret, by the name in a tenant's spec, which needs no right to list or watch Secrets.
//!
//! No state is kept: a pod without an annotation was created with the Secret's contents at that time and lacks later
//! changes. Certificates do not need this: old ones stay valid for hours after renewal.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{Api, Patch, PatchParams};
use kube::core::ObjectMeta;
use serde_json::json;
use sluice_plan::objects::{KEYS_VERSION, MANAGER};
use sluice_plan::observed::ObservedPod;
use tokio::time::{Instant, sleep, sleep_until};

use crate::cache::{NamespacedName, PoolKey};
use crate::reconcile::Reconciler;

/// Time between the starts of two checks of a Secret, unless there are very many.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_secs(15);
/// Secrets that are read at a time; the next batch follows after [`BATCH_PAUSE`]: 5,000 take 25 s.
const BATCH_SIZE: usize = 20;
const BATCH_PAUSE: Duration = Duration::from_millis(100);

/// The version of a Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SecretVersion {
    resource_version: String,
    /// Time of the last change, seconds since 1970; `None` = not recorded.
    changed_at: Option<i64>,
}

impl SecretVersion {
    fn from_metadata(secret: &ObjectMeta) -> Option<SecretVersion> {
        let times = secret.managed_fields.iter().flatten().filter_map(|fields| fields.time.as_ref());
        let changed_at = times.chain(&secret.creation_timestamp).map(|time| time.0.as_second()).max();
        // Without managed fields the change times are missing.
        let changed_at = changed_at.filter(|_| secret.managed_fields.is_some());
        Some(SecretVersion { resource_version: secret.resource_version.clone()?, changed_at })
    }

    /// Whether the kubelet may not have synced it to a pod yet, and the pod lacks its annotation.
    fn needs_annotation(&self, pod: &ObservedPod) -> bool {
        match &pod.keys_version {
            Some(annotated) => *annotated != self.resource_version,
            None => self.changed_at.is_none_or(|changed_at| changed_at >= pod.created_at),
        }
    }
}

impl Reconciler {
    /// Checks the API key Secrets of all tenants every `interval`, forever.
    pub async fn watch_api_keys(&self, interval: Duration) {
        loop {
            let next = Instant::now() + interval;
            let secrets: Vec<_> = self.api_key_secrets().into_iter().collect();
            for some in secrets.chunks(BATCH_SIZE) {
                join_all(some.iter().map(|(secret, tenants)| self.check_secret(secret, tenants))).await;
                sleep(BATCH_PAUSE).await;
            }
            sleep_until(next).await;
        }
    }

    /// Returns the Secrets in tenants' specs, with the tenants of each.
    fn api_key_secrets(&self) -> BTreeMap<NamespacedName, Vec<(PoolKey, String)>> {
        let named = self.cache.tenants.filter_map(|unit, tenant| {
            let secret = tenant.spec.access.api_keys_secret_ref.as_ref()?;
            let at = NamespacedName::new(unit.namespace.clone(), secret.name.clone());
            Some((at, (unit.clone(), tenant.metadata.name.clone()?)))
        });
        let mut secrets = BTreeMap::<NamespacedName, Vec<(PoolKey, String)>>::new();
        for (secret, tenant) in named {
            secrets.entry(secret).or_default().push(tenant);
        }
        secrets
    }

    async fn check_secret(&self, secret: &NamespacedName, tenants: &[(PoolKey, String)]) {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &secret.namespace);
        let version = match api.get_metadata_opt(&secret.name).await {
            Ok(found) => found.and_then(|found| SecretVersion::from_metadata(&found.metadata)),
            Err(error) => {
                let (namespace, name) = (&secret.namespace, &secret.name);
                tracing::warn!(
                    namespace, secret = name, %error,
                    "cannot read the Secret of API keys, so a change of keys may be missed"
                );
                None
            }
        };
        // A deleted Secret changes nothing: the kubelet keeps its files.
        let Some(version) = version else { return };
        for (unit, tenant) in tenants {
            let mut pods = Vec::new();
            self.cache.pods.for_each(unit, |_, pod| {
                let concerned = pod.tenant == *tenant && pod.is_current() && version.needs_annotation(pod);
                pods.extend(concerned.then(|| (pod.name.clone(), pod.uid.clone())));
            });
            for (name, uid) in pods {
                self.annotate_pod(unit, &name, &uid, &version).await;
            }
        }
    }

    async fn annotate_pod(&self, unit: &PoolKey, pod: &str, uid: &str, version: &SecretVersion) {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &unit.namespace);
        let annotations = json!({KEYS_VERSION: version.resource_version});
        let patch = json!({"metadata": {"uid": uid, "annotations": annotations}});
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        match api.patch_metadata(pod, &params, &Patch::Merge(patch)).await {
            Ok(_) => tracing::info!(
                namespace = unit.namespace,
                pod,
                "API keys changed: pod annotated so that the kubelet updates its files"
            ),
            Err(error) => {
                tracing::warn!(
                    namespace = unit.namespace, pod, %error,
                    "API keys changed, but the pod could not be annotated"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, Time};
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    fn at(second: i64) -> Option<Time> {
        Some(Time(Timestamp::from_second(second).unwrap()))
    }

    fn secret(changed_at: &[i64]) -> SecretVersion {
        let fields =
            changed_at.iter().map(|second| ManagedFieldsEntry { time: at(*second), ..Default::default() });
        let metadata = ObjectMeta {
            resource_version: Some("7".into()),
            creation_timestamp: at(100),
            managed_fields: Some(fields.collect()),
            ..ObjectMeta::default()
        };
        SecretVersion::from_metadata(&metadata).unwrap()
    }

    fn pod(made_at: i64, annotated: Option<&str>) -> ObservedPod {
        ObservedPod {
            created_at: made_at,
            keys_version: annotated.map(str::to_owned),
            ..ObservedPod::default()
        }
    }

    /// A revoked key has a minute, of which the kubelet and the sidecar take at most 20 s.
    #[test]
    fn changed_keys_of_thousands_of_tenants_are_found_in_time() {
        let batches = u32::try_from(5_000_usize.div_ceil(BATCH_SIZE)).unwrap();
        let longest = POLL_INTERVAL.max(BATCH_PAUSE * batches);
        assert!(longest < Duration::from_secs(40), "{longest:?}");
    }

    #[test]
    fn unannotated_pod_needs_versions_newer_than_pod() {
        assert!(!secret(&[]).needs_annotation(&pod(101, None)));
        assert!(!secret(&[150, 180]).needs_annotation(&pod(200, None)));
        assert!(secret(&[250, 180]).needs_annotation(&pod(200, None)));
        assert!(secret(&[200]).needs_annotation(&pod(200, None)), "within the same second it may lack it");
    }

    #[test]
    fn annotated_pod_needs_any_other_version() {
        assert!(!secret(&[250]).needs_annotation(&pod(200, Some("7"))));
        assert!(secret(&[250]).needs_annotation(&pod(200, Some("6"))));
        assert!(secret(&[150]).needs_annotation(&pod(200, Some("6"))));
    }

    #[test]
    fn secret_without_change_time_annotates_each_pod_once() {
        let metadata = ObjectMeta {
            resource_version: Some("7".into()),
            creation_timestamp: at(100),
            ..ObjectMeta::default()
        };
        let version = SecretVersion::from_metadata(&metadata).unwrap();
        assert!(version.needs_annotation(&pod(200, None)));
        assert!(!version.needs_annotation(&pod(200, Some("7"))));
    }
}
