//! Secrets of API keys: pods whose Secret has changed are annotated with its version.
//!
//! A kubelet looks at the files of a pod about every 90 s, and at once when the pod object changes. A revoked key must fail
//! within a minute. The annotation holds the Secret's resource version. The operator asks for the metadata of a Secret alone,
//! by the name that a tenant gives: that needs no right to list or to watch Secrets.
//!
//! Nothing has to be remembered: a pod that has no annotation was made with the contents of then, so it lacks what was changed
//! since. Certificates need none of this: those of before are good for hours after they were renewed.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{Api, Patch, PatchParams};
use kube::core::ObjectMeta;
use serde_json::json;
use sluice_plan::objects::{KEYS_VERSION, MANAGER};
use sluice_plan::seen::PodSeen;
use tokio::time::{Instant, sleep, sleep_until};

use crate::reconcile::Operator;
use crate::world::{Name, Unit};

/// Between the beginnings of two looks at a Secret, unless there are very many.
const LOOK_EVERY: Duration = Duration::from_secs(15);
/// So many Secrets are asked for at a time, and again after [`PAUSE`]: 5,000 take 25 s.
const AT_ONCE: usize = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// What is kept of a Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Version {
    resource_version: String,
    /// When it was changed last, seconds since 1970; `None` = it does not say.
    changed_at: Option<i64>,
}

impl Version {
    fn of(secret: &ObjectMeta) -> Option<Version> {
        let times = secret.managed_fields.iter().flatten().filter_map(|fields| fields.time.as_ref());
        let changed_at = times.chain(&secret.creation_timestamp).map(|time| time.0.as_second()).max();
        // Whoever took the fields' owners away took their times along.
        let changed_at = changed_at.filter(|_| secret.managed_fields.is_some());
        Some(Version { resource_version: secret.resource_version.clone()?, changed_at })
    }

    /// Whether the kubelet may not have brought it to a pod yet, and the pod is not annotated with it.
    fn is_new_to(&self, pod: &PodSeen) -> bool {
        match &pod.keys_version {
            Some(told) => *told != self.resource_version,
            None => self.changed_at.is_none_or(|changed_at| changed_at >= pod.made_at),
        }
    }
}

impl Operator {
    /// Looks at the Secrets of API keys of all tenants, for ever.
    pub async fn follow_keys(&self) {
        loop {
            let next = Instant::now() + LOOK_EVERY;
            let secrets: Vec<_> = self.secrets_of_keys().into_iter().collect();
            for some in secrets.chunks(AT_ONCE) {
                join_all(some.iter().map(|(secret, tenants)| self.look_at(secret, tenants))).await;
                sleep(PAUSE).await;
            }
            sleep_until(next).await;
        }
    }

    /// The Secrets that tenants name, and who names each.
    fn secrets_of_keys(&self) -> BTreeMap<Name, Vec<(Unit, String)>> {
        let named = self.world.tenants.all(|unit, tenant| {
            let secret = tenant.spec.access.api_keys_secret_ref.as_ref()?;
            let at = Name::new(unit.namespace.clone(), secret.name.clone());
            Some((at, (unit.clone(), tenant.metadata.name.clone()?)))
        });
        let mut secrets = BTreeMap::<Name, Vec<(Unit, String)>>::new();
        for (secret, tenant) in named {
            secrets.entry(secret).or_default().push(tenant);
        }
        secrets
    }

    async fn look_at(&self, secret: &Name, tenants: &[(Unit, String)]) {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &secret.namespace);
        let version = match api.get_metadata_opt(&secret.name).await {
            Ok(found) => found.and_then(|found| Version::of(&found.metadata)),
            Err(error) => {
                let (namespace, name) = (&secret.namespace, &secret.name);
                tracing::warn!(namespace, secret = name, %error, "whether API keys have changed is not known");
                None
            }
        };
        // What is gone changes nothing: the kubelet keeps what it has brought.
        let Some(version) = version else { return };
        for (unit, tenant) in tenants {
            let mut pods = Vec::new();
            self.world.pods.each_of(unit, |_, pod| {
                let concerned = pod.tenant == *tenant && pod.stays() && version.is_new_to(pod);
                pods.extend(concerned.then(|| (pod.name.clone(), pod.uid.clone())));
            });
            for (name, uid) in pods {
                self.tell_kubelet(unit, &name, &uid, &version).await;
            }
        }
    }

    async fn tell_kubelet(&self, unit: &Unit, pod: &str, uid: &str, version: &Version) {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &unit.namespace);
        let annotations = json!({KEYS_VERSION: version.resource_version});
        let patch = json!({"metadata": {"uid": uid, "annotations": annotations}});
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        match api.patch_metadata(pod, &params, &Patch::Merge(patch)).await {
            Ok(_) => tracing::info!(namespace = unit.namespace, pod, "its API keys have changed"),
            Err(error) => {
                tracing::warn!(namespace = unit.namespace, pod, %error, "the pod is not annotated with changed keys");
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

    fn secret(changed_at: &[i64]) -> Version {
        let fields =
            changed_at.iter().map(|second| ManagedFieldsEntry { time: at(*second), ..Default::default() });
        let metadata = ObjectMeta {
            resource_version: Some("7".into()),
            creation_timestamp: at(100),
            managed_fields: Some(fields.collect()),
            ..ObjectMeta::default()
        };
        Version::of(&metadata).unwrap()
    }

    fn pod(made_at: i64, told: Option<&str>) -> PodSeen {
        PodSeen { made_at, keys_version: told.map(str::to_owned), ..PodSeen::default() }
    }

    #[test]
    fn a_pod_that_was_not_told_lacks_what_was_changed_since_it_was_made() {
        assert!(!secret(&[]).is_new_to(&pod(101, None)));
        assert!(!secret(&[150, 180]).is_new_to(&pod(200, None)));
        assert!(secret(&[250, 180]).is_new_to(&pod(200, None)));
        assert!(secret(&[200]).is_new_to(&pod(200, None)), "within the same second it may lack it");
    }

    #[test]
    fn a_pod_that_was_told_lacks_every_other_version() {
        assert!(!secret(&[250]).is_new_to(&pod(200, Some("7"))));
        assert!(secret(&[250]).is_new_to(&pod(200, Some("6"))));
        assert!(secret(&[150]).is_new_to(&pod(200, Some("6"))));
    }

    #[test]
    fn of_a_secret_that_does_not_say_when_it_was_changed_every_pod_is_told_once() {
        let metadata = ObjectMeta {
            resource_version: Some("7".into()),
            creation_timestamp: at(100),
            ..ObjectMeta::default()
        };
        let version = Version::of(&metadata).unwrap();
        assert!(version.is_new_to(&pod(200, None)));
        assert!(!version.is_new_to(&pod(200, Some("7"))));
    }
}
