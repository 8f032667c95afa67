//! Sidecars of one GPU are told about each other, and what they say is heard.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use sluice_plan::direct::{Member, Shared, settled};
use sluice_plan::objects::{claim_name, of_claim_name};
use sluice_plan::seen::{PodSeen, Report};
use sluice_plan::told::reports;
use sluice_plan::unit::{Given, Plan};
use sluice_plan::written::sharing;
use sluice_types::GpuPool;
use sluice_wire::directive::Directive;
use sluice_wire::state::{Activity, TenantReport};

use super::{Operator, lock};
use crate::sidecars::call::Address;
use crate::sidecars::{Gpu, GpuKey, LISTENS, Reading, Target};
use crate::world::Unit;

/// By tenant and GPU.
type ByTenant<T> = BTreeMap<(String, String), T>;

impl Operator {
    /// What a unit's sidecars said last, by tenant and GPU. What a pod said is not held against its successor.
    pub(super) fn reports(&self, unit: &Unit, pods: &[PodSeen]) -> ByTenant<Report> {
        let present = Present::of(pods);
        self.told(unit, |gpu, read| {
            let own = reports(&read.tenants).filter(|(tenant, _)| {
                let pod = read.pods.get(*tenant).map(String::as_str);
                present.is_of(tenant, gpu, pod)
            });
            own.map(|(tenant, one)| (tenant.to_owned(), one)).collect()
        })
    }

    /// The floors that a unit's sidecars told last, bytes, by tenant and GPU.
    pub(super) fn floors(&self, unit: &Unit) -> ByTenant<u64> {
        self.told(unit, |_, read| read.floors.clone().into_iter().collect())
    }

    /// Device memory that a unit's tenants own, bytes, as their sidecars told it last, by tenant and GPU.
    pub(super) fn owned(&self, unit: &Unit) -> ByTenant<u64> {
        self.told(unit, |_, read| read.owned.clone().into_iter().collect())
    }

    /// Something of what was read last of a unit's GPUs, of each tenant.
    fn told<T>(&self, unit: &Unit, of: impl Fn(&str, &Reading) -> Vec<(String, T)>) -> ByTenant<T> {
        let mut all = BTreeMap::new();
        lock(&self.sidecars).each_reading(&unit.namespace, &unit.pool, |gpu, reading| {
            let of_gpu = of(gpu, reading).into_iter();
            all.extend(of_gpu.map(|(tenant, one)| ((tenant, gpu.to_owned()), one)));
        });
        all
    }

    /// Which of a unit's sidecars have not taken their directive, by tenant and GPU.
    pub(super) fn untold(&self, unit: &Unit) -> ByTenant<String> {
        lock(&self.sidecars).untold(&unit.namespace, &unit.pool)
    }

    /// GPUs on which pods have an address and were not asked yet what they have found. They are soon: then it is looked again.
    pub(super) fn unheard(&self, unit: &Unit, pods: &[PodSeen]) -> BTreeSet<String> {
        let sidecars = lock(&self.sidecars);
        let reached = pods.iter().filter(|pod| pod.ip.is_some() && pod.stays());
        let on = reached.filter_map(|pod| Some(of_claim_name(&pod.claim)?.0));
        let unheard: BTreeSet<String> =
            on.filter(|gpu| !sidecars.heard(&key(unit, gpu))).map(str::to_owned).collect();
        if !unheard.is_empty() {
            self.queue.add_after(unit, LISTENS);
        }
        unheard
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
        let seen = plan.claim(&claim);
        let active = lock(&self.sidecars).of_reading(&key, |reading| activities(&reading.tenants));
        let members = plan.on(gpu).filter_map(|(tenant, slot)| {
            let name = tenant.tenant.metadata.name.as_deref()?;
            let pod = plan.pod(name, slot.index, &claim)?;
            Some(Member {
                tenant: tenant.tenant,
                share_bytes: slot.share_bytes,
                dealt: slot.dealt,
                floor_bytes: slot.floor_bytes,
                pod_uid: pod.uid.clone(),
                address: pod.ip.as_ref()?.parse::<IpAddr>().ok()?,
                activity: active.as_ref().and_then(|active| active.get(name).cloned()),
            })
        });
        let shared = Shared {
            pool,
            sharing: sharing(&planned.gpu.settings.sharing),
            claim_uid: seen.map(|claim| claim.uid.as_str()),
            gpu_uuid: seen.and_then(|claim| claim.device.as_ref()?.uuid.as_deref()),
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
    fn settle(&self, told: super::Told, wanted: Directive, now: i64) -> Arc<Directive> {
        let mut all = lock(&self.memory.told);
        if let Some(newer) = settled(all.get(&told), wanted, now) {
            all.insert(told.clone(), newer);
        }
        all.get(&told).expect("who was told nothing before is told now").directive.clone()
    }

    /// Hands a unit's sidecars over; what was kept of those that are gone is dropped.
    pub(super) fn direct(&self, unit: &Unit, gpus: Vec<Gpu>) {
        let by_name: HashMap<&str, &Gpu> = gpus.iter().map(|gpu| (gpu.key.name.as_str(), gpu)).collect();
        let there = |key: &GpuKey, pod: &str| {
            let own = by_name.get(key.name.as_str());
            own.is_some_and(|gpu| gpu.targets.iter().any(|target| target.pod_uid == pod))
        };
        let of_unit = |key: &GpuKey| key.namespace == unit.namespace && key.pool == unit.pool;
        lock(&self.memory.told).retain(|(key, _, pod), _| !of_unit(key) || there(key, pod));
        lock(&self.sidecars).set(&unit.namespace, &unit.pool, gpus);
    }
}

/// Pods that are there.
struct Present<'a> {
    all: HashSet<&'a str>,
    /// Those that are to stay, by tenant and GPU.
    staying: HashMap<(&'a str, &'a str), &'a str>,
}

impl<'a> Present<'a> {
    fn of(pods: &'a [PodSeen]) -> Present<'a> {
        let staying = pods.iter().filter(|pod| pod.stays()).filter_map(|pod| {
            let (gpu, _) = of_claim_name(&pod.claim)?;
            Some(((pod.tenant.as_str(), gpu), pod.uid.as_str()))
        });
        // Of several the first, as a plan has it.
        let staying = staying.fold(HashMap::new(), |mut all, (key, uid)| {
            all.entry(key).or_insert(uid);
            all
        });
        // Whatever one that is over said last, nobody would say otherwise.
        let all = pods.iter().filter(|pod| pod.ended.is_none()).map(|pod| pod.uid.as_str());
        Present { all: all.collect(), staying }
    }

    /// Whether what was said by this pod, if it was known, is of the one that a tenant has on a GPU now.
    fn is_of(&self, tenant: &str, gpu: &str, pod: Option<&str>) -> bool {
        match self.staying.get(&(tenant, gpu)) {
            Some(staying) => pod == Some(*staying),
            // It is on its way out, and is nobody's predecessor yet.
            None => pod.is_none_or(|pod| self.all.contains(pod)),
        }
    }
}

fn key(unit: &Unit, gpu: &str) -> GpuKey {
    GpuKey { namespace: unit.namespace.clone(), pool: unit.pool.clone(), name: gpu.to_owned() }
}

/// When tenants were last of use, as they said.
fn activities(told: &[TenantReport]) -> HashMap<String, Activity> {
    let own = told.iter().filter_map(|report| match report {
        TenantReport::State(state) => Some((state.tenant.name.clone(), state.activity.clone())),
        TenantReport::Unreachable { .. } => None,
    });
    own.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_plan::seen::Ended;

    fn pod(uid: &str, claim: &str, deleting: bool) -> PodSeen {
        let (tenant, claim) = ("t".to_owned(), claim.to_owned());
        PodSeen { uid: uid.to_owned(), tenant, claim, deleting, ..PodSeen::default() }
    }

    #[test]
    fn what_a_pod_said_is_not_held_against_the_one_that_follows_it() {
        let pods = [pod("old", "g-0-e1", true), pod("new", "g-0-e2", false), pod("far", "g-1-e1", true)];
        let present = Present::of(&pods);
        assert!(present.is_of("t", "g-0", Some("new")));
        assert!(!present.is_of("t", "g-0", Some("old")), "though it is there for a while");
        assert!(!present.is_of("t", "g-0", None), "whoever it was, the new one had no address yet");
        assert!(!present.is_of("t", "g-0", Some("far")));
        assert!(present.is_of("t", "g-1", Some("far")), "it drains, and nobody has followed it");
        assert!(!present.is_of("t", "g-1", Some("gone")));
        assert!(!present.is_of("u", "g-0", Some("gone")));
        let mut both = [pod("a", "g-0-e1", false), pod("b", "g-0-e1", false)];
        assert!(Present::of(&both).is_of("t", "g-0", Some("a")), "as a plan has it");
        both[0].ended = Some(Ended::default());
        assert!(Present::of(&both).is_of("t", "g-0", Some("b")));
        assert!(!Present::of(&both[..1]).is_of("t", "g-0", Some("a")), "it says nothing more");
    }
}
