//! A child, of its metadata what tells whether it is as it was applied.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use sluice_plan::objects::{CLAIM_NAME, MANAGER, POOL, SLOT, TENANT, digest, fnv1a};

use super::Unit;

/// A child of a pool or of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChildSeen {
    /// Its uid.
    pub uid: String,
    /// Its version: of two views the higher is the later.
    pub version: u64,
    /// Digest of its owner's uid, of which there are as many copies as children; 0 = it has none.
    pub owner: u64,
    /// Digest of what was applied.
    pub digest: Option<u64>,
    /// Digest of who set which of its fields.
    pub fields: u64,
    /// The same after it was applied last; `None` = this process has not.
    pub answered: Option<u64>,
    /// Somebody else changed it since it was applied, or may have.
    pub drifted: bool,
    /// It is on its way out.
    pub deleting: bool,
    /// Its tenant, if it is a tenant's.
    pub tenant: Option<String>,
    /// Its slot, if it is a slot's.
    pub slot: Option<u32>,
    /// Of a Deployment: its claim.
    pub claim: Option<String>,
}

impl ChildSeen {
    /// Whether two views differ in nothing that matters: its status changes its version, and no more.
    pub fn same(&self, other: &ChildSeen) -> bool {
        let ours = |child: &'_ ChildSeen| {
            (child.digest, child.fields, child.answered, child.drifted, child.deleting)
        };
        let named = self.uid == other.uid && self.owner == other.owner;
        let placed = self.tenant == other.tenant && self.slot == other.slot && self.claim == other.claim;
        named && placed && ours(self) == ours(other)
    }

    /// Whether its owner is the one with this uid.
    pub fn is_of(&self, owner: &str) -> bool {
        self.owner == fnv1a(owner)
    }

    /// Whether this is a later view of the same object than `other`.
    pub fn later_than(&self, other: &ChildSeen) -> bool {
        self.uid == other.uid && self.version > other.version
    }

    /// The unit that labels name.
    pub fn unit(metadata: &ObjectMeta) -> Option<Unit> {
        let pool = metadata.labels.as_ref()?.get(POOL)?.clone();
        Some(Unit { namespace: metadata.namespace.clone()?, pool })
    }

    /// What is kept of `metadata`, of which `before` was kept last.
    pub fn of(metadata: &ObjectMeta, before: Option<&ChildSeen>) -> ChildSeen {
        let empty = BTreeMap::new();
        let labels = metadata.labels.as_ref().unwrap_or(&empty);
        let annotations = metadata.annotations.as_ref().unwrap_or(&empty);
        let owner = metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
        let mut child = ChildSeen {
            uid: metadata.uid.clone().unwrap_or_default(),
            version: version(metadata),
            owner: owner.map_or(0, |owner| fnv1a(&owner.uid)),
            digest: digest(annotations),
            fields: 0,
            answered: before
                .filter(|before| Some(&before.uid) == metadata.uid.as_ref())
                .and_then(|one| one.answered),
            drifted: false,
            deleting: metadata.deletion_timestamp.is_some(),
            tenant: labels.get(TENANT).cloned(),
            slot: labels.get(SLOT).and_then(|slot| slot.parse().ok()),
            claim: annotations.get(CLAIM_NAME).cloned(),
        };
        let managers = metadata.managed_fields.as_deref().unwrap_or_default();
        child.fields = fields(managers);
        child.drifted = drifted(&child, before, managers);
        child
    }
}

/// The version of an object. The API server's are numbers that rise (KEP-5504).
pub fn version(metadata: &ObjectMeta) -> u64 {
    metadata.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Who has set which fields, status aside. Our own entry's time says only when we last changed something.
fn fields(managers: &[ManagedFieldsEntry]) -> u64 {
    let entries = managers.iter().filter(|entry| concerns_us(entry));
    let text: String = entries
        .map(|entry| {
            let time = entry.time.as_ref().filter(|_| !is_ours(entry));
            format!("{:?} {:?} {time:?} {:?};", entry.manager, entry.operation, entry.fields_v1)
        })
        .collect();
    fnv1a(&text)
}

/// Somebody set a field after us; or, of an object that was seen before, who has set what is not as it was, though the
/// same was applied. What was taken away while nobody watched is not seen: it is put back with the next change of the spec.
fn drifted(child: &ChildSeen, before: Option<&ChildSeen>, managers: &[ManagedFieldsEntry]) -> bool {
    match before {
        Some(before) if before.uid == child.uid && before.digest == child.digest => {
            before.drifted || before.fields != child.fields
        }
        _ => {
            let ours =
                managers.iter().filter(|entry| is_ours(entry)).filter_map(|entry| entry.time.clone()).max();
            let mut others = managers.iter().filter(|entry| concerns_us(entry) && !is_ours(entry));
            others.any(|entry| entry.time >= ours)
        }
    }
}

fn is_ours(entry: &ManagedFieldsEntry) -> bool {
    entry.manager.as_deref() == Some(MANAGER) && entry.operation.as_deref() == Some("Apply")
}

/// Status is written by others, and so are finalizers and the like.
fn concerns_us(entry: &ManagedFieldsEntry) -> bool {
    let only_metadata = || {
        let fields = entry.fields_v1.as_ref().and_then(|fields| fields.0.as_object());
        fields.is_some_and(|fields| fields.keys().all(|key| key == "f:metadata" || key == "f:status"))
    };
    is_ours(entry) || (entry.subresource.as_deref() != Some("status") && !only_metadata())
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
    fn what_nobody_else_touched_has_not_drifted() {
        let status = manager("kubelet", "Update", "status", "50", json!({"f:status": {}}));
        let finalizer =
            manager("kube-scheduler", "Update", "", "50", json!({"f:metadata": {"f:finalizers": {}}}));
        let child = ChildSeen::of(&metadata("1f", json!([ours(both()), status, finalizer])), None);
        assert!(!child.drifted);
        assert_eq!((child.digest, child.slot, child.tenant.as_deref()), (Some(31), Some(2), Some("t")));
    }

    #[test]
    fn a_field_that_somebody_set_after_us_is_seen_at_first_sight() {
        let edit = |at| manager("kubectl-edit", "Update", "", at, json!({"f:spec": {"f:a": {}}}));
        let rest = json!({"f:spec": {"f:b": {}}});
        assert!(ChildSeen::of(&metadata("1", json!([ours(rest.clone()), edit("11")])), None).drifted);
        // Set before us, and left alone since.
        assert!(!ChildSeen::of(&metadata("1", json!([ours(rest), edit("09")])), None).drifted);
    }

    #[test]
    fn a_field_that_somebody_took_away_is_seen_while_watching() {
        let before = ChildSeen::of(&metadata("1", json!([ours(both())])), None);
        let rest = json!([ours(json!({"f:spec": {"f:b": {}}}))]);
        assert!(ChildSeen::of(&metadata("1", rest.clone()), Some(&before)).drifted);
        // Something else was applied: that it has other fields is right.
        assert!(!ChildSeen::of(&metadata("2", rest), Some(&before)).drifted);
    }

    #[test]
    fn a_status_changes_nothing_that_matters() {
        let before = ChildSeen::of(&metadata("1", json!([ours(both())])), None);
        let status = manager("kube-controller-manager", "Update", "status", "50", json!({"f:status": {}}));
        let after = ChildSeen::of(&metadata("1", json!([ours(both()), status])), Some(&before));
        assert!(before.same(&ChildSeen { version: 9, ..after }));
    }
}
