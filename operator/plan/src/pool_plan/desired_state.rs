//! The desired state of a pool: its GPUs, its tenants and their slots.

use sluice_types::conditions::Reason;
use sluice_types::tenant::ModelStatus;
use sluice_types::{GpuPool, ModelTenant};
use sluice_wire::geometry::GeometryError;

use crate::conditions::ConditionResult;
use crate::directives::{GpuPeers, PeerSidecar, SlotPeer};
use crate::epoch::Epoch;
use crate::gpu::Gpu;
use crate::objects::{PlacedSlot, claim_name};
use crate::observed::{ObservedClaim, ObservedIndex, ObservedPod, SidecarReport};
use crate::placement::{UnfitReason, UnplacedReason};
use crate::resource_demand::{Demand, EngineGeometry};
use crate::spec_convert::sharing;

/// Interval of plans while a slot lacks host memory, seconds: no event reports that other pods freed some.
const CAPACITY_RECHECK_SECONDS: i64 = 60;

/// The desired state.
#[derive(Clone, Debug, Default)]
pub struct PoolPlan<'a> {
    /// GPUs of the pool, including those without a slot.
    pub gpus: Vec<GpuPlan>,
    /// Its tenants, in the order given.
    pub tenants: Vec<TenantPlan<'a>>,
    /// Slots of each GPU, as indices of a tenant and of its slot.
    pub(super) slots: Vec<Vec<(usize, usize)>>,
    pub(super) index: ObservedIndex<'a>,
}

/// A GPU.
#[derive(Clone, Debug)]
pub struct GpuPlan {
    /// The GPU.
    pub gpu: Gpu,
    /// The epoch of its claim; `None` = it has no slot, and so no claim.
    pub epoch: Option<Epoch>,
}

/// A tenant.
#[derive(Clone, Debug)]
pub struct TenantPlan<'a> {
    /// The tenant that is planned.
    pub tenant: &'a ModelTenant,
    /// Every reason why it cannot be served at all; empty = it is accepted.
    pub rejections: Vec<ConditionResult>,
    /// Sizes of its model; `None` = not known.
    pub model: Option<EngineGeometry>,
    /// Inspection result for its status.
    pub inspected: Option<ModelStatus>,
    /// Why an inspection determined no sizes.
    pub inspection_error: Option<GeometryError>,
    /// Its slots.
    pub slots: Vec<SlotPlan>,
}

/// A slot.
#[derive(Clone, Debug)]
pub struct SlotPlan {
    /// Its index in the tenant.
    pub index: u32,
    /// Its GPU as an index into [`PoolPlan::gpus`], or why it has none.
    pub gpu_index: Result<usize, UnplacedReason>,
    /// Resources that it takes.
    pub demand: Demand,
    /// Memory that it cannot lend while it is awake, bytes: the reported value where that exceeds the planned one.
    pub floor_bytes: u64,
    /// Memory that it may hold without borrowing, bytes.
    pub share_bytes: u64,
    /// Whether the share is assigned: the sizes of its GPU and of its model are known.
    pub is_share_assigned: bool,
}

impl TenantPlan<'_> {
    /// Whether it can be served at all.
    pub fn is_accepted(&self) -> bool {
        self.rejections.is_empty()
    }

    /// Returns the condition `Accepted`.
    pub fn accepted(&self) -> ConditionResult {
        ConditionResult::met_unless(&self.rejections)
    }

    /// Whether its model needs an inspection, or another one: an unreadable model may be readable now.
    pub fn should_inspect(&self) -> bool {
        let reasons = [Reason::ModelUnreadable, Reason::ModelUnsupported];
        self.model.is_none() && self.rejections.iter().all(|refusal| reasons.contains(&refusal.reason))
    }
}

impl<'a> PoolPlan<'a> {
    /// Returns the input for rendering `slot` of `tenant`; `None` = it has no GPU, or its model is not known.
    pub fn placed_slot(
        &'a self,
        pool: &'a GpuPool,
        tenant: &TenantPlan<'a>,
        slot: &SlotPlan,
    ) -> Option<PlacedSlot<'a>> {
        let on = &self.gpus[*slot.gpu_index.as_ref().ok()?];
        Some(PlacedSlot {
            pool,
            tenant: tenant.tenant,
            index: slot.index,
            gpu: &on.gpu,
            epoch: on.epoch?.number,
            model: tenant.model?,
            demand: slot.demand,
            share_bytes: slot.share_bytes,
        })
    }

    /// Returns the memory of a GPU of which chunks are made, bytes: all but that of the contexts of its slots, which
    /// belong to the driver. `None` = its size is not known.
    pub fn chunk_memory_bytes(&self, gpu: usize) -> Option<u64> {
        let contexts: u64 = self.slots_on(gpu).map(|(_, slot)| slot.demand.context_bytes).sum();
        Some(self.gpus[gpu].gpu.capacity_bytes?.saturating_sub(contexts))
    }

    /// Returns the slots on a GPU, with their tenants.
    pub fn slots_on(&self, gpu: usize) -> impl Iterator<Item = (&TenantPlan<'a>, &SlotPlan)> {
        let of = |&(tenant, slot): &(usize, usize)| {
            let tenant = &self.tenants[tenant];
            (tenant, &tenant.slots[slot])
        };
        self.slots.get(gpu).into_iter().flatten().map(of)
    }

    /// Returns the input for the directives of a GPU's slots. `sidecar` returns the sidecar of a slot; `None` = it has
    /// no address yet, and no directive names it.
    pub fn gpu_peers<'p>(
        &'p self,
        pool: &'p GpuPool,
        gpu: usize,
        sidecar: impl Fn(&TenantPlan<'a>, &SlotPlan) -> Option<PeerSidecar>,
    ) -> GpuPeers<'p> {
        let planned = &self.gpus[gpu];
        let seen = planned.epoch.and_then(|epoch| self.claim(&claim_name(&planned.gpu, epoch.number)));
        let peer = |(tenant, slot): (&TenantPlan<'a>, &SlotPlan)| {
            Some(SlotPeer {
                tenant: tenant.tenant,
                share_bytes: slot.share_bytes,
                is_share_assigned: slot.is_share_assigned,
                floor_bytes: slot.floor_bytes,
                sidecar: sidecar(tenant, slot)?,
            })
        };
        GpuPeers {
            pool,
            sharing: sharing(&planned.gpu.settings.sharing),
            claim_uid: seen.map(|claim| claim.uid.as_str()),
            gpu_uuid: seen.and_then(|claim| claim.device.as_ref()?.uuid.as_deref()),
            peers: self.slots_on(gpu).filter_map(peer).collect(),
        }
    }

    /// Returns the observed claim `name`.
    pub fn claim(&self, name: &str) -> Option<&'a ObservedClaim> {
        self.index.claim(name)
    }

    /// Returns the current pod of a slot on that claim.
    pub fn pod(&self, tenant: &str, slot: u32, claim: &str) -> Option<&'a ObservedPod> {
        self.index.pod(tenant, slot, claim)
    }

    /// Returns the tenants of a GPU that report on a holder of the time slice, with their reports.
    pub(crate) fn peer_reports(&self, gpu: &str) -> &[(&'a str, &'a SidecarReport)] {
        self.index.peer_reports(gpu)
    }

    /// Returns the seconds until the next plan without an event.
    pub fn requeue_after_seconds(&self) -> Option<i64> {
        let slots = self.tenants.iter().flat_map(|tenant| &tenant.slots);
        let lacks_host = |slot: &SlotPlan| {
            matches!(
                slot.gpu_index,
                Err(UnplacedReason::NoCapacity { misfit: UnfitReason::HostMemory(_), .. })
            )
            .then_some(CAPACITY_RECHECK_SECONDS)
        };
        let epochs = self.gpus.iter().filter_map(|gpu| gpu.epoch?.requeue_after_seconds);
        epochs.chain(slots.filter_map(lacks_host)).min()
    }
}
