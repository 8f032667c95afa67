//! Step 4: sends missing, changed or drifted objects, and deletes obsolete ones.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, Preconditions,
};
use kube::core::ObjectMeta;
use serde_json::json;
use sluice_plan::objects::inspect::job;
use sluice_plan::objects::{
    Child, ChildKind, FETCHING, MANAGER, PlacedSlot, gpu_children, slot_children, tenant_children,
};
use sluice_plan::observed::ApplyFailure;
use sluice_plan::pool_plan::{PoolPlan, SlotPlan, TenantPlan};
use sluice_types::GpuPool;

use super::{OwnKind, Reconciler, render_cache};
use crate::cache::{ClaimEntry, NamespacedName, ObservedChild, PoolKey};
use crate::credentials::{self, CredentialError};

/// Maximum concurrent requests of one pool.
const MAX_CONCURRENT_REQUESTS: usize = 16;

/// Why a child was not applied.
#[derive(Debug, thiserror::Error)]
enum ApplyError {
    #[error(
        "{kind} {name} exists and the operator does not own it; rename or delete it, or rename the tenant"
    )]
    NameConflict { kind: &'static str, name: String },
    #[error(transparent)]
    Credentials(#[from] CredentialError),
    #[error("{kind} {name}: {error}")]
    Api { kind: &'static str, name: String, error: Box<kube::Error> },
}

impl ApplyError {
    fn api(kind: ChildKind, name: &str, error: kube::Error) -> ApplyError {
        ApplyError::Api { kind: kind.as_str(), name: name.to_owned(), error: Box::new(error) }
    }

    fn to_apply_failure(&self) -> ApplyFailure {
        ApplyFailure {
            is_service_name_taken: matches!(self, ApplyError::NameConflict { kind, .. } if *kind == ChildKind::Service.as_str()),
            is_name_taken: matches!(
                self,
                ApplyError::NameConflict { .. } | ApplyError::Credentials(CredentialError::NotOwned { .. })
            ),
            message: self.to_string(),
        }
    }
}

/// Kinds and names of children.
type ChildNames = Vec<(ChildKind, String)>;
/// Names of children, by kind.
type DesiredChildren = BTreeMap<ChildKind, BTreeSet<String>>;

impl Reconciler {
    /// Applies a plan. Returns the errors by tenant; an error of a GPU counts for all of its tenants.
    pub(super) async fn apply(
        &self,
        unit: &PoolKey,
        pool: &GpuPool,
        plan: &PoolPlan<'_>,
        now: i64,
    ) -> BTreeMap<String, ApplyFailure> {
        let mut kept = DesiredChildren::new();
        let (mut failures, mut lacking) = (BTreeMap::new(), BTreeSet::new());
        // Claims first: a pod created before its claim waits for it.
        let gpus: Vec<usize> = (0..plan.gpus.len()).filter(|gpu| plan.gpus[*gpu].epoch.is_some()).collect();
        let mut done = stream::iter(gpus)
            .map(|gpu| self.apply_gpu(unit, pool, plan, gpu))
            .buffer_unordered(MAX_CONCURRENT_REQUESTS);
        while let Some((gpu, names, result)) = done.next().await {
            add_children(&mut kept, names);
            if let Err(refused) = result {
                lacking.insert(gpu);
                let tenants = plan.slots_on(gpu).map(|(tenant, _)| tenant_name(tenant));
                failures.extend(tenants.map(|tenant| (tenant, refused.to_apply_failure())));
            }
        }
        let mut done = stream::iter(0..plan.tenants.len())
            .map(|tenant| self.apply_tenant(unit, pool, plan, (tenant, now), &lacking))
            .buffer_unordered(MAX_CONCURRENT_REQUESTS);
        while let Some((tenant, names, result)) = done.next().await {
            add_children(&mut kept, names);
            if let Err(refused) = result {
                failures.insert(tenant, refused.to_apply_failure());
            }
        }
        self.prune(unit, plan, (&kept, &failures)).await;
        self.remove_fetch_label(unit).await;
        failures
    }

    async fn apply_gpu(
        &self,
        unit: &PoolKey,
        pool: &GpuPool,
        plan: &PoolPlan<'_>,
        gpu: usize,
    ) -> (usize, ChildNames, Result<(), ApplyError>) {
        let planned = &plan.gpus[gpu];
        let Some(epoch) = planned.epoch else { return (gpu, ChildNames::new(), Ok(())) };
        let claim = (ChildKind::ResourceClaim, sluice_plan::objects::claim_name(&planned.gpu, epoch.number));
        let key = (OwnKind::Pool, NamespacedName::new(unit.namespace.clone(), planned.gpu.name.clone()));
        let of = render_cache::gpu_digest(pool, planned);
        if let Some(mut names) = self.cached_children(&key, of) {
            names.push(claim);
            return (gpu, names, Ok(()));
        }
        let owner = pool.metadata.uid.as_deref().unwrap_or_default();
        let children = gpu_children(pool, &planned.gpu, epoch.number, epoch.is_update_pending, &self.release);
        let mut names: ChildNames = children.iter().map(kind_and_name).collect();
        names.push(claim);
        let result = self.apply_all(unit, owner, &children).await;
        self.record_render(key, of, children.iter());
        (gpu, names, result)
    }

    async fn apply_tenant(
        &self,
        unit: &PoolKey,
        pool: &GpuPool,
        plan: &PoolPlan<'_>,
        (tenant, now): (usize, i64),
        lacking: &BTreeSet<usize>,
    ) -> (String, ChildNames, Result<(), ApplyError>) {
        let tenant = &plan.tenants[tenant];
        let mut result = Ok(());
        let mut placed: Vec<PlacedSlot<'_>> = Vec::new();
        // A slot whose new claim failed stays on its current one.
        let has_claim = |slot: &&SlotPlan| slot.gpu_index.as_ref().is_ok_and(|gpu| !lacking.contains(gpu));
        let on = tenant.slots.iter().filter(has_claim);
        for slot in on.filter_map(|slot| plan.placed_slot(pool, tenant, slot)) {
            // Before the pod that mounts it: a slot whose Secret cannot be updated stays unchanged.
            match self.ensure_certificate(unit, &slot, now).await {
                Ok(()) => placed.push(slot),
                Err(refused) => result = result.and(Err(refused)),
            }
        }
        let key = (OwnKind::Tenant, NamespacedName::new(unit.namespace.clone(), tenant_name(tenant)));
        let of = render_cache::tenant_digest(pool, tenant, &placed);
        // A tenant with a Job is not cached, because the Job is temporary.
        let settled = !tenant.should_inspect();
        let mut names = match self.cached_children(&key, of).filter(|_| settled) {
            Some(names) => names,
            None => {
                let own = self.render_tenant(pool, tenant, &placed);
                let (names, applied) = self.apply_rendered(unit, tenant, &own).await;
                if settled {
                    self.record_render(key, of, own.iter().flatten());
                }
                result = result.and(applied);
                names
            }
        };
        // A placed slot stays unchanged if its model is no longer known, or its claim or its Secret failed.
        for slot in tenant.slots.iter().filter(|slot| slot.gpu_index.is_ok()) {
            let name = format!("{}-{}", tenant_name(tenant), slot.index);
            names.extend([(ChildKind::ConfigMap, name.clone()), (ChildKind::Deployment, name)]);
        }
        (tenant_name(tenant), names, result)
    }

    /// Renders the objects of a tenant and of each slot.
    fn render_tenant(
        &self,
        pool: &GpuPool,
        tenant: &TenantPlan<'_>,
        placed: &[PlacedSlot<'_>],
    ) -> Vec<Vec<Child>> {
        let mut own = vec![tenant_children(tenant.tenant)];
        if tenant.should_inspect() {
            own.push(vec![Child::new(ChildKind::Job, &job(pool, tenant.tenant, &self.release))]);
        }
        own.extend(placed.iter().map(|placed| slot_children(placed, &self.release).into()));
        own
    }

    async fn apply_rendered(
        &self,
        unit: &PoolKey,
        tenant: &TenantPlan<'_>,
        own: &[Vec<Child>],
    ) -> (ChildNames, Result<(), ApplyError>) {
        let owner = tenant.tenant.metadata.uid.as_deref().unwrap_or_default();
        let mut result = Ok(());
        for children in own {
            // One failed slot does not stop the others.
            let applied = self.apply_all(unit, owner, children).await;
            result = result.and(applied);
        }
        (own.iter().flatten().map(kind_and_name).collect(), result)
    }

    /// Updates a slot's certificate, and enqueues the pool for the next renewal.
    async fn ensure_certificate(
        &self,
        unit: &PoolKey,
        placed: &PlacedSlot<'_>,
        now: i64,
    ) -> Result<(), ApplyError> {
        let slot = credentials::SlotSecret {
            namespace: unit.namespace.clone(),
            secret: placed.secret_name(),
            tenant: placed.tenant.metadata.name.clone().unwrap_or_default(),
            claim: placed.title(),
            owner: placed.owner(),
            labels: placed.labels(),
        };
        let due = self.certificates.ensure_slot_secret(&slot, now).await?;
        let wait = u64::try_from(due - now).unwrap_or(0).max(1);
        self.queue.add_after(unit, Duration::from_secs(wait));
        Ok(())
    }

    async fn apply_all(&self, unit: &PoolKey, owner: &str, children: &[Child]) -> Result<(), ApplyError> {
        for child in children {
            self.apply_one(unit, owner, child).await?;
        }
        Ok(())
    }

    /// Sends a child, unless it is unchanged.
    async fn apply_one(&self, unit: &PoolKey, owner: &str, child: &Child) -> Result<(), ApplyError> {
        let at = NamespacedName::new(unit.namespace.clone(), child.name.clone());
        let applied = |seen: &ObservedChild| Self::is_applied(child.digest, seen);
        if self.cache.with_child(child.kind, &at, applied) == Some(true) {
            return Ok(());
        }
        let seen = self.cache.child(child.kind, &at);
        // A Job's template is immutable, and the Job may be blocked by what has changed: it is deleted and created
        // again.
        let other = |seen: &ObservedChild| seen.digest.is_some_and(|digest| digest != child.digest);
        let outdated = |seen: &&ObservedChild| seen.is_owned_by(owner) && other(seen);
        if let Some(seen) = seen.as_ref().filter(outdated).filter(|_| child.kind == ChildKind::Job) {
            self.delete(child.kind, unit, &child.name, seen).await;
            return Ok(());
        }
        let failed = |error| ApplyError::api(child.kind, &child.name, error);
        let api = self.api(child.kind, &unit.namespace);
        if seen.is_none_or(|seen| !seen.is_owned_by(owner)) {
            self.check_ownership(&api, owner, child).await?;
        }
        let params = PatchParams::apply(MANAGER).force();
        let applied = api.patch_metadata(&child.name, &params, &Patch::Apply(&child.body)).await;
        let applied = applied.map_err(failed)?;
        self.record_write(child.kind, &at, unit, &applied.metadata);
        Ok(())
    }

    /// Whether the object is as requested, and unchanged since.
    pub(super) fn is_applied(digest: u64, seen: &ObservedChild) -> bool {
        seen.digest == Some(digest)
            && !seen.is_deleting
            && (!seen.has_drifted || seen.applied_fields == Some(seen.managed_fields))
    }

    /// Foreign objects are never taken over.
    async fn check_ownership(
        &self,
        api: &Api<DynamicObject>,
        owner: &str,
        child: &Child,
    ) -> Result<(), ApplyError> {
        let found = api.get_metadata_opt(&child.name).await;
        let found = found.map_err(|error| ApplyError::api(child.kind, &child.name, error))?;
        let Some(found) = found else { return Ok(()) };
        match ObservedChild::observe(&found.metadata, None).is_owned_by(owner) {
            true => Ok(()),
            false => Err(ApplyError::NameConflict { kind: child.kind.as_str(), name: child.name.clone() }),
        }
    }

    /// Updates the cache from the answer to a write, without waiting for the watch.
    fn record_write(&self, kind: ChildKind, at: &NamespacedName, unit: &PoolKey, metadata: &ObjectMeta) {
        match kind {
            ChildKind::ResourceClaim => {
                let before = self.cache.claims.get(at);
                let mut entry = ClaimEntry::observe_metadata(metadata, before.as_ref());
                entry.child.applied_fields = Some(entry.child.managed_fields);
                self.cache.claims.insert(at.clone(), unit.clone(), entry);
            }
            kind => {
                let mirror = self.cache.children(kind);
                let mut child = ObservedChild::observe(metadata, mirror.get(at).as_ref());
                child.applied_fields = Some(child.managed_fields);
                mirror.insert(at.clone(), unit.clone(), child);
            }
        }
    }

    /// Deletes children that are not in the plan. Children of a deleted tenant are deleted by their owner reference.
    /// A tenant with apply errors keeps its current children, but not those of others.
    async fn prune(
        &self,
        unit: &PoolKey,
        plan: &PoolPlan<'_>,
        (kept, failures): (&DesiredChildren, &BTreeMap<String, ApplyFailure>),
    ) {
        let tenants: BTreeSet<String> = plan.tenants.iter().map(tenant_name).collect();
        let in_use = self.claims_of(unit, failures);
        let stays = |kind: ChildKind, name: &str, child: &ObservedChild| match &child.tenant {
            Some(tenant) => !tenants.contains(tenant),
            None if kind == ChildKind::ResourceClaim => in_use.contains(name),
            None => !failures.is_empty(),
        };
        let mut gone = Vec::new();
        for kind in ChildKind::ALL {
            let kept = kept.get(&kind);
            self.cache.for_each_child(kind, unit, |name, child| {
                let planned = kept.is_some_and(|kept| kept.contains(name));
                if !child.is_deleting && !planned && !stays(kind, name, child) {
                    gone.push((kind, name.to_owned(), child.clone()));
                }
            });
        }
        stream::iter(gone)
            .for_each_concurrent(MAX_CONCURRENT_REQUESTS, |(kind, name, child)| async move {
                self.delete(kind, unit, &name, &child).await;
            })
            .await;
    }

    /// Returns the claims of these tenants' pods: a slot that could not move to another claim keeps its own.
    fn claims_of(&self, unit: &PoolKey, failures: &BTreeMap<String, ApplyFailure>) -> BTreeSet<String> {
        let mut claims = BTreeSet::new();
        self.cache.children(ChildKind::Deployment).for_each(unit, |_, child| {
            let troubled = child.tenant.as_ref().is_some_and(|tenant| failures.contains_key(tenant));
            claims.extend(child.claim.clone().filter(|_| troubled));
        });
        claims
    }

    /// Deletes exactly the observed object. A failure is repeated at the next reconciliation: the object still
    /// exists.
    async fn delete(&self, kind: ChildKind, unit: &PoolKey, name: &str, child: &ObservedChild) {
        let only = Preconditions { uid: Some(child.uid.clone()), resource_version: None };
        // The certificate is deleted before the object that identifies it.
        if kind == ChildKind::Deployment
            && let Err(error) = self
                .certificates
                .delete(&unit.namespace, &format!("sluice-{name}"), |uid| child.is_owned_by(uid))
                .await
        {
            tracing::warn!(
                namespace = unit.namespace, slot = name, %error,
                "could not delete the certificate of a slot"
            );
            return self.queue.add_after(unit, Duration::from_secs(5));
        }
        let params = DeleteParams { preconditions: Some(only), ..DeleteParams::background() };
        match self.api(kind, &unit.namespace).delete(name, &params).await {
            Ok(_) => tracing::info!(namespace = unit.namespace, kind = kind.as_str(), name, "deleted"),
            Err(kube::Error::Api(error)) if error.code == 404 || error.code == 409 => {}
            Err(error) => {
                tracing::warn!(
                    namespace = unit.namespace, kind = kind.as_str(), name, %error,
                    "could not delete an object"
                );
                self.queue.add_after(unit, Duration::from_secs(5));
            }
        }
    }

    /// Removes the label that permits downloads from pods that have their model.
    async fn remove_fetch_label(&self, unit: &PoolKey) {
        let api: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(self.client.clone(), &unit.namespace);
        let mut fetched = Vec::new();
        self.cache.pods.for_each(unit, |name, pod| {
            fetched.extend((pod.is_fetched && pod.is_current()).then(|| (name.to_owned(), pod.uid.clone())));
        });
        for (name, uid) in fetched {
            let patch = json!({"metadata": {"uid": uid, "labels": {FETCHING: null}}});
            let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
            if let Err(error) = api.patch_metadata(&name, &params, &Patch::Merge(patch)).await {
                tracing::warn!(
                    namespace = unit.namespace, pod = name, %error,
                    "could not remove the label that permits downloads"
                );
            }
        }
    }

    fn api(&self, kind: ChildKind, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &api_resource(kind))
    }
}

fn add_children(kept: &mut DesiredChildren, names: ChildNames) {
    for (kind, name) in names {
        kept.entry(kind).or_default().insert(name);
    }
}

fn kind_and_name(child: &Child) -> (ChildKind, String) {
    (child.kind, child.name.clone())
}

fn tenant_name(tenant: &TenantPlan<'_>) -> String {
    tenant.tenant.metadata.name.clone().unwrap_or_default()
}

fn api_resource(kind: ChildKind) -> ApiResource {
    let (group, version, plural) = match kind {
        ChildKind::ConfigMap => ("", "v1", "configmaps"),
        ChildKind::Deployment => ("apps", "v1", "deployments"),
        ChildKind::Job => ("batch", "v1", "jobs"),
        ChildKind::NetworkPolicy => ("networking.k8s.io", "v1", "networkpolicies"),
        ChildKind::PodDisruptionBudget => ("policy", "v1", "poddisruptionbudgets"),
        ChildKind::ResourceClaim => ("resource.k8s.io", "v1", "resourceclaims"),
        ChildKind::Service => ("", "v1", "services"),
    };
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind.as_str()), plural)
}
