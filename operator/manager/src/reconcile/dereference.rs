//! Step 1: all that is seen of a unit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::ResourceExt;
use sluice_plan::objects::inspect::{hindered, job_name};
use sluice_plan::seen::{ClaimSeen, Ended, NodeSeen, PodSeen, Seen, SlotSeen};
use sluice_types::{GpuPool, ModelTenant};
use sluice_wire::geometry::{Geometry, Refusal};

use super::Operator;
use crate::world::{ClaimEntry, DeviceId, Name, Unit};

/// What an inspection said.
type Said = Result<Geometry, Refusal>;

/// A unit as it is seen.
pub struct Scene {
    /// The pool, if there is one.
    pub pool: Option<Arc<GpuPool>>,
    /// Its tenants, those that are being deleted aside.
    pub tenants: Vec<Arc<ModelTenant>>,
    /// No tenant refers to the pool, not even one that is being deleted.
    pub all_tenants_gone: bool,
    /// The rest.
    pub seen: Seen,
}

impl Operator {
    pub(super) fn dereference(&self, unit: &Unit, now: i64) -> Scene {
        let world = &self.world;
        let tenants = world.tenants.of(unit);
        let all_tenants_gone = tenants.is_empty();
        let staying = |tenant: &Arc<ModelTenant>| tenant.metadata.deletion_timestamp.is_none();
        let claims = world.claims.of(unit);
        let tenants: Vec<_> = tenants.into_iter().map(|(_, tenant)| tenant).filter(staying).collect();
        let slots = world.slots(unit);
        let requested = world.requested_bytes();
        let nodes = claims.iter().filter_map(|(_, entry)| self.node(entry, &requested)).collect();
        let on = claims.iter().filter_map(|(_, entry)| entry.claim.device.as_ref()?.node.clone());
        let missing = world.missing(&on.collect(), now);
        let pods = world.pods.of(unit).into_iter().map(|(_, pod)| self.with_refusal(unit, pod));
        let pods = after_others(pods.collect());
        let unmade = slots.iter().filter_map(|slot| self.unmade(unit, slot)).collect();
        Scene {
            pool: world.pools.get(&Name::new(unit.namespace.clone(), unit.pool.clone())),
            all_tenants_gone,
            seen: Seen {
                claims: self.with_devices(claims),
                reports: self.reports(unit, &pods),
                floors: self.floors(unit),
                owned: self.owned(unit),
                untold: self.untold(unit),
                unheard: self.unheard(unit, &pods),
                unmade,
                slots,
                pods,
                nodes,
                missing,
                inspections: self.inspections(unit, &tenants),
            },
            tenants,
        }
    }

    /// What inspections of these tenants said: sizes, if any of a tenant's pods told them, else why not.
    fn inspections(&self, unit: &Unit, tenants: &[Arc<ModelTenant>]) -> BTreeMap<String, Said> {
        let uid = |tenant: &Arc<ModelTenant>| (tenant.metadata.name.clone(), tenant.metadata.uid.clone());
        let known: BTreeMap<_, _> = tenants.iter().map(uid).collect();
        let mut all = BTreeMap::new();
        let mut begun = BTreeSet::new();
        for (pod, inspection) in self.world.inspections.of(unit) {
            begun.insert(inspection.tenant.clone());
            let own = known.get(&Some(inspection.tenant.clone())) == Some(&Some(inspection.tenant_uid));
            let waits = || self.unmounted(unit, &pod, &inspection.pod_uid).filter(|_| !inspection.begun);
            let unmounted = || Some(Err(hindered(waits()?)));
            if let Some(said) = inspection.said.or_else(unmounted).filter(|_| own) {
                match said {
                    Ok(_) => drop(all.insert(inspection.tenant, said)),
                    Err(_) => drop(all.entry(inspection.tenant).or_insert(said)),
                }
            }
        }
        for tenant in tenants.iter().filter(|tenant| !begun.contains(&tenant.name_any())) {
            if let Some(refusal) =
                self.world.unbegun.get(&Name::new(unit.namespace.clone(), job_name(tenant)))
            {
                all.insert(tenant.name_any(), Err(hindered(refusal.message)));
            }
        }
        all
    }

    /// Why a slot's pod cannot be made, where somebody said so.
    fn unmade(&self, unit: &Unit, slot: &SlotSeen) -> Option<((String, u32), String)> {
        let at = Name::new(unit.namespace.clone(), format!("{}-{}", slot.tenant, slot.index));
        Some(((slot.tenant.clone(), slot.index), self.world.unmade.get(&at)?.message))
    }

    fn node(&self, entry: &ClaimEntry, requested: &BTreeMap<String, u64>) -> Option<(String, NodeSeen)> {
        let name = entry.claim.device.as_ref()?.node.clone()?;
        let node = self.world.nodes.get(&Name::new("", name.as_str()))?;
        let requested_bytes = requested.get(&name).copied().unwrap_or(0);
        Some((name, NodeSeen { requested_bytes, ..node }))
    }

    /// A driver's word counts until the pod has an address: by then its devices are there.
    fn with_refusal(&self, unit: &Unit, mut pod: PodSeen) -> PodSeen {
        let refusal = self.world.refusals.get(&Name::new(unit.namespace.clone(), pod.name.clone()));
        let own = refusal.filter(|refusal| refusal.pod_uid == pod.uid && pod.ip.is_none());
        pod.refused = own.map(|refusal| refusal.message);
        if pod.ip.is_none() {
            pod.failing = pod.failing.or_else(|| self.unmounted(unit, &pod.name, &pod.uid));
        }
        pod
    }

    /// Which volume a pod waits for, if the kubelet said so.
    fn unmounted(&self, unit: &Unit, pod: &str, uid: &str) -> Option<String> {
        let at = Name::new(unit.namespace.clone(), pod);
        let said = [&self.world.unattached, &self.world.unmounted].map(|told| told.get(&at));
        said.into_iter().flatten().find(|said| said.pod_uid == uid).map(|said| said.message)
    }

    /// Adds what slices say of each claim's device.
    fn with_devices(&self, claims: Vec<(String, ClaimEntry)>) -> Vec<ClaimSeen> {
        let wanted: BTreeMap<DeviceId, usize> = claims
            .iter()
            .enumerate()
            .filter_map(|(at, (_, entry))| Some((entry.device.clone()?, at)))
            .collect();
        let mut claims: Vec<ClaimSeen> = claims.into_iter().map(|(_, entry)| entry.claim).collect();
        let found = self.world.slices.all(|_, slice| {
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

/// Adds to those that are not ready yet how an earlier one of each slot ended: a pod that is evicted again and again never tells more.
fn after_others(mut pods: Vec<PodSeen>) -> Vec<PodSeen> {
    let mut ended = BTreeMap::<(String, u32), Ended>::new();
    // One that is told to go ends as it should.
    for pod in pods.iter().filter(|pod| !pod.deleting) {
        let Some(own) = &pod.ended else { continue };
        let last = ended.entry((pod.tenant.clone(), pod.index)).or_default();
        *last = own.clone().max(last.clone());
    }
    for pod in pods.iter_mut().filter(|pod| pod.stays() && !pod.ready) {
        pod.after = ended.get(&(pod.tenant.clone(), pod.index)).map(|ended| ended.why.clone());
    }
    pods
}
