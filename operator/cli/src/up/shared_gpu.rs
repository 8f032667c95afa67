//! A GPU with more than one tenant, while they run: its shares, and the directives about the peers. Both are those of
//! the operator ([`sluice_plan`]). Pure.

use sluice_plan::directives::{GpuPeers, PeerSidecar, SlotPeer};
use sluice_plan::pool_plan::{PoolPlan, SlotPlan, TenantPlan, slot_memory};
use sluice_plan::shares::{SlotMemory, SlotShare, slot_shares};
use sluice_plan::spec_convert::sharing;
use sluice_types::{GpuPool, ModelTenant};
use sluice_wire::config::SidecarRecord;
use sluice_wire::directive::{Directive, Fence, Sharing};

/// A GPU that its tenants share.
#[derive(Clone, Debug)]
pub struct SharedGpu {
    /// Namespace of its pool and of its tenants.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its tenants, by name.
    pub gpu_tenants: Vec<GpuTenant>,
    /// Its memory of which chunks are made, bytes.
    pub memory_bytes: u64,
    /// UUID of its CUDA device.
    pub uuid: Option<String>,
    chunk_bytes: u64,
    sharing: Sharing,
    pool: GpuPool,
}

/// A tenant of a shared GPU.
#[derive(Clone, Debug)]
pub struct GpuTenant {
    /// Index of its configuration in the plan.
    pub config_index: usize,
    /// Its name.
    pub name: String,
    /// What it gets of the GPU.
    pub share: SlotShare,
    memory: SlotMemory,
    tenant: ModelTenant,
}

impl GpuTenant {
    /// Creates the tenant of a planned slot.
    pub fn new(config_index: usize, planned: &TenantPlan<'_>, slot: &SlotPlan) -> GpuTenant {
        GpuTenant {
            config_index,
            name: planned.tenant.metadata.name.clone().unwrap_or_default(),
            share: SlotShare { floor_bytes: slot.floor_bytes, share_bytes: slot.share_bytes },
            memory: slot_memory(planned, slot, 0),
            tenant: planned.tenant.clone(),
        }
    }

    /// Returns the memory that it can never lend, as its sidecar reports, bytes; 0 = not known yet.
    pub fn reported_floor_bytes(&self) -> u64 {
        self.memory.reported_floor_bytes
    }

    /// Records what its sidecar reports.
    pub fn set_reported_floor(&mut self, bytes: u64) {
        self.memory.reported_floor_bytes = bytes;
    }

    fn peer(&self, record: &SidecarRecord) -> SlotPeer<'_> {
        SlotPeer {
            tenant: &self.tenant,
            share_bytes: self.share.share_bytes,
            is_share_assigned: true,
            floor_bytes: self.share.floor_bytes,
            // It has no pod, and its activity is not read here.
            sidecar: PeerSidecar { pod_uid: None, admin: record.admin, activity: None },
        }
    }
}

impl SharedGpu {
    /// Creates the GPU `at` of a plan; `namespace` and `pool` are those of the plan.
    pub fn new(
        namespace: &str,
        pool: &GpuPool,
        plan: &PoolPlan<'_>,
        at: usize,
        gpu_tenants: Vec<GpuTenant>,
    ) -> Self {
        let gpu = &plan.gpus[at].gpu;
        SharedGpu {
            namespace: namespace.to_owned(),
            name: gpu.name.clone(),
            gpu_tenants,
            uuid: None,
            memory_bytes: plan.chunk_memory_bytes(at).unwrap_or(0),
            chunk_bytes: gpu.settings.chunk_bytes(),
            sharing: sharing(&gpu.settings.sharing),
            pool: pool.clone(),
        }
    }

    /// Assigns its memory again, by the reported minimums; true = a share has changed.
    pub fn reassign_shares(&mut self) -> bool {
        let memory: Vec<_> = self.gpu_tenants.iter().map(|one| one.memory).collect();
        let mut changed = false;
        let dealt = slot_shares(Some(self.memory_bytes), self.chunk_bytes, &memory);
        for (one, share) in self.gpu_tenants.iter_mut().zip(dealt) {
            changed |= one.share.share_bytes != share.share_bytes;
            one.share = share;
        }
        changed
    }

    /// Returns why its tenants cannot all be served, as far as their sidecars have reported their minimums.
    pub fn capacity_error(&self) -> Option<String> {
        let reporting = || (0..self.gpu_tenants.len()).filter(|member| self.reported_floor(*member) > 0);
        let floors: u64 = reporting().map(|member| self.reported_floor(member)).sum();
        let each = |member| format!("{} {}", self.title(member), self.reported_floor(member));
        let each: Vec<_> = reporting().map(each).collect();
        (floors > self.memory_bytes).then(|| {
            let (name, memory, each) = (&self.name, self.memory_bytes, each.join(", "));
            format!("the tenants of the GPU {name} need at least {floors} bytes ({each}) and it has {memory} bytes")
        })
    }

    fn reported_floor(&self, member: usize) -> u64 {
        self.gpu_tenants[member].reported_floor_bytes()
    }

    /// Returns `NAMESPACE/NAME` of a member.
    pub fn title(&self, member: usize) -> String {
        format!("{}/{}", self.namespace, self.gpu_tenants[member].name)
    }

    /// Returns the directive for `member`. `records` are those of all members, in their order.
    pub fn directive(&self, member: usize, records: &[SidecarRecord], fence: Fence) -> Directive {
        let peers = GpuPeers {
            pool: &self.pool,
            sharing: self.sharing,
            claim_uid: None,
            gpu_uuid: self.uuid.as_deref(),
            peers: self.gpu_tenants.iter().zip(records).map(|(one, record)| one.peer(record)).collect(),
        };
        Directive { epoch: fence.epoch, sequence: fence.sequence, ..peers.directive(member) }
    }
}
