//! Step 5: what became of it is told, in statuses and in events.

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
use sluice_plan::report::{Change, change, is_another_hang, passes, pool_change, pool_status, tenant_status};
use sluice_plan::unit::{Given, Plan, Troubles};
use sluice_types::conditions::ConditionType;
use sluice_types::{API_VERSION, GpuPool};

use super::{Failure, Kind2, Operator, lock};
use crate::world::{Name, Unit};

/// Time between two looks at a unit that has had a fault or a hang.
const FAULT_EVERY: Duration = Duration::from_secs(60);
/// Statuses that are written at a time.
const AT_ONCE: usize = 16;

/// Whether an object that came back from writing its status is else the one that was looked at. One that somebody changed
/// meanwhile is left to the watch: put into the mirror here, its change would be no news any more, and nobody would look.
fn nothing_else_changed(before: &ObjectMeta, after: &ObjectMeta) -> bool {
    before.generation == after.generation
        && before.deletion_timestamp == after.deletion_timestamp
        && before.labels == after.labels
        && before.annotations == after.annotations
        && before.finalizers == after.finalizers
}

impl Operator {
    pub(super) async fn tell(
        &self,
        unit: &Unit,
        given: &Given<'_>,
        plan: &Plan<'_>,
        troubles: &Troubles,
    ) -> Result<(), Failure> {
        let mut told = stream::iter(0..plan.tenants.len())
            .map(|tenant| self.tell_tenant(unit, given, plan, (tenant, troubles)))
            .buffer_unordered(AT_ONCE);
        let mut result = Ok(());
        while let Some(one) = told.next().await {
            result = result.and(one);
        }
        drop(told);
        let pool = match given.pool {
            Some(pool) => self.tell_pool(unit, given, plan, pool).await,
            None => Ok(()),
        };
        result.and(pool)
    }

    async fn tell_tenant(
        &self,
        unit: &Unit,
        given: &Given<'_>,
        plan: &Plan<'_>,
        (tenant, troubles): (usize, &Troubles),
    ) -> Result<(), Failure> {
        let planned = &plan.tenants[tenant];
        let tenant = planned.tenant;
        let name = tenant.name_any();
        let after = tenant_status(given, plan, planned, troubles.get(&name));
        if passes(&after) {
            // It is told for a while, and nothing else may happen until it is over.
            self.queue.add_after(unit, FAULT_EVERY);
        }
        let at = Name::new(unit.namespace.clone(), name);
        let change = change(tenant.status.as_ref(), &after);
        if !self.may_write(unit, (Kind2::Tenant, at.clone()), change) {
            return Ok(());
        }
        if let Some(written) = self.write(tenant, "ModelTenant", &after).await?
            && nothing_else_changed(&tenant.metadata, &written.metadata)
        {
            self.world.tenants.replace(&at, Arc::new(written));
        }
        let before = tenant.status.as_ref().map(|status| status.conditions.as_slice());
        self.announce(tenant, before.unwrap_or_default(), &after.conditions).await;
        Ok(())
    }

    async fn tell_pool(
        &self,
        unit: &Unit,
        given: &Given<'_>,
        plan: &Plan<'_>,
        pool: &GpuPool,
    ) -> Result<(), Failure> {
        let after = pool_status(given, plan, pool);
        let at = Name::new(unit.namespace.clone(), pool.name_any());
        let change = pool_change(pool.status.as_ref(), &after);
        if !self.may_write(unit, (Kind2::Pool, at.clone()), change) {
            return Ok(());
        }
        if let Some(written) = self.write(pool, "GpuPool", &after).await?
            && nothing_else_changed(&pool.metadata, &written.metadata)
        {
            self.world.pools.replace(&at, Arc::new(written));
        }
        let before = pool.status.as_ref().map(|status| status.conditions.as_slice());
        self.announce(pool, before.unwrap_or_default(), &after.conditions).await;
        Ok(())
    }

    /// Conditions are written at once, figures when the last write is long enough ago; else another look is asked for.
    fn may_write(&self, unit: &Unit, key: (Kind2, Name), change: Change) -> bool {
        let now = Instant::now();
        let mut written = lock(&self.memory.written);
        let due = match change {
            Change::None => return false,
            Change::Conditions => now,
            // A new leader does not know when its predecessor wrote, and waits as if that were now.
            Change::Figures => *written.entry(key.clone()).or_insert(now) + self.status_every,
        };
        if due > now {
            self.queue.add_after(unit, due - now + Duration::from_millis(10));
            return false;
        }
        if written.len() == written.capacity() {
            // Of who is deleted while its pool stays nobody tells.
            written.retain(|(kind, at), _| self.is_there(*kind, at));
        }
        written.insert(key, now);
        true
    }

    /// Writes a status. `None` = its object is gone.
    async fn write<K, S>(&self, object: &K, kind: &'static str, status: &S) -> Result<Option<K>, Failure>
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
            Err(error) => Err(Failure::api(format!("status of {kind} {namespace}/{name}"), error)),
        }
    }

    /// An event for every condition that is worth one. None is worth a failure.
    async fn announce<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        before: &[Condition],
        after: &[Condition],
    ) {
        for condition in news(before, after) {
            self.announcer.tell(object, &event(condition)).await;
        }
    }
}

/// Conditions whose truth has changed, and `Degraded` where it holds for another reason or another hang: a sidecar that takes no
/// directive and one that hangs are two events.
fn news<'a>(before: &[Condition], after: &'a [Condition]) -> impl Iterator<Item = &'a Condition> {
    after.iter().filter(|condition| {
        let Some(old) = before.iter().find(|old| old.type_ == condition.type_) else {
            return condition.status != "Unknown";
        };
        let degraded = condition.type_ == ConditionType::Degraded.as_str() && condition.status == "True";
        let another = || old.reason != condition.reason || is_another_hang(&old.message, &condition.message);
        old.status != condition.status || (degraded && another())
    })
}

fn event(condition: &Condition) -> Event {
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
    fn a_second_hang_is_another_event() {
        let hung = |at: &str, more: &str| {
            [condition(
                "Degraded",
                "True",
                "EngineHung",
                &format!("its engine on g hung at {at}: 2300 ms{more}"),
            )]
        };
        let first = hung("2026-01-01T00:00:10Z", "");
        let count = |before: &[Condition], after: &[Condition]| news(before, after).count();
        assert_eq!(count(&first, &hung("2026-01-01T00:00:10Z", "; ns/chat took the turn from it")), 0);
        assert_eq!(count(&first, &hung("2026-01-01T00:05:10Z", "")), 1);
    }

    #[test]
    fn a_hang_is_an_event_once_and_names_the_culprit() {
        let said = "slot code-0: its sidecar hung: ns/chat took the turn";
        let well =
            [condition("Degraded", "False", "AsExpected", ""), condition("Ready", "True", "AsExpected", "")];
        let untold = [condition("Degraded", "True", "DirectiveNotTaken", "no answer"), well[1].clone()];
        let hung = [condition("Degraded", "True", "SidecarHung", said), well[1].clone()];
        let later = [
            condition("Degraded", "True", "SidecarHung", &format!("{said}; it answers again")),
            well[1].clone(),
        ];
        let told =
            |before: &[Condition], after: &[Condition]| news(before, after).map(event).collect::<Vec<_>>();
        for before in [&well, &untold] {
            let events = told(before, &hung);
            assert_eq!(events.len(), 1);
            assert_eq!((events[0].reason.as_str(), &events[0].type_), ("SidecarHung", &EventType::Warning));
            assert_eq!(events[0].note.as_deref(), Some(&*format!("Degraded=True: {said}")));
        }
        assert_eq!([told(&hung, &hung).len(), told(&hung, &later).len()], [0, 0], "it is told once");
        let over = told(&hung, &well);
        assert_eq!((over.len(), &over[0].type_), (1, &EventType::Normal));
    }

    #[test]
    fn a_change_of_somebody_else_between_a_look_and_its_status_is_seen() {
        let meta = |generation: i64, version: &str| ObjectMeta {
            generation: Some(generation),
            resource_version: Some(version.into()),
            ..ObjectMeta::default()
        };
        assert!(nothing_else_changed(&meta(1, "7"), &meta(1, "8")), "the status alone");
        assert!(!nothing_else_changed(&meta(1, "7"), &meta(2, "9")), "a new spec came between");
        let labelled = ObjectMeta { labels: Some([("a".to_owned(), "b".to_owned())].into()), ..meta(1, "9") };
        assert!(!nothing_else_changed(&meta(1, "7"), &labelled));
        let deleted = ObjectMeta {
            deletion_timestamp: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
                k8s_openapi::jiff::Timestamp::UNIX_EPOCH,
            )),
            ..meta(1, "9")
        };
        assert!(!nothing_else_changed(&meta(1, "7"), &deleted));
    }
}
