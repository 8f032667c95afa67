//! Step 4: what is missing, changed or drifted is sent; what is not to be there any more is deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, Preconditions,
};
use kube::core::ObjectMeta;
use serde_json::json;
use sluice_plan::objects::inspect::job;
use sluice_plan::objects::{Child, FETCHING, Kind, MANAGER, Placed, of_gpu, of_slot, of_tenant};
use sluice_plan::seen::Trouble;
use sluice_plan::unit::{Plan, SlotPlan, TenantPlan};
use sluice_types::GpuPool;

use super::{Kind2, Operator, drawn};
use crate::credentials::{self, CredentialError};
use crate::world::{ChildSeen, ClaimEntry, Name, Unit};

/// Requests that one unit has under way at a time.
const AT_ONCE: usize = 16;

/// Why a child was not applied.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("{kind} {name} exists and is not the operator's: rename one of them")]
    NameTaken { kind: &'static str, name: String },
    #[error(transparent)]
    Credentials(#[from] CredentialError),
    #[error("{kind} {name}: {error}")]
    Api { kind: &'static str, name: String, error: Box<kube::Error> },
}

impl Refused {
    fn api(kind: Kind, name: &str, error: kube::Error) -> Refused {
        Refused::Api { kind: kind.as_str(), name: name.to_owned(), error: Box::new(error) }
    }

    fn trouble(&self) -> Trouble {
        Trouble {
            service_taken: matches!(self, Refused::NameTaken { kind, .. } if *kind == Kind::Service.as_str()),
            name_taken: matches!(
                self,
                Refused::NameTaken { .. } | Refused::Credentials(CredentialError::Taken { .. })
            ),
            message: self.to_string(),
        }
    }
}

/// Kinds and names of children.
type Names = Vec<(Kind, String)>;
/// Names of children, by kind.
type Kept = BTreeMap<Kind, BTreeSet<String>>;

impl Operator {
    /// Applies a plan. Answers what went wrong, by tenant; what a GPU lacks all of its tenants lack.
    pub(super) async fn apply(
        &self,
        unit: &Unit,
        pool: &GpuPool,
        plan: &Plan<'_>,
        now: i64,
    ) -> BTreeMap<String, Trouble> {
        let mut kept = Kept::new();
        let (mut troubles, mut lacking) = (BTreeMap::new(), BTreeSet::new());
        // Claims first: a pod that comes before its claim waits for it.
        let gpus: Vec<usize> = (0..plan.gpus.len()).filter(|gpu| plan.gpus[*gpu].epoch.is_some()).collect();
        let mut done =
            stream::iter(gpus).map(|gpu| self.apply_gpu(unit, pool, plan, gpu)).buffer_unordered(AT_ONCE);
        while let Some((gpu, names, result)) = done.next().await {
            keep(&mut kept, names);
            if let Err(refused) = result {
                lacking.insert(gpu);
                let tenants = plan.on(gpu).map(|(tenant, _)| name_of(tenant));
                troubles.extend(tenants.map(|tenant| (tenant, refused.trouble())));
            }
        }
        let mut done = stream::iter(0..plan.tenants.len())
            .map(|tenant| self.apply_tenant(unit, pool, plan, (tenant, now), &lacking))
            .buffer_unordered(AT_ONCE);
        while let Some((tenant, names, result)) = done.next().await {
            keep(&mut kept, names);
            if let Err(refused) = result {
                troubles.insert(tenant, refused.trouble());
            }
        }
        self.prune(unit, plan, (&kept, &troubles)).await;
        self.unlabel(unit).await;
        troubles
    }

    async fn apply_gpu(
        &self,
        unit: &Unit,
        pool: &GpuPool,
        plan: &Plan<'_>,
        gpu: usize,
    ) -> (usize, Names, Result<(), Refused>) {
        let planned = &plan.gpus[gpu];
        let Some(epoch) = planned.epoch else { return (gpu, Names::new(), Ok(())) };
        let claim = (Kind::ResourceClaim, sluice_plan::objects::claim_name(&planned.gpu, epoch.number));
        let key = (Kind2::Pool, Name::new(unit.namespace.clone(), planned.gpu.name.clone()));
        let of = drawn::of_gpu(pool, planned);
        if let Some(mut names) = self.as_drawn(&key, of) {
            names.push(claim);
            return (gpu, names, Ok(()));
        }
        let owner = pool.metadata.uid.as_deref().unwrap_or_default();
        let children = of_gpu(pool, &planned.gpu, epoch.number, epoch.waits, &self.release);
        let mut names: Names = children.iter().map(named).collect();
        names.push(claim);
        let result = self.apply_all(unit, owner, &children).await;
        self.drew(key, of, children.iter());
        (gpu, names, result)
    }

    async fn apply_tenant(
        &self,
        unit: &Unit,
        pool: &GpuPool,
        plan: &Plan<'_>,
        (tenant, now): (usize, i64),
        lacking: &BTreeSet<usize>,
    ) -> (String, Names, Result<(), Refused>) {
        let tenant = &plan.tenants[tenant];
        let mut result = Ok(());
        let mut placed: Vec<Placed<'_>> = Vec::new();
        // Whose claim could not be made stays on the one that it has.
        let has_claim = |slot: &&SlotPlan| slot.on.as_ref().is_ok_and(|gpu| !lacking.contains(gpu));
        let on = tenant.slots.iter().filter(has_claim);
        for slot in on.filter_map(|slot| plan.placed(pool, tenant, slot)) {
            // Before the pod that mounts it: a slot whose Secret is not as it must be stays as it is.
            match self.certify(unit, &slot, now).await {
                Ok(()) => placed.push(slot),
                Err(refused) => result = result.and(Err(refused)),
            }
        }
        let key = (Kind2::Tenant, Name::new(unit.namespace.clone(), name_of(tenant)));
        let of = drawn::of_tenant(pool, tenant, &placed);
        // Of whoever has a Job nothing is kept in mind: the Job is not to stay.
        let settled = !tenant.to_be_inspected();
        let mut names = match self.as_drawn(&key, of).filter(|_| settled) {
            Some(names) => names,
            None => {
                let own = self.draw(pool, tenant, &placed);
                let (names, applied) = self.apply_drawn(unit, tenant, &own).await;
                if settled {
                    self.drew(key, of, own.iter().flatten());
                }
                result = result.and(applied);
                names
            }
        };
        // A slot that has a GPU stays as it is where its model is not known any more, its claim or its Secret could not be made.
        for slot in tenant.slots.iter().filter(|slot| slot.on.is_ok()) {
            let name = format!("{}-{}", name_of(tenant), slot.index);
            names.extend([(Kind::ConfigMap, name.clone()), (Kind::Deployment, name)]);
        }
        (name_of(tenant), names, result)
    }

    /// What is applied for a tenant: its own, and that of each slot.
    fn draw(&self, pool: &GpuPool, tenant: &TenantPlan<'_>, placed: &[Placed<'_>]) -> Vec<Vec<Child>> {
        let mut own = vec![of_tenant(tenant.tenant)];
        if tenant.to_be_inspected() {
            own.push(vec![Child::new(Kind::Job, &job(pool, tenant.tenant, &self.release))]);
        }
        own.extend(placed.iter().map(|placed| of_slot(placed, &self.release).into()));
        own
    }

    async fn apply_drawn(
        &self,
        unit: &Unit,
        tenant: &TenantPlan<'_>,
        own: &[Vec<Child>],
    ) -> (Names, Result<(), Refused>) {
        let owner = tenant.tenant.metadata.uid.as_deref().unwrap_or_default();
        let mut result = Ok(());
        for children in own {
            // The other slots are served even if one cannot be.
            let applied = self.apply_all(unit, owner, children).await;
            result = result.and(applied);
        }
        (own.iter().flatten().map(named).collect(), result)
    }

    /// Keeps a slot's certificate, and comes back when the next one is due.
    async fn certify(&self, unit: &Unit, placed: &Placed<'_>, now: i64) -> Result<(), Refused> {
        let slot = credentials::Slot {
            namespace: unit.namespace.clone(),
            secret: placed.secret(),
            tenant: placed.tenant.metadata.name.clone().unwrap_or_default(),
            claim: placed.title(),
            owner: placed.owner(),
            labels: placed.labels(),
        };
        let due = self.keeper.slot(&slot, now).await?;
        let wait = u64::try_from(due - now).unwrap_or(0).max(1);
        self.queue.add_after(unit, Duration::from_secs(wait));
        Ok(())
    }

    async fn apply_all(&self, unit: &Unit, owner: &str, children: &[Child]) -> Result<(), Refused> {
        for child in children {
            self.apply_one(unit, owner, child).await?;
        }
        Ok(())
    }

    /// Sends a child, unless it is as it should be.
    async fn apply_one(&self, unit: &Unit, owner: &str, child: &Child) -> Result<(), Refused> {
        let at = Name::new(unit.namespace.clone(), child.name.clone());
        let applied = |seen: &ChildSeen| Self::is_applied(child.digest, seen);
        if self.world.with_child(child.kind, &at, applied) == Some(true) {
            return Ok(());
        }
        let seen = self.world.child(child.kind, &at);
        // A Job's template cannot be changed, and it may hang for what has been changed: another one comes once it is gone.
        let other = |seen: &ChildSeen| seen.digest.is_some_and(|digest| digest != child.digest);
        let outdated = |seen: &&ChildSeen| seen.is_of(owner) && other(seen);
        if let Some(seen) = seen.as_ref().filter(outdated).filter(|_| child.kind == Kind::Job) {
            self.delete(child.kind, unit, &child.name, seen).await;
            return Ok(());
        }
        let failed = |error| Refused::api(child.kind, &child.name, error);
        let api = self.api(child.kind, &unit.namespace);
        if seen.is_none_or(|seen| !seen.is_of(owner)) {
            self.not_anothers(&api, owner, child).await?;
        }
        let params = PatchParams::apply(MANAGER).force();
        let applied = api.patch_metadata(&child.name, &params, &Patch::Apply(&child.body)).await;
        let applied = applied.map_err(failed)?;
        self.learn(child.kind, &at, unit, &applied.metadata);
        Ok(())
    }

    /// Whether what is there is what was asked for, and nobody has changed it since.
    pub(super) fn is_applied(digest: u64, seen: &ChildSeen) -> bool {
        seen.digest == Some(digest) && !seen.deleting && (!seen.drifted || seen.answered == Some(seen.fields))
    }

    /// Nothing of anybody else is taken over.
    async fn not_anothers(
        &self,
        api: &Api<DynamicObject>,
        owner: &str,
        child: &Child,
    ) -> Result<(), Refused> {
        let found = api.get_metadata_opt(&child.name).await;
        let found = found.map_err(|error| Refused::api(child.kind, &child.name, error))?;
        let Some(found) = found else { return Ok(()) };
        match ChildSeen::of(&found.metadata, None).is_of(owner) {
            true => Ok(()),
            false => Err(Refused::NameTaken { kind: child.kind.as_str(), name: child.name.clone() }),
        }
    }

    /// What the answer to a write tells need not wait for the watch.
    fn learn(&self, kind: Kind, at: &Name, unit: &Unit, metadata: &ObjectMeta) {
        match kind {
            Kind::ResourceClaim => {
                let before = self.world.claims.get(at);
                let mut entry = ClaimEntry::of_metadata(metadata, before.as_ref());
                entry.child.answered = Some(entry.child.fields);
                self.world.claims.put(at.clone(), unit.clone(), entry);
            }
            kind => {
                let mirror = self.world.children(kind);
                let mut child = ChildSeen::of(metadata, mirror.get(at).as_ref());
                child.answered = Some(child.fields);
                mirror.put(at.clone(), unit.clone(), child);
            }
        }
    }

    /// Deletes children that the plan does not have. Those of a tenant that is gone go by their owner reference. What could
    /// not be applied for one tenant keeps what that tenant has, and nothing of anybody else.
    async fn prune(
        &self,
        unit: &Unit,
        plan: &Plan<'_>,
        (kept, troubles): (&Kept, &BTreeMap<String, Trouble>),
    ) {
        let tenants: BTreeSet<String> = plan.tenants.iter().map(name_of).collect();
        let in_use = self.claims_of(unit, troubles);
        let stays = |kind: Kind, name: &str, child: &ChildSeen| match &child.tenant {
            Some(tenant) => !tenants.contains(tenant),
            None if kind == Kind::ResourceClaim => in_use.contains(name),
            None => !troubles.is_empty(),
        };
        let mut gone = Vec::new();
        for kind in Kind::ALL {
            let kept = kept.get(&kind);
            self.world.each_child(kind, unit, |name, child| {
                let planned = kept.is_some_and(|kept| kept.contains(name));
                if !child.deleting && !planned && !stays(kind, name, child) {
                    gone.push((kind, name.to_owned(), child.clone()));
                }
            });
        }
        stream::iter(gone)
            .for_each_concurrent(AT_ONCE, |(kind, name, child)| async move {
                self.delete(kind, unit, &name, &child).await;
            })
            .await;
    }

    /// Claims that pods of these tenants have: who should have moved to another one, but could not, keeps its own.
    fn claims_of(&self, unit: &Unit, troubles: &BTreeMap<String, Trouble>) -> BTreeSet<String> {
        let mut claims = BTreeSet::new();
        self.world.children(Kind::Deployment).each_of(unit, |_, child| {
            let troubled = child.tenant.as_ref().is_some_and(|tenant| troubles.contains_key(tenant));
            claims.extend(child.claim.clone().filter(|_| troubled));
        });
        claims
    }

    /// Deletes exactly the object that was seen. A failure is seen at the next look: the object is still there.
    async fn delete(&self, kind: Kind, unit: &Unit, name: &str, child: &ChildSeen) {
        let only = Preconditions { uid: Some(child.uid.clone()), resource_version: None };
        // The certificate goes before what tells of it.
        if kind == Kind::Deployment
            && let Err(error) =
                self.keeper.delete(&unit.namespace, &format!("sluice-{name}"), |uid| child.is_of(uid)).await
        {
            tracing::warn!(namespace = unit.namespace, slot = name, %error, "its certificate was not deleted");
            return self.queue.add_after(unit, Duration::from_secs(5));
        }
        let params = DeleteParams { preconditions: Some(only), ..DeleteParams::background() };
        match self.api(kind, &unit.namespace).delete(name, &params).await {
            Ok(_) => tracing::info!(namespace = unit.namespace, kind = kind.as_str(), name, "deleted"),
            Err(kube::Error::Api(error)) if error.code == 404 || error.code == 409 => {}
            Err(error) => {
                tracing::warn!(namespace = unit.namespace, kind = kind.as_str(), name, %error, "not deleted");
                self.queue.add_after(unit, Duration::from_secs(5));
            }
        }
    }

    /// A pod that has its model reaches nobody outside any more.
    async fn unlabel(&self, unit: &Unit) {
        let api: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(self.client.clone(), &unit.namespace);
        let mut fetched = Vec::new();
        self.world.pods.each_of(unit, |name, pod| {
            fetched.extend((pod.fetched && pod.stays()).then(|| (name.to_owned(), pod.uid.clone())));
        });
        for (name, uid) in fetched {
            let patch = json!({"metadata": {"uid": uid, "labels": {FETCHING: null}}});
            let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
            if let Err(error) = api.patch_metadata(&name, &params, &Patch::Merge(patch)).await {
                tracing::warn!(namespace = unit.namespace, pod = name, %error, "its label was not taken off");
            }
        }
    }

    fn api(&self, kind: Kind, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &resource(kind))
    }
}

fn keep(kept: &mut Kept, names: Names) {
    for (kind, name) in names {
        kept.entry(kind).or_default().insert(name);
    }
}

fn named(child: &Child) -> (Kind, String) {
    (child.kind, child.name.clone())
}

fn name_of(tenant: &TenantPlan<'_>) -> String {
    tenant.tenant.metadata.name.clone().unwrap_or_default()
}

fn resource(kind: Kind) -> ApiResource {
    let (group, version, plural) = match kind {
        Kind::ConfigMap => ("", "v1", "configmaps"),
        Kind::Deployment => ("apps", "v1", "deployments"),
        Kind::Job => ("batch", "v1", "jobs"),
        Kind::NetworkPolicy => ("networking.k8s.io", "v1", "networkpolicies"),
        Kind::PodDisruptionBudget => ("policy", "v1", "poddisruptionbudgets"),
        Kind::ResourceClaim => ("resource.k8s.io", "v1", "resourceclaims"),
        Kind::Service => ("", "v1", "services"),
    };
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind.as_str()), plural)
}
