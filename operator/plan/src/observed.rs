//! The observed cluster state that decisions need.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sluice_types::conditions::Reason;
use sluice_types::pool::SharingMode;
use sluice_types::tenant::{SlotState, TenantMemoryStatus};

use sluice_wire::geometry::{Geometry, GeometryError};
use sluice_wire::state::{Activity, EngineHang, SidecarHangs, Skip, Takeover};

use crate::gpu_settings::GpuSettings;
use crate::objects::parse_claim_name;

/// Observed state of a pool and of its tenants, without these objects themselves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedPool {
    /// Claims of the pool, in any order.
    pub claims: Vec<ObservedClaim>,
    /// Slots that have a Deployment.
    pub slots: Vec<ObservedSlot>,
    /// Pods of its slots.
    pub pods: Vec<ObservedPod>,
    /// Nodes by name, at least those of the claims.
    pub nodes: BTreeMap<String, ObservedNode>,
    /// Deleted nodes of claims by name: when the deletion was seen, seconds since 1970. A node in neither map has not
    /// been observed yet.
    pub missing_nodes: BTreeMap<String, i64>,
    /// Last reports of slots' sidecars, by tenant and GPU.
    pub reports: BTreeMap<(String, String), SidecarReport>,
    /// Reported floor of each slot, bytes, by tenant and GPU: the last value, even if the sidecar does not answer
    /// now.
    pub floors: BTreeMap<(String, String), u64>,
    /// Device memory that each slot's tenant owns, bytes, by tenant and GPU: the last value, even if the sidecar does
    /// not answer now.
    pub owned: BTreeMap<(String, String), u64>,
    /// Sidecars that have not accepted their directive for a while, by tenant and GPU: the reason.
    pub directive_errors: BTreeMap<(String, String), String>,
    /// GPUs whose sidecars a new leader has not polled yet: their floors may exceed the plan.
    pub unpolled_gpus: BTreeSet<String>,
    /// Why the pod of a slot cannot be created, by tenant and slot: the last reason. Valid only while the slot has no
    /// pod.
    pub pod_creation_errors: BTreeMap<(String, u32), String>,
    /// Results of inspection pods, by tenant.
    pub inspections: BTreeMap<String, Result<Geometry, GeometryError>>,
}

/// A claim.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedClaim {
    /// Its name: GPU and epoch.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Digest of its request.
    pub digest: String,
    /// How its GPU is shared.
    pub mode: Option<SharingMode>,
    /// Settings that it was created with; `None` = not recorded.
    pub settings: Option<GpuSettings>,
    /// Deletion is requested; the claim exists until its last pod is gone.
    pub is_deleting: bool,
    /// The allocated device.
    pub device: Option<ObservedDevice>,
}

/// A device allocated to a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedDevice {
    /// Its node; `None` = reachable from every node.
    pub node: Option<String>,
    /// Its name in its driver's device pool.
    pub name: String,
    /// Its memory, bytes.
    pub capacity_bytes: Option<u64>,
    /// UUID of the GPU.
    pub uuid: Option<String>,
}

/// A slot that has a Deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedSlot {
    /// Its tenant.
    pub tenant: String,
    /// Its index in the tenant.
    pub index: u32,
    /// Claim that its Deployment names.
    pub claim: String,
}

/// A pod of a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedPod {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its tenant.
    pub tenant: String,
    /// Index of its slot.
    pub index: u32,
    /// Claim that it names.
    pub claim: String,
    /// Node that it is on.
    pub node: Option<String>,
    /// Its address.
    pub ip: Option<String>,
    /// Deletion is requested.
    pub is_deleting: bool,
    /// It has ended permanently (for example by eviction), and why. Its controller keeps it and creates another pod.
    pub ended: Option<EndedPod>,
    /// It is ready: requests are answered or held.
    pub is_ready: bool,
    /// Memory request, bytes.
    pub memory_bytes: u64,
    /// Why it cannot be scheduled.
    pub unschedulable_reason: Option<String>,
    /// Why its claim could not be prepared.
    pub prepare_error: Option<String>,
    /// Why a container does not start, or exits repeatedly.
    pub failure_reason: Option<String>,
    /// Last exit of a restarting container, if that was an error.
    pub last_restart_reason: Option<String>,
    /// Why an earlier pod of its slot ended, if that pod still exists.
    pub predecessor_failure: Option<String>,
    /// Its download is complete, but its label has not been removed.
    pub is_fetched: bool,
    /// Creation time, seconds since 1970.
    pub created_at: i64,
    /// Version of the Secret with its API keys, from its annotation.
    pub keys_version: Option<String>,
}

/// A pod that has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EndedPod {
    /// Creation time, seconds since 1970: the newest of several is reported.
    pub created_at: i64,
    /// Why it has ended.
    pub reason: String,
}

impl ObservedPod {
    /// Whether it is the current pod of its slot: not being deleted and not ended.
    pub fn is_current(&self) -> bool {
        !self.is_deleting && self.ended.is_none()
    }
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedNode {
    /// Since when it has not been ready, seconds since 1970.
    pub lost_since: Option<i64>,
    /// No new pods are scheduled on it.
    pub is_cordoned: bool,
    /// Memory for pods, bytes.
    pub allocatable_bytes: u64,
    /// Memory requests of its pods, including Sluice's, bytes, without pods that are being deleted.
    pub requested_bytes: u64,
}

impl ObservedNode {
    /// Returns the memory available to pods that request `own_bytes` now: the memory that no other pod has requested,
    /// bytes.
    pub(crate) const fn free_bytes(&self, own_bytes: u64) -> u64 {
        self.allocatable_bytes.saturating_sub(self.requested_bytes.saturating_sub(own_bytes))
    }
}

/// Report of a slot's sidecar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidecarReport {
    /// State of the slot.
    pub state: SlotState,
    /// Why its weights are not in memory; `None` = they are resident or loading.
    pub wait_reason: Option<String>,
    /// Why it cannot serve.
    pub failure: Option<String>,
    /// When its last engine was lost, milliseconds since 1970.
    pub engine_lost_ms: Option<i64>,
    /// The last engine of its own that exceeded a deadline.
    pub engine_hang: Option<EngineHang>,
    /// Earlier sidecars that hung and were killed.
    pub sidecar_hangs: Option<SidecarHangs>,
    /// Tenant that holds the GPU's time slice past its deadline.
    pub late_holder: Option<LateHolder>,
    /// The last time slice that it took from such a holder.
    pub takeover: Option<Takeover>,
    /// The last tenant that it skipped in the time-slice queue.
    pub skip: Option<Skip>,
    /// Since when it has had no request, seconds since 1970.
    pub idle_since: Option<i64>,
    /// When layers were last remapped or restored, seconds since 1970.
    pub last_remap: Option<i64>,
    /// Whether it is active, and when it was last used.
    pub activity: Activity,
    /// Memory.
    pub memory: TenantMemoryStatus,
}

/// A tenant that holds the time slice past its deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateHolder {
    /// `namespace/name`.
    pub name: String,
    /// Since when, milliseconds since 1970.
    pub since_ms: i64,
}

/// Errors from applying a tenant's objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplyFailure {
    /// A foreign object has the name.
    pub is_name_taken: bool,
    /// That object is a Service: clients of the tenant would reach another backend.
    pub is_service_name_taken: bool,
    /// Kind, name and the API server's message.
    pub message: String,
}

impl ApplyFailure {
    /// Returns the reason of a condition that reports it.
    pub(crate) const fn reason(&self) -> Reason {
        if self.is_name_taken { Reason::NameTaken } else { Reason::ApplyFailed }
    }
}

/// Index of the observed state by GPU and by tenant.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObservedIndex<'a> {
    gpus: BTreeMap<&'a str, ObservedGpu<'a>>,
    tenants: BTreeMap<&'a str, Vec<(u32, &'a str)>>,
    claims: HashMap<&'a str, &'a ObservedClaim>,
    /// Current pods, by tenant, slot and claim.
    pods: HashMap<(&'a str, u32, &'a str), &'a ObservedPod>,
    /// Tenants that report on a holder of the time slice, with their reports, by GPU.
    peer_reports: HashMap<&'a str, Vec<(&'a str, &'a SidecarReport)>>,
}

/// Observed state of a GPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObservedGpu<'a> {
    /// Its claims.
    pub claims: Vec<(u32, &'a ObservedClaim)>,
    /// Epochs in the Deployments of its slots.
    pub slots: Vec<u32>,
    /// Current pods of its slots, with any of its claims.
    pods: Vec<&'a ObservedPod>,
}

impl<'a> ObservedIndex<'a> {
    pub fn new(seen: &'a ObservedPool) -> Self {
        let mut index = ObservedIndex::default();
        for claim in &seen.claims {
            index.claims.entry(&claim.name).or_insert(claim);
            if let Some((gpu, epoch)) = parse_claim_name(&claim.name) {
                index.gpus.entry(gpu).or_default().claims.push((epoch, claim));
            }
        }
        for slot in &seen.slots {
            if let Some((gpu, epoch)) = parse_claim_name(&slot.claim) {
                index.gpus.entry(gpu).or_default().slots.push(epoch);
                index.tenants.entry(&slot.tenant).or_default().push((slot.index, gpu));
            }
        }
        for pod in seen.pods.iter().filter(|pod| pod.is_current()) {
            if let Some((gpu, _)) = parse_claim_name(&pod.claim) {
                index.gpus.entry(gpu).or_default().pods.push(pod);
            }
            index.pods.entry((&pod.tenant, pod.index, &pod.claim)).or_insert(pod);
        }
        for ((tenant, gpu), report) in &seen.reports {
            if report.late_holder.is_some() || report.takeover.is_some() || report.skip.is_some() {
                index.peer_reports.entry(gpu).or_default().push((tenant, report));
            }
        }
        index
    }

    pub fn claim(&self, name: &str) -> Option<&'a ObservedClaim> {
        self.claims.get(name).copied()
    }

    pub fn pod(&self, tenant: &str, slot: u32, claim: &str) -> Option<&'a ObservedPod> {
        self.pods.get(&(tenant, slot, claim)).copied()
    }

    pub fn peer_reports(&self, gpu: &str) -> &[(&'a str, &'a SidecarReport)] {
        self.peer_reports.get(gpu).map_or(&[], Vec::as_slice)
    }

    /// Returns GPUs with slots, by name.
    pub fn occupied_gpus(&self) -> impl Iterator<Item = (&'a str, &ObservedGpu<'a>)> {
        self.gpus.iter().filter(|(_, own)| !own.slots.is_empty()).map(|(name, own)| (*name, own))
    }

    pub fn gpu(&self, name: &str) -> Option<&ObservedGpu<'a>> {
        self.gpus.get(name)
    }

    /// Returns index and GPU of each slot of the tenant that has a Deployment.
    pub fn slots(&self, tenant: &str) -> &[(u32, &'a str)] {
        self.tenants.get(tenant).map_or(&[], Vec::as_slice)
    }
}

impl<'a> ObservedGpu<'a> {
    /// Returns the newest claim that is not being deleted.
    pub fn claim(&self) -> Option<&'a ObservedClaim> {
        let staying = self.claims.iter().filter(|(_, claim)| !claim.is_deleting);
        staying.max_by_key(|(epoch, _)| epoch).map(|(_, claim)| *claim)
    }

    /// Returns the memory requests of its pods on the device's node, bytes.
    pub fn requested_bytes(&self, device: Option<&ObservedDevice>) -> u64 {
        let on = device.and_then(|device| device.node.as_ref());
        self.pods.iter().filter(|pod| pod.node.as_ref() == on).map(|pod| pod.memory_bytes).sum()
    }
}
