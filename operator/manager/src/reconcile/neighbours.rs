//! Sidecars of one GPU are told about each other, and what they say is heard.

use std::collections::BTreeMap;
use std::net::IpAddr;

use sluice_plan::direct::{Member, Shared, settled};
use sluice_plan::objects::{claim_name, of_claim_name};
use sluice_plan::seen::{PodSeen, Report, Seen, SlotSeen};
use sluice_plan::told::reports;
use sluice_plan::unit::{Given, Plan};
use sluice_plan::written::sharing;
use sluice_types::GpuPool;
use sluice_wire::directive::Directive;
use sluice_wire::state::{Activity, TenantReport};

use super::{Operator, lock};
use crate::sidecars::call::Address;
use crate::sidecars::{Gpu, GpuKey, Target};
use crate::world::Unit;

impl Operator {
    /// What sidecars of these slots said last, by tenant and GPU.
    pub(super) fn reports(&self, unit: &Unit, slots: &[SlotSeen]) -> BTreeMap<(String, String), Report> {
        let mut all = BTreeMap::new();
        for gpu in slots.iter().filter_map(|slot| Some(of_claim_name(&slot.claim)?.0)) {
            let reading = lock(&self.sidecars).reading(&key(unit, gpu)).unwrap_or_default();
            let told = reports(&reading.tenants);
            all.extend(told.map(|(tenant, report)| ((tenant.to_owned(), gpu.to_owned()), report)));
        }
        all
    }

    /// The GPUs of a plan, with the sidecars that have an address and what each is to be told.
    pub(super) fn gpus(&self, unit: &Unit, pool: &GpuPool, plan: &Plan<'_>, given: &Given<'_>) -> Vec<Gpu> {
        let with_slots = (0..plan.gpus.len()).filter(|gpu| plan.gpus[*gpu].epoch.is_some());
        with_slots.map(|gpu| self.gpu(unit, pool, plan, given, gpu)).collect()
    }

    fn gpu(&self, unit: &Unit, pool: &GpuPool, plan: &Plan<'_>, given: &Given<'_>, gpu: usize) -> Gpu {
        let planned = &plan.gpus[gpu];
        let key = key(unit, &planned.gpu.name);
        let claim = planned.epoch.map(|epoch| claim_name(&planned.gpu, epoch.number)).unwrap_or_default();
        let seen = given.seen.claims.iter().find(|seen| seen.name == claim);
        let reading = lock(&self.sidecars).reading(&key).unwrap_or_default();
        let members = plan.on(gpu).filter_map(|(tenant, slot)| {
            let name = tenant.tenant.metadata.name.as_deref()?;
            let pod = pod(given.seen, name, slot.index, &claim)?;
            Some(Member {
                tenant: tenant.tenant,
                share_bytes: slot.share_bytes,
                floor_bytes: slot.demand.floor_bytes,
                pod_uid: pod.uid.clone(),
                address: pod.ip.as_ref()?.parse::<IpAddr>().ok()?,
                activity: activity(&reading.tenants, name),
            })
        });
        let shared = Shared {
            pool,
            sharing: sharing(&planned.gpu.sharing),
            claim_uid: seen.map(|claim| claim.uid.as_str()),
            members: members.collect(),
        };
        let targets =
            (0..shared.members.len()).map(|member| self.target(unit, &key, &shared, member, given.now));
        let node = seen.and_then(|claim| claim.device.as_ref()?.node.clone());
        Gpu { targets: targets.collect(), key, node }
    }

    fn target(&self, unit: &Unit, key: &GpuKey, shared: &Shared<'_>, member: usize, now: i64) -> Target {
        let own = &shared.members[member];
        let name = own.tenant.metadata.name.clone().unwrap_or_default();
        let told = (key.clone(), name.clone(), own.pod_uid.clone());
        let address = Address { namespace: unit.namespace.clone(), name, admin: own.admin() };
        let directive = self.settle(told, shared.directive(member), now);
        Target { address, pod_uid: own.pod_uid.clone(), directive }
    }

    /// What a sidecar is told: what it was told before, until something else counts.
    fn settle(&self, told: super::Told, wanted: Directive, now: i64) -> Directive {
        let mut all = lock(&self.memory.told);
        if let Some(newer) = settled(all.get(&told), wanted.clone(), now) {
            all.insert(told.clone(), newer);
        }
        all.get(&told).map_or(wanted, |told| told.directive.clone())
    }

    /// Hands a unit's sidecars over; what was kept of those that are gone is dropped.
    pub(super) fn direct(&self, unit: &Unit, gpus: Vec<Gpu>) {
        let there = |key: &GpuKey, pod: &str| {
            let own = gpus.iter().find(|gpu| gpu.key == *key);
            own.is_some_and(|gpu| gpu.targets.iter().any(|target| target.pod_uid == pod))
        };
        let of_unit = |key: &GpuKey| key.namespace == unit.namespace && key.pool == unit.pool;
        lock(&self.memory.told).retain(|(key, _, pod), _| !of_unit(key) || there(key, pod));
        lock(&self.sidecars).set(&unit.namespace, &unit.pool, gpus);
    }
}

fn key(unit: &Unit, gpu: &str) -> GpuKey {
    GpuKey { namespace: unit.namespace.clone(), pool: unit.pool.clone(), name: gpu.to_owned() }
}

fn pod<'a>(seen: &'a Seen, tenant: &str, index: u32, claim: &str) -> Option<&'a PodSeen> {
    let own = |pod: &&PodSeen| pod.tenant == tenant && pod.index == index && pod.claim == claim;
    seen.pods.iter().filter(own).find(|pod| !pod.deleting)
}

/// When a tenant was last of use, as it said.
fn activity(told: &[TenantReport], tenant: &str) -> Option<Activity> {
    told.iter().find_map(|report| match report {
        TenantReport::State(state) if state.tenant.name == tenant => Some(state.activity.clone()),
        _ => None,
    })
}
