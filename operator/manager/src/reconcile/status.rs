//! Step 5: reports the result, in statuses and in events.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::events::{Event, EventType};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use sluice_plan::objects::MANAGER;
use sluice_plan::plan_context::PlanContext;
use sluice_plan::pool_plan::{ApplyErrors, PoolPlan};
use sluice_plan::report::{
    StatusChange, has_expiring_reason, is_another_hang, pool_change, pool_status, status_change,
    tenant_status,
};
use sluice_types::conditions::ConditionType;
use sluice_types::{API_VERSION, GpuPool};

use super::lock::lock;
use super::own_kind::OwnKind;
use super::{ReconcileError, Reconciler};
use crate::cache::{NamespacedName, PoolKey};

/// Time between two reconciliations of a pool that has had a fault or a hang.
const FAULT_RECHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum concurrent status writes.
const MAX_CONCURRENT_WRITES: usize = 16;

/// Whether only the status differs in the answer to a status write. An object that another client changed is left to
/// the watch: stored here, the watch would see no change, and the pool would not be reconciled.
fn is_only_status_changed(before: &ObjectMeta, after: &ObjectMeta) -> bool {
    before.generation == after.generation
        && before.deletion_timestamp == after.deletion_timestamp
        && before.labels == after.labels
        && before.annotations == after.annotations
        && before.finalizers == after.finalizers
}

impl Reconciler {
    pub(super) async fn write_statuses(
        &self,
        unit: &PoolKey,
        given: &PlanContext<'_>,
        plan: &PoolPlan<'_>,
        failures: &ApplyErrors,
    ) -> Result<(), ReconcileError> {
        let mut writes = stream::iter(0..plan.tenants.len())
            .map(|tenant| self.write_tenant_status(unit, given, plan, (tenant, failures)))
            .buffer_unordered(MAX_CONCURRENT_WRITES);
        let mut result = Ok(());
        while let Some(one) = writes.next().await {
            result = result.and(one);
        }
        drop(writes);
        let pool = match given.pool {
            Some(pool) => self.write_pool_status(unit, given, plan, pool).await,
            None => Ok(()),
        };
        result.and(pool)
    }

    async fn write_tenant_status(
        &self,
        unit: &PoolKey,
        given: &PlanContext<'_>,
        plan: &PoolPlan<'_>,
        (tenant, failures): (usize, &ApplyErrors),
    ) -> Result<(), ReconcileError> {
        let planned = &plan.tenants[tenant];
        let tenant = planned.tenant;
        let name = tenant.name_any();
        let after = tenant_status(given, plan, planned, failures.get(&name));
        if has_expiring_reason(&after) {
            // The reason expires, and no other event may trigger the update.
            self.queue.add_after(unit, FAULT_RECHECK_INTERVAL);
        }
        let at = NamespacedName::new(unit.namespace.clone(), name);
        let change = status_change(tenant.status.as_ref(), &after);
        if !self.is_write_due(unit, (OwnKind::Tenant, at.clone()), change) {
            return Ok(());
        }
        if let Some(written) = self.patch_status(tenant, "ModelTenant", &after).await?
            && is_only_status_changed(&tenant.metadata, &written.metadata)
        {
            self.cache.tenants.replace(&at, Arc::new(written));
        }
        let before = tenant.status.as_ref().map(|status| status.conditions.as_slice());
        self.publish_events(tenant, before.unwrap_or_default(), &after.conditions).await;
        Ok(())
    }

    async fn write_pool_status(
        &self,
        unit: &PoolKey,
        given: &PlanContext<'_>,
        plan: &PoolPlan<'_>,
        pool: &GpuPool,
    ) -> Result<(), ReconcileError> {
        let after = pool_status(given, plan, pool);
        let at = NamespacedName::new(unit.namespace.clone(), pool.name_any());
        let change = pool_change(pool.status.as_ref(), &after);
        if !self.is_write_due(unit, (OwnKind::Pool, at.clone()), change) {
            return Ok(());
        }
        if let Some(written) = self.patch_status(pool, "GpuPool", &after).await?
            && is_only_status_changed(&pool.metadata, &written.metadata)
        {
            self.cache.pools.replace(&at, Arc::new(written));
        }
        let before = pool.status.as_ref().map(|status| status.conditions.as_slice());
        self.publish_events(pool, before.unwrap_or_default(), &after.conditions).await;
        Ok(())
    }

    /// Whether to write now: conditions at once, numbers after an interval; else the pool is enqueued.
    fn is_write_due(&self, unit: &PoolKey, key: (OwnKind, NamespacedName), change: StatusChange) -> bool {
        let now = Instant::now();
        let mut written = lock(&self.reconcile_cache.status_written_at);
        let due = match change {
            StatusChange::None => return false,
            StatusChange::Conditions => now,
            // A new leader does not know when its predecessor wrote, and assumes now.
            StatusChange::Figures => *written.entry(key.clone()).or_insert(now) + self.status_interval,
        };
        if due > now {
            self.queue.add_after(unit, due - now + Duration::from_millis(10));
            return false;
        }
        if written.len() == written.capacity() {
            // No event removes the entries of tenants deleted while their pool stays.
            written.retain(|(kind, at), _| self.exists(*kind, at));
        }
        written.insert(key, now);
        true
    }

    /// Writes a status. `None` = the object no longer exists.
    async fn patch_status<K, S>(
        &self,
        object: &K,
        kind: &'static str,
        status: &S,
    ) -> Result<Option<K>, ReconcileError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
        S: Serialize,
    {
        let (name, namespace) = (object.name_any(), object.namespace().unwrap_or_default());
        let body = json!({
            "apiVersion": API_VERSION,
            "kind": kind,
            "metadata": {"name": name, "uid": object.uid()},
            "status": status,
        });
        let api: Api<K> = Api::namespaced(self.client.clone(), &namespace);
        let params = PatchParams::apply(MANAGER).force();
        match api.patch_status(&name, &params, &Patch::Apply(body)).await {
            Ok(mut written) => {
                written.managed_fields_mut().clear();
                Ok(Some(written))
            }
            Err(kube::Error::Api(error)) if error.code == 404 || error.code == 409 => Ok(None),
            Err(error) => {
                Err(ReconcileError::api(format!("patching the status of {kind} {namespace}/{name}"), error))
            }
        }
    }

    /// Publishes an event for each relevant condition. Failures are only logged.
    async fn publish_events<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        before: &[Condition],
        after: &[Condition],
    ) {
        for condition in changed_conditions(before, after) {
            self.events.publish(object, &condition_event(condition)).await;
        }
    }
}

/// Returns conditions with a changed status, and `Degraded` with another reason or another hang.
fn changed_conditions<'a>(
    before: &[Condition],
    after: &'a [Condition],
) -> impl Iterator<Item = &'a Condition> {
    after.iter().filter(|condition| {
        let Some(old) = before.iter().find(|old| old.type_ == condition.type_) else {
            return condition.status != "Unknown";
        };
        let degraded = condition.type_ == ConditionType::Degraded.as_str() && condition.status == "True";
        let another = || old.reason != condition.reason || is_another_hang(&old.message, &condition.message);
        old.status != condition.status || (degraded && another())
    })
}

fn condition_event(condition: &Condition) -> Event {
    let good = if condition.type_ == ConditionType::Degraded.as_str() { "False" } else { "True" };
    let bad = condition.status != good && condition.status != "Unknown";
    let colon = if condition.message.is_empty() { "" } else { ": " };
    let mut note = format!("{}={}{colon}{}", condition.type_, condition.status, condition.message);
    while note.len() > 1024 {
        note.pop();
    }
    Event {
        type_: if bad { EventType::Warning } else { EventType::Normal },
        reason: condition.reason.clone(),
        note: Some(note),
        action: condition.type_.clone(),
        secondary: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Condition {
        Condition {
            type_: kind.into(),
            status: status.into(),
            reason: reason.into(),
            message: message.into(),
            observed_generation: None,
            last_transition_time: k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
                k8s_openapi::jiff::Timestamp::UNIX_EPOCH,
            ),
        }
    }

    #[test]
    fn second_hang_emits_new_event() {
        let hung = |at: &str, more: &str| {
            [condition(
                "Degraded",
                "True",
                "EngineHung",
                &format!("its engine on g hung at {at}: 2300 ms{more}"),
            )]
        };
        let first = hung("2026-01-01T00:00:10Z", "");
        let count = |before: &[Condition], after: &[Condition]| changed_conditions(before, after).count();
        assert_eq!(count(&first, &hung("2026-01-01T00:00:10Z", "; ns/chat took over its time slice")), 0);
        assert_eq!(count(&first, &hung("2026-01-01T00:05:10Z", "")), 1);
    }

    #[test]
    fn hang_emits_one_event_naming_culprit() {
        let said = "slot code-0: its sidecar hung: ns/chat took over its time slice";
        let well =
            [condition("Degraded", "False", "AsExpected", ""), condition("Ready", "True", "AsExpected", "")];
        let undelivered = [condition("Degraded", "True", "DirectiveNotTaken", "no answer"), well[1].clone()];
        let hung = [condition("Degraded", "True", "SidecarHung", said), well[1].clone()];
        let later = [
            condition("Degraded", "True", "SidecarHung", &format!("{said}; it answers again")),
            well[1].clone(),
        ];
        let events_of = |before: &[Condition], after: &[Condition]| {
            changed_conditions(before, after).map(condition_event).collect::<Vec<_>>()
        };
        for before in [&well, &undelivered] {
            let events = events_of(before, &hung);
            assert_eq!(events.len(), 1);
            assert_eq!((events[0].reason.as_str(), &events[0].type_), ("SidecarHung", &EventType::Warning));
            assert_eq!(events[0].note.as_deref(), Some(&*format!("Degraded=True: {said}")));
        }
        assert_eq!(
            [events_of(&hung, &hung).len(), events_of(&hung, &later).len()],
            [0, 0],
            "it is reported once"
        );
        let over = events_of(&hung, &well);
        assert_eq!((over.len(), &over[0].type_), (1, &EventType::Normal));
    }

    #[test]
    fn concurrent_change_before_status_write_is_detected() {
        let meta = |generation: i64, version: &str| ObjectMeta {
            generation: Some(generation),
            resource_version: Some(version.into()),
            ..ObjectMeta::default()
        };
        assert!(is_only_status_changed(&meta(1, "7"), &meta(1, "8")), "the status alone");
        assert!(!is_only_status_changed(&meta(1, "7"), &meta(2, "9")), "a new spec came between");
        let labelled = ObjectMeta { labels: Some([("a".to_owned(), "b".to_owned())].into()), ..meta(1, "9") };
        assert!(!is_only_status_changed(&meta(1, "7"), &labelled));
        let deleted = ObjectMeta {
            deletion_timestamp: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
                k8s_openapi::jiff::Timestamp::UNIX_EPOCH,
            )),
            ..meta(1, "9")
        };
        assert!(!is_only_status_changed(&meta(1, "7"), &deleted));
    }
}
