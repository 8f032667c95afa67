//! Sends directives to the sidecars of each GPU, and collects their reports.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use sluice_plan::directives::{GpuPeers, PeerSidecar, next_directive};
use sluice_plan::objects::{ADMIN_PORT, claim_name, parse_claim_name};
use sluice_plan::observed::{ObservedPod, SidecarReport};
use sluice_plan::plan_context::PlanContext;
use sluice_plan::pool_plan::PoolPlan;
use sluice_plan::sidecar_report::reports;
use sluice_types::GpuPool;
use sluice_wire::directive::Directive;
use sluice_wire::state::{Activity, TenantReport};

use super::Reconciler;
use super::lock::lock;
use crate::cache::PoolKey;
use crate::sidecars::http_client::SidecarAddress;
use crate::sidecars::{DirectiveTarget, GpuKey, GpuReading, GpuSidecars, INITIAL_READ_TIMEOUT};

/// By tenant and GPU.
type BySlot<T> = BTreeMap<(String, String), T>;

impl Reconciler {
    /// Returns the last reports of a pool's sidecars, by tenant and GPU. The report of an old pod is not attributed
    /// to its successor.
    pub(super) fn reports(&self, unit: &PoolKey, pods: &[ObservedPod]) -> BySlot<SidecarReport> {
        let present = CurrentPods::new(pods);
        self.collect_readings(unit, |gpu, read| {
            let own = reports(&read.tenants).filter(|(tenant, _)| {
                let pod = read.pods.get(*tenant).map(String::as_str);
                present.is_current(tenant, gpu, pod)
            });
            own.map(|(tenant, one)| (tenant.to_owned(), one)).collect()
        })
    }

    /// Returns the last reported floors of a pool's sidecars, bytes, by tenant and GPU.
    pub(super) fn floors(&self, unit: &PoolKey) -> BySlot<u64> {
        self.collect_readings(unit, |_, read| read.floors.clone().into_iter().collect())
    }

    /// Returns the device memory that a pool's tenants own, bytes, as last reported, by tenant and GPU.
    pub(super) fn owned(&self, unit: &PoolKey) -> BySlot<u64> {
        self.collect_readings(unit, |_, read| read.owned.clone().into_iter().collect())
    }

    /// Collects a value per tenant from the last readings of a pool's GPUs.
    fn collect_readings<T>(
        &self,
        unit: &PoolKey,
        of: impl Fn(&str, &GpuReading) -> Vec<(String, T)>,
    ) -> BySlot<T> {
        let mut all = BTreeMap::new();
        lock(&self.sidecars).for_each_reading(&unit.namespace, &unit.pool, |gpu, reading| {
            let of_gpu = of(gpu, reading).into_iter();
            all.extend(of_gpu.map(|(tenant, one)| ((tenant, gpu.to_owned()), one)));
        });
        all
    }

    /// Returns the sidecars of a pool that have not accepted their directive, by tenant and GPU.
    pub(super) fn undelivered(&self, unit: &PoolKey) -> BySlot<String> {
        lock(&self.sidecars).undelivered(&unit.namespace, &unit.pool)
    }

    /// Returns the GPUs with reachable pods that have not been polled yet. They are polled soon, and the pool is
    /// enqueued then.
    pub(super) fn unobserved_gpus(&self, unit: &PoolKey, pods: &[ObservedPod]) -> BTreeSet<String> {
        let sidecars = lock(&self.sidecars);
        let reached = pods.iter().filter(|pod| pod.ip.is_some() && pod.is_current());
        let on = reached.filter_map(|pod| Some(parse_claim_name(&pod.claim)?.0));
        let unheard: BTreeSet<String> =
            on.filter(|gpu| !sidecars.is_fully_read(&key(unit, gpu))).map(str::to_owned).collect();
        if !unheard.is_empty() {
            self.queue.add_after(unit, INITIAL_READ_TIMEOUT);
        }
        unheard
    }

    /// Returns the GPUs of a plan, with the sidecars that have an address and their directives.
    pub(super) fn gpus(
        &self,
        unit: &PoolKey,
        pool: &GpuPool,
        plan: &PoolPlan<'_>,
        given: &PlanContext<'_>,
    ) -> Vec<GpuSidecars> {
        let with_slots = (0..plan.gpus.len()).filter(|gpu| plan.gpus[*gpu].epoch.is_some());
        with_slots.map(|gpu| self.gpu(unit, pool, plan, given, gpu)).collect()
    }

    fn gpu(
        &self,
        unit: &PoolKey,
        pool: &GpuPool,
        plan: &PoolPlan<'_>,
        given: &PlanContext<'_>,
        gpu: usize,
    ) -> GpuSidecars {
        let planned = &plan.gpus[gpu];
        let key = key(unit, &planned.gpu.name);
        let claim = planned.epoch.map(|epoch| claim_name(&planned.gpu, epoch.number)).unwrap_or_default();
        let active = lock(&self.sidecars).with_reading(&key, |reading| activities(&reading.tenants));
        let shared = plan.gpu_peers(pool, gpu, |tenant, slot| {
            let name = tenant.tenant.metadata.name.as_deref()?;
            let pod = plan.pod(name, slot.index, &claim)?;
            let address = pod.ip.as_ref()?.parse::<IpAddr>().ok()?;
            Some(PeerSidecar {
                pod_uid: Some(pod.uid.clone()),
                admin: (address, ADMIN_PORT.unsigned_abs() as u16).into(),
                activity: active.as_ref().and_then(|active| active.get(name).cloned()),
            })
        });
        let targets =
            (0..shared.peers.len()).map(|member| self.target(unit, &key, &shared, member, given.now));
        let node = plan.claim(&claim).and_then(|claim| claim.device.as_ref()?.node.clone());
        GpuSidecars { targets: targets.collect(), key, node }
    }

    fn target(
        &self,
        unit: &PoolKey,
        key: &GpuKey,
        shared: &GpuPeers<'_>,
        member: usize,
        now: i64,
    ) -> DirectiveTarget {
        let own = &shared.peers[member];
        let name = own.tenant.metadata.name.clone().unwrap_or_default();
        // Every sidecar of a cluster has a pod.
        let pod_uid = own.sidecar.pod_uid.clone().unwrap_or_default();
        let sidecar = (key.clone(), name.clone(), pod_uid.clone());
        let address =
            SidecarAddress { namespace: unit.namespace.clone(), name, admin_addr: own.sidecar.admin };
        let directive = self.settle_directive(sidecar, shared.directive(member), now);
        DirectiveTarget { address, pod_uid, directive }
    }

    /// Returns the directive of a sidecar: the previous one until a change is due.
    fn settle_directive(&self, sidecar: super::DirectiveKey, wanted: Directive, now: i64) -> Arc<Directive> {
        let mut all = lock(&self.reconcile_cache.directive_states);
        if let Some(newer) = next_directive(all.get(&sidecar), wanted, now) {
            all.insert(sidecar.clone(), newer);
        }
        all.get(&sidecar).expect("a directive was stored if there was none").directive.clone()
    }

    /// Registers a pool's sidecars, and drops the state of removed ones.
    pub(super) fn push_directives(&self, unit: &PoolKey, gpus: Vec<GpuSidecars>) {
        let by_name: HashMap<&str, &GpuSidecars> =
            gpus.iter().map(|gpu| (gpu.key.name.as_str(), gpu)).collect();
        let there = |key: &GpuKey, pod: &str| {
            let own = by_name.get(key.name.as_str());
            own.is_some_and(|gpu| gpu.targets.iter().any(|target| target.pod_uid == pod))
        };
        let of_unit = |key: &GpuKey| key.namespace == unit.namespace && key.pool == unit.pool;
        lock(&self.reconcile_cache.directive_states)
            .retain(|(key, _, pod), _| !of_unit(key) || there(key, pod));
        lock(&self.sidecars).set(&unit.namespace, &unit.pool, gpus);
    }
}

/// Existing pods.
struct CurrentPods<'a> {
    uids: HashSet<&'a str>,
    /// Current pods, by tenant and GPU.
    running_pods: HashMap<(&'a str, &'a str), &'a str>,
}

impl<'a> CurrentPods<'a> {
    fn new(pods: &'a [ObservedPod]) -> CurrentPods<'a> {
        let staying = pods.iter().filter(|pod| pod.is_current()).filter_map(|pod| {
            let (gpu, _) = parse_claim_name(&pod.claim)?;
            Some(((pod.tenant.as_str(), gpu), pod.uid.as_str()))
        });
        // The first of several, as in a plan.
        let staying = staying.fold(HashMap::new(), |mut all, (key, uid)| {
            all.entry(key).or_insert(uid);
            all
        });
        // A report of an ended pod would never be replaced.
        let all = pods.iter().filter(|pod| pod.ended.is_none()).map(|pod| pod.uid.as_str());
        CurrentPods { uids: all.collect(), running_pods: staying }
    }

    /// Whether a report of this pod, if known, belongs to the tenant's current pod on a GPU.
    fn is_current(&self, tenant: &str, gpu: &str, pod: Option<&str>) -> bool {
        match self.running_pods.get(&(tenant, gpu)) {
            Some(staying) => pod == Some(*staying),
            // It is being deleted, and has no successor yet.
            None => pod.is_none_or(|pod| self.uids.contains(pod)),
        }
    }
}

fn key(unit: &PoolKey, gpu: &str) -> GpuKey {
    GpuKey { namespace: unit.namespace.clone(), pool: unit.pool.clone(), name: gpu.to_owned() }
}

/// Returns when tenants were last used, as reported.
fn activities(reports: &[TenantReport]) -> HashMap<String, Activity> {
    let own = reports.iter().filter_map(|report| match report {
        TenantReport::State(state) => Some((state.tenant.name.clone(), state.activity.clone())),
        TenantReport::Unreachable { .. } => None,
    });
    own.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_plan::observed::EndedPod;

    fn pod(uid: &str, claim: &str, deleting: bool) -> ObservedPod {
        let (tenant, claim) = ("t".to_owned(), claim.to_owned());
        ObservedPod { uid: uid.to_owned(), tenant, claim, is_deleting: deleting, ..ObservedPod::default() }
    }

    #[test]
    fn report_of_replaced_pod_is_ignored() {
        let pods = [pod("old", "g-0-e1", true), pod("new", "g-0-e2", false), pod("far", "g-1-e1", true)];
        let present = CurrentPods::new(&pods);
        assert!(present.is_current("t", "g-0", Some("new")));
        assert!(!present.is_current("t", "g-0", Some("old")), "though it is there for a while");
        assert!(!present.is_current("t", "g-0", None), "in any case, the new one had no address yet");
        assert!(!present.is_current("t", "g-0", Some("far")));
        assert!(present.is_current("t", "g-1", Some("far")), "it drains, and no pod has followed it");
        assert!(!present.is_current("t", "g-1", Some("gone")));
        assert!(!present.is_current("u", "g-0", Some("gone")));
        let mut both = [pod("a", "g-0-e1", false), pod("b", "g-0-e1", false)];
        assert!(CurrentPods::new(&both).is_current("t", "g-0", Some("a")), "as a plan has it");
        both[0].ended = Some(EndedPod::default());
        assert!(CurrentPods::new(&both).is_current("t", "g-0", Some("b")));
        assert!(!CurrentPods::new(&both[..1]).is_current("t", "g-0", Some("a")), "it says nothing more");
    }
}
