//! Step 1: the observed state of a pool.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::ResourceExt;
use sluice_plan::objects::inspect::{job_name, startup_failure};
use sluice_plan::observed::{EndedPod, ObservedClaim, ObservedNode, ObservedPod, ObservedPool, ObservedSlot};
use sluice_types::{GpuPool, ModelTenant};
use sluice_wire::geometry::{Geometry, GeometryError};

use super::Reconciler;
use crate::cache::{ClaimEntry, DeviceId, NamespacedName, PoolKey};

/// Result of an inspection.
type InspectionResult = Result<Geometry, GeometryError>;

/// The observed objects of a pool.
pub struct ObservedPoolObjects {
    /// The pool; `None` = no pool of that name exists.
    pub pool: Option<Arc<GpuPool>>,
    /// Its tenants, without those that are being deleted.
    pub tenants: Vec<Arc<ModelTenant>>,
    /// No tenant refers to the pool, not even one that is being deleted.
    pub are_all_tenants_gone: bool,
    pub observed: ObservedPool,
}

impl Reconciler {
    pub(super) fn observe(&self, unit: &PoolKey, now: i64) -> ObservedPoolObjects {
        let world = &self.cache;
        let tenants = world.tenants.list(unit);
        let all_tenants_gone = tenants.is_empty();
        let staying = |tenant: &Arc<ModelTenant>| tenant.metadata.deletion_timestamp.is_none();
        let claims = world.claims.list(unit);
        let tenants: Vec<_> = tenants.into_iter().map(|(_, tenant)| tenant).filter(staying).collect();
        let slots = world.slots(unit);
        let requested = world.requested_bytes();
        let nodes = claims.iter().filter_map(|(_, entry)| self.node(entry, &requested)).collect();
        let on = claims.iter().filter_map(|(_, entry)| entry.claim.device.as_ref()?.node.clone());
        let missing = world.missing_nodes(&on.collect(), now);
        let pods = world.pods.list(unit).into_iter().map(|(_, pod)| self.with_pod_warning(unit, pod));
        let pods = with_predecessor_exit(pods.collect());
        let unmade = slots.iter().filter_map(|slot| self.pod_creation_error(unit, slot)).collect();
        ObservedPoolObjects {
            pool: world.pools.get(&NamespacedName::new(unit.namespace.clone(), unit.pool.clone())),
            are_all_tenants_gone: all_tenants_gone,
            observed: ObservedPool {
                claims: self.with_device_info(claims),
                reports: self.reports(unit, &pods),
                floors: self.floors(unit),
                owned: self.owned(unit),
                directive_errors: self.undelivered(unit),
                unpolled_gpus: self.unobserved_gpus(unit, &pods),
                pod_creation_errors: unmade,
                slots,
                pods,
                nodes,
                missing_nodes: missing,
                inspections: self.inspections(unit, &tenants),
            },
            tenants,
        }
    }

    /// Returns the inspection results of these tenants: sizes, if any pod reported them, else an error.
    fn inspections(
        &self,
        unit: &PoolKey,
        tenants: &[Arc<ModelTenant>],
    ) -> BTreeMap<String, InspectionResult> {
        let uid = |tenant: &Arc<ModelTenant>| (tenant.metadata.name.clone(), tenant.metadata.uid.clone());
        let known: BTreeMap<_, _> = tenants.iter().map(uid).collect();
        let mut all = BTreeMap::new();
        let mut begun = BTreeSet::new();
        for (pod, inspection) in self.cache.inspections.list(unit) {
            begun.insert(inspection.tenant.clone());
            let own = known.get(&Some(inspection.tenant.clone())) == Some(&Some(inspection.tenant_uid));
            let waits =
                || self.mount_error(unit, &pod, &inspection.pod_uid).filter(|_| !inspection.has_started);
            let unmounted = || Some(Err(startup_failure(waits()?)));
            if let Some(said) = inspection.result.or_else(unmounted).filter(|_| own) {
                match said {
                    Ok(_) => drop(all.insert(inspection.tenant, said)),
                    Err(_) => drop(all.entry(inspection.tenant).or_insert(said)),
                }
            }
        }
        for tenant in tenants.iter().filter(|tenant| !begun.contains(&tenant.name_any())) {
            if let Some(refusal) = self
                .cache
                .job_create_failures
                .get(&NamespacedName::new(unit.namespace.clone(), job_name(tenant)))
            {
                all.insert(tenant.name_any(), Err(startup_failure(refusal.message)));
            }
        }
        all
    }

    /// Returns why a slot's pod cannot be created, if an event reports it.
    fn pod_creation_error(&self, unit: &PoolKey, slot: &ObservedSlot) -> Option<((String, u32), String)> {
        let at = NamespacedName::new(unit.namespace.clone(), format!("{}-{}", slot.tenant, slot.index));
        Some(((slot.tenant.clone(), slot.index), self.cache.pod_create_failures.get(&at)?.message))
    }

    fn node(&self, entry: &ClaimEntry, requested: &BTreeMap<String, u64>) -> Option<(String, ObservedNode)> {
        let name = entry.claim.device.as_ref()?.node.clone()?;
        let node = self.cache.nodes.get(&NamespacedName::new("", name.as_str()))?;
        let requested_bytes = requested.get(&name).copied().unwrap_or(0);
        Some((name, ObservedNode { requested_bytes, ..node }))
    }

    /// A driver's error is valid until the pod has an address, because its devices are then prepared.
    fn with_pod_warning(&self, unit: &PoolKey, mut pod: ObservedPod) -> ObservedPod {
        let refusal =
            self.cache.prepare_failures.get(&NamespacedName::new(unit.namespace.clone(), pod.name.clone()));
        let own = refusal.filter(|refusal| refusal.pod_uid == pod.uid && pod.ip.is_none());
        pod.prepare_error = own.map(|refusal| refusal.message);
        if pod.ip.is_none() {
            pod.failure_reason = pod.failure_reason.or_else(|| self.mount_error(unit, &pod.name, &pod.uid));
        }
        pod
    }

    /// Returns the volume that a pod waits for, if an event reports it.
    fn mount_error(&self, unit: &PoolKey, pod: &str, uid: &str) -> Option<String> {
        let at = NamespacedName::new(unit.namespace.clone(), pod);
        let said =
            [&self.cache.attach_failures, &self.cache.mount_failures].map(|failures| failures.get(&at));
        said.into_iter().flatten().find(|said| said.pod_uid == uid).map(|said| said.message)
    }

    /// Adds the slices' data to each claim's device.
    fn with_device_info(&self, claims: Vec<(String, ClaimEntry)>) -> Vec<ObservedClaim> {
        let wanted: BTreeMap<DeviceId, usize> = claims
            .iter()
            .enumerate()
            .filter_map(|(at, (_, entry))| Some((entry.device.clone()?, at)))
            .collect();
        let mut claims: Vec<ObservedClaim> = claims.into_iter().map(|(_, entry)| entry.claim).collect();
        let found = self.cache.slices.filter_map(|_, slice| {
            let of = |name: &String| DeviceId {
                driver: slice.driver.clone(),
                pool: slice.pool.clone(),
                name: name.clone(),
            };
            let own = slice
                .devices
                .iter()
                .filter_map(|(name, known)| Some((*wanted.get(&of(name))?, known.clone())));
            Some(own.collect::<Vec<_>>())
        });
        for (at, (bytes, uuid)) in found.into_iter().flatten() {
            if let Some(device) = &mut claims[at].device {
                (device.capacity_bytes, device.uuid) = (Some(bytes), uuid);
            }
        }
        claims
    }
}

/// Adds the exit of an earlier pod of the slot to pods that are not ready: a pod that is evicted repeatedly reports
/// nothing else.
fn with_predecessor_exit(mut pods: Vec<ObservedPod>) -> Vec<ObservedPod> {
    let mut ended = BTreeMap::<(String, u32), EndedPod>::new();
    // The exit of a pod that is being deleted is no failure.
    for pod in pods.iter().filter(|pod| !pod.is_deleting) {
        let Some(own) = &pod.ended else { continue };
        let last = ended.entry((pod.tenant.clone(), pod.index)).or_default();
        *last = own.clone().max(last.clone());
    }
    for pod in pods.iter_mut().filter(|pod| pod.is_current() && !pod.is_ready) {
        pod.predecessor_failure =
            ended.get(&(pod.tenant.clone(), pod.index)).map(|ended| ended.reason.clone());
    }
    pods
}
