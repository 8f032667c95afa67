//! What is seen of a cluster, as little of it as decisions need.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sluice_types::pool::SharingMode;
use sluice_types::tenant::{SlotState, TenantMemoryStatus};

use sluice_wire::geometry::{Geometry, GeometryError};
use sluice_wire::state::{Activity, EngineHang, SidecarHangs, Skip, Takeover};

use crate::gpu_settings::GpuSettings;
use crate::objects::parse_claim_name;

/// All that is seen of a pool and of its tenants, but for these objects themselves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedPool {
    /// Claims of the pool, in any order.
    pub claims: Vec<ObservedClaim>,
    /// Slots that have a Deployment.
    pub slots: Vec<ObservedSlot>,
    /// Pods of its slots.
    pub pods: Vec<ObservedPod>,
    /// Nodes, by name: at least those that a claim is on.
    pub nodes: BTreeMap<String, ObservedNode>,
    /// Nodes that a claim is on and that are not there, by name: since when that is known, seconds since 1970. Of one that is in
    /// neither map nothing was heard yet.
    pub missing_nodes: BTreeMap<String, i64>,
    /// What slots' sidecars told last, by tenant and GPU.
    pub reports: BTreeMap<(String, String), SidecarReport>,
    /// What each slot's sidecar has found to be its floor, bytes, by tenant and GPU: what it told last, even if it is silent now.
    pub floors: BTreeMap<(String, String), u64>,
    /// Device memory that each slot's tenant owns, bytes, by tenant and GPU: what it told last, even if it is silent now.
    pub owned: BTreeMap<(String, String), u64>,
    /// Sidecars that have not taken their directive for a while, by tenant and GPU: why not.
    pub directive_errors: BTreeMap<(String, String), String>,
    /// GPUs whose sidecars a leader that has just begun has not asked yet: their floors may be larger than foreseen.
    pub unpolled_gpus: BTreeSet<String>,
    /// Why no pod of a slot can be made, by tenant and slot, as was said last. It counts while there is none.
    pub pod_creation_errors: BTreeMap<(String, u32), String>,
    /// What pods that inspected a model have said, by tenant.
    pub inspections: BTreeMap<String, Result<Geometry, GeometryError>>,
}

/// A claim.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedClaim {
    /// Its name: its GPU and its epoch.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Digest of what it asks for.
    pub digest: String,
    /// How its GPU is shared.
    pub mode: Option<SharingMode>,
    /// What it was made of; `None` = it does not say.
    pub settings: Option<GpuSettings>,
    /// It goes once nobody uses it any more.
    pub is_deleting: bool,
    /// What it got.
    pub device: Option<ObservedDevice>,
}

/// A device that a claim got.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedDevice {
    /// Node that it is on; `None` = reachable from everywhere.
    pub node: Option<String>,
    /// Its name in its driver's pool of devices.
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
    /// Its index.
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
    /// It is on its way out.
    pub is_deleting: bool,
    /// It has ended for good, evicted for one, and why. Its controller leaves it there and makes another one.
    pub ended: Option<EndedPod>,
    /// It is ready: requests are answered or held.
    pub is_ready: bool,
    /// Memory that it asks its node for, bytes.
    pub memory_bytes: u64,
    /// Why no node takes it.
    pub unschedulable_reason: Option<String>,
    /// Why its claim could not be prepared.
    pub prepare_error: Option<String>,
    /// Why a container does not start, or ends again and again.
    pub failure_reason: Option<String>,
    /// How a container that starts again ended the last time, where that was an error.
    pub last_restart_reason: Option<String>,
    /// Why an earlier one of its slot has ended, if that is still there.
    pub predecessor_failure: Option<String>,
    /// Its download is over, and its label still says that it is not.
    pub is_fetched: bool,
    /// When it was made, seconds since 1970.
    pub created_at: i64,
    /// The version of the Secret with its API keys in its annotation.
    pub keys_version: Option<String>,
}

/// A pod that is over.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EndedPod {
    /// When it was made, seconds since 1970: of several the last one tells.
    pub created_at: i64,
    /// Why it has ended.
    pub reason: String,
}

impl ObservedPod {
    /// Whether it is the one that has its slot's place: neither on its way out nor over.
    pub fn is_current(&self) -> bool {
        !self.is_deleting && self.ended.is_none()
    }
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedNode {
    /// Since when it is not ready, seconds since 1970.
    pub lost_since: Option<i64>,
    /// No new pod is placed on it.
    pub is_cordoned: bool,
    /// Memory that pods may take, bytes.
    pub allocatable_bytes: u64,
    /// What its pods ask for, ours among them, bytes. Those that are on their way out do not count.
    pub requested_bytes: u64,
}

impl ObservedNode {
    /// Memory for pods that ask for `own_bytes` now: what no other pod has asked for, bytes.
    pub(crate) const fn free_bytes(&self, own_bytes: u64) -> u64 {
        self.allocatable_bytes.saturating_sub(self.requested_bytes.saturating_sub(own_bytes))
    }
}

/// What a slot's sidecar told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidecarReport {
    /// What the slot does.
    pub state: SlotState,
    /// Why its weights are not in memory; `None` = they are, or are on their way.
    pub wait_reason: Option<String>,
    /// Why it cannot serve.
    pub failure: Option<String>,
    /// When its last engine was lost, milliseconds since 1970.
    pub engine_lost_ms: Option<i64>,
    /// The last engine of its own that exceeded a deadline.
    pub engine_hang: Option<EngineHang>,
    /// Sidecars before this one that hung and were killed.
    pub sidecar_hangs: Option<SidecarHangs>,
    /// Who holds the turn of its GPU past its deadline.
    pub late_holder: Option<LateHolder>,
    /// The last turn that it took from such a holder.
    pub takeover: Option<Takeover>,
    /// The last tenant that it skipped in the queue for the turn.
    pub skip: Option<Skip>,
    /// Since when no request has come, seconds since 1970.
    pub idle_since: Option<i64>,
    /// When layers were last remapped or came back, seconds since 1970.
    pub last_remap: Option<i64>,
    /// Whether it is of use, and when it last was.
    pub activity: Activity,
    /// Memory.
    pub memory: TenantMemoryStatus,
}

/// A tenant that holds the turn past its deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateHolder {
    /// `namespace/name`.
    pub name: String,
    /// Since when, milliseconds since 1970.
    pub since_ms: i64,
}

/// What went wrong when a tenant's objects were applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplyFailure {
    /// An object that is not ours has the name.
    pub is_name_taken: bool,
    /// That object is a Service: whoever asks for the tenant reaches somebody else.
    pub is_service_name_taken: bool,
    /// Kind, name and what the API server said.
    pub message: String,
}

/// What is seen, by GPU and by tenant.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObservedIndex<'a> {
    gpus: BTreeMap<&'a str, ObservedGpu<'a>>,
    tenants: BTreeMap<&'a str, Vec<(u32, &'a str)>>,
    claims: HashMap<&'a str, &'a ObservedClaim>,
    /// Pods that are to stay, by tenant, slot and claim.
    pods: HashMap<(&'a str, u32, &'a str), &'a ObservedPod>,
    /// Tenants that tell something of a holder of the turn, and what they told, by GPU.
    peer_reports: HashMap<&'a str, Vec<(&'a str, &'a SidecarReport)>>,
}

/// What is seen of a GPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObservedGpu<'a> {
    /// Its claims.
    pub claims: Vec<(u32, &'a ObservedClaim)>,
    /// Epochs that Deployments on it name.
    pub slots: Vec<u32>,
    /// Pods of its slots, whichever claim they name, that are to stay.
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
        for ((tenant, gpu), told) in &seen.reports {
            if told.late_holder.is_some() || told.takeover.is_some() || told.skip.is_some() {
                index.peer_reports.entry(gpu).or_default().push((tenant, told));
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

    /// GPUs that slots are on, by name.
    pub fn occupied_gpus(&self) -> impl Iterator<Item = (&'a str, &ObservedGpu<'a>)> {
        self.gpus.iter().filter(|(_, own)| !own.slots.is_empty()).map(|(name, own)| (*name, own))
    }

    pub fn gpu(&self, name: &str) -> Option<&ObservedGpu<'a>> {
        self.gpus.get(name)
    }

    /// Indices and GPUs of a tenant's slots that have a Deployment.
    pub fn slots(&self, tenant: &str) -> &[(u32, &'a str)] {
        self.tenants.get(tenant).map_or(&[], Vec::as_slice)
    }
}

impl<'a> ObservedGpu<'a> {
    /// The newest claim that is to stay.
    pub fn claim(&self) -> Option<&'a ObservedClaim> {
        let staying = self.claims.iter().filter(|(_, claim)| !claim.is_deleting);
        staying.max_by_key(|(epoch, _)| epoch).map(|(_, claim)| *claim)
    }

    /// What its pods ask of the node that it is on, bytes.
    pub fn requested_bytes(&self, device: Option<&ObservedDevice>) -> u64 {
        let on = device.and_then(|device| device.node.as_ref());
        self.pods.iter().filter(|pod| pod.node.as_ref() == on).map(|pod| pod.memory_bytes).sum()
    }
}
