//! A child object: the metadata that shows whether it is unchanged since it was applied.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use sluice_common::hash::fnv1a;
use sluice_plan::objects::{CLAIM_NAME, MANAGER, POOL, SLOT, TENANT, read_digest};

use super::pool_key::PoolKey;

/// A child of a pool or of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedChild {
    pub uid: String,
    /// Its resource version; the higher of two is the later.
    pub version: u64,
    /// Digest of its owner's uid, because there are as many copies as children; 0 = no owner.
    pub owner: u64,
    /// Digest of what was applied.
    pub digest: Option<u64>,
    /// Digest of its managed fields.
    pub managed_fields: u64,
    /// The same after the last apply; `None` = this process has not applied it.
    pub applied_fields: Option<u64>,
    /// Another client changed it since it was applied, or may have.
    pub has_drifted: bool,
    /// Deletion is requested.
    pub is_deleting: bool,
    /// Its tenant, if it is a tenant's.
    pub tenant: Option<String>,
    /// Its slot, if it is a slot's.
    pub slot: Option<u32>,
    /// Claim of a Deployment.
    pub claim: Option<String>,
}

impl ObservedChild {
    /// Whether two versions differ in no relevant field: a status update changes only the version.
    pub fn is_equivalent(&self, other: &ObservedChild) -> bool {
        let ours = |child: &'_ ObservedChild| {
            (child.digest, child.managed_fields, child.applied_fields, child.has_drifted, child.is_deleting)
        };
        let named = self.uid == other.uid && self.owner == other.owner;
        let placed = self.tenant == other.tenant && self.slot == other.slot && self.claim == other.claim;
        named && placed && ours(self) == ours(other)
    }

    /// Whether its owner is the one with this uid.
    pub fn is_owned_by(&self, owner: &str) -> bool {
        self.owner == fnv1a(owner.bytes())
    }

    /// Whether this is a later version of the same object than `other`.
    pub fn is_newer_than(&self, other: &ObservedChild) -> bool {
        self.uid == other.uid && self.version > other.version
    }

    /// Returns the pool in the labels.
    pub fn pool_key(metadata: &ObjectMeta) -> Option<PoolKey> {
        let pool = metadata.labels.as_ref()?.get(POOL)?.clone();
        Some(PoolKey { namespace: metadata.namespace.clone()?, pool })
    }

    /// Returns the relevant parts of `metadata`; `before` is the previous state.
    pub fn observe(metadata: &ObjectMeta, before: Option<&ObservedChild>) -> ObservedChild {
        let empty = BTreeMap::new();
        let labels = metadata.labels.as_ref().unwrap_or(&empty);
        let annotations = metadata.annotations.as_ref().unwrap_or(&empty);
        let owner = metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
        let mut child = ObservedChild {
            uid: metadata.uid.clone().unwrap_or_default(),
            version: resource_version(metadata),
            owner: owner.map_or(0, |owner| fnv1a(owner.uid.bytes())),
            digest: read_digest(annotations),
            managed_fields: 0,
            applied_fields: before
                .filter(|before| Some(&before.uid) == metadata.uid.as_ref())
                .and_then(|one| one.applied_fields),
            has_drifted: false,
            is_deleting: metadata.deletion_timestamp.is_some(),
            tenant: labels.get(TENANT).cloned(),
            slot: labels.get(SLOT).and_then(|slot| slot.parse().ok()),
            claim: annotations.get(CLAIM_NAME).cloned(),
        };
        let managers = metadata.managed_fields.as_deref().unwrap_or_default();
        child.managed_fields = managed_fields_digest(managers);
        child.has_drifted = has_drifted(&child, before, managers);
        child
    }
}

/// Returns the version of an object. The API server's versions are increasing numbers (KEP-5504).
pub fn resource_version(metadata: &ObjectMeta) -> u64 {
    metadata.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Returns the digest of managers and fields without status. The time of our own entry only records our last change.
fn managed_fields_digest(managers: &[ManagedFieldsEntry]) -> u64 {
    let entries = managers.iter().filter(|entry| is_relevant(entry));
    let text: String = entries
        .map(|entry| {
            let time = entry.time.as_ref().filter(|_| !is_own_manager(entry));
            format!("{:?} {:?} {time:?} {:?};", entry.manager, entry.operation, entry.fields_v1)
        })
        .collect();
    fnv1a(text.bytes())
}

/// Whether another manager set a field after us, or the managed fields of a known object differ although the same was
/// applied. A field removed while no watch was active is not detected: the next change of the spec restores it.
fn has_drifted(
    child: &ObservedChild,
    before: Option<&ObservedChild>,
    managers: &[ManagedFieldsEntry],
) -> bool {
    match before {
        Some(before) if before.uid == child.uid && before.digest == child.digest => {
            before.has_drifted || before.managed_fields != child.managed_fields
        }
        _ => {
            let ours = managers
                .iter()
                .filter(|entry| is_own_manager(entry))
                .filter_map(|entry| entry.time.clone())
                .max();
            let mut others = managers.iter().filter(|entry| is_relevant(entry) && !is_own_manager(entry));
            others.any(|entry| entry.time >= ours)
        }
    }
}

fn is_own_manager(entry: &ManagedFieldsEntry) -> bool {
    entry.manager.as_deref() == Some(MANAGER) && entry.operation.as_deref() == Some("Apply")
}

/// Status and metadata such as finalizers are written by other components.
fn is_relevant(entry: &ManagedFieldsEntry) -> bool {
    let only_metadata = || {
        let fields = entry.fields_v1.as_ref().and_then(|fields| fields.0.as_object());
        fields.is_some_and(|fields| fields.keys().all(|key| key == "f:metadata" || key == "f:status"))
    };
    is_own_manager(entry) || (entry.subresource.as_deref() != Some("status") && !only_metadata())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn metadata(digest: &str, managers: Value) -> ObjectMeta {
        serde_json::from_value(json!({
            "uid": "u", "resourceVersion": "7", "namespace": "ns",
            "labels": {POOL: "p", TENANT: "t", SLOT: "2"},
            "annotations": {"sluice.dev/digest": digest},
            "managedFields": managers,
        }))
        .unwrap()
    }

    fn manager(name: &str, operation: &str, subresource: &str, at: &str, fields: Value) -> Value {
        json!({"manager": name, "operation": operation, "subresource": subresource,
            "time": format!("2026-01-01T00:00:{at}Z"), "fieldsV1": fields})
    }

    fn ours(fields: Value) -> Value {
        manager(MANAGER, "Apply", "", "10", fields)
    }

    fn both() -> Value {
        json!({"f:spec": {"f:a": {}, "f:b": {}}})
    }

    #[test]
    fn unchanged_fields_have_not_drifted() {
        let status = manager("kubelet", "Update", "status", "50", json!({"f:status": {}}));
        let finalizer =
            manager("kube-scheduler", "Update", "", "50", json!({"f:metadata": {"f:finalizers": {}}}));
        let child = ObservedChild::observe(&metadata("1f", json!([ours(both()), status, finalizer])), None);
        assert!(!child.has_drifted);
        assert_eq!((child.digest, child.slot, child.tenant.as_deref()), (Some(31), Some(2), Some("t")));
    }

    #[test]
    fn foreign_field_is_drift_on_first_observation() {
        let edit = |at| manager("kubectl-edit", "Update", "", at, json!({"f:spec": {"f:a": {}}}));
        let rest = json!({"f:spec": {"f:b": {}}});
        assert!(
            ObservedChild::observe(&metadata("1", json!([ours(rest.clone()), edit("11")])), None).has_drifted
        );
        // Set before our apply, and unchanged since.
        assert!(!ObservedChild::observe(&metadata("1", json!([ours(rest), edit("09")])), None).has_drifted);
    }

    #[test]
    fn removed_field_is_drift_while_watching() {
        let before = ObservedChild::observe(&metadata("1", json!([ours(both())])), None);
        let rest = json!([ours(json!({"f:spec": {"f:b": {}}}))]);
        assert!(ObservedChild::observe(&metadata("1", rest.clone()), Some(&before)).has_drifted);
        // Another content was applied, so other fields are expected.
        assert!(!ObservedChild::observe(&metadata("2", rest), Some(&before)).has_drifted);
    }

    #[test]
    fn status_update_is_not_drift() {
        let before = ObservedChild::observe(&metadata("1", json!([ours(both())])), None);
        let status = manager("kube-controller-manager", "Update", "status", "50", json!({"f:status": {}}));
        let after = ObservedChild::observe(&metadata("1", json!([ours(both()), status])), Some(&before));
        assert!(before.is_equivalent(&ObservedChild { version: 9, ..after }));
    }
}
