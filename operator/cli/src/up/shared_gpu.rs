//! A GPU with more than one tenant: shares, and directives about the peers. Pure.

use sluice_plan::directives::{tenant_rule, victim_rule};
use sluice_plan::spec_convert::{sharing, to_u32};
use sluice_types::GpuPool;
use sluice_wire::config::{LedgerConfig, SidecarConfig, SidecarRecord};
use sluice_wire::directive::{self, Directive, Fence, PeerInfo, Sharing, TenantRule, VictimRule};

use super::plan::AssignedTenant;
use sluice_plan::shares::{ShareInput, shares};

/// A GPU that its tenants share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedGpu {
    /// Namespace of its pool and of its tenants.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its tenants, in the order of the files.
    pub gpu_tenants: Vec<GpuTenant>,
    /// Its memory, bytes.
    pub memory_bytes: u64,
    chunk_bytes: u64,
    policy: String,
    sharing: Sharing,
    victim: VictimRule,
    min_residence_ms: u32,
    revoke_bound_ms: u32,
}

/// A tenant of a shared GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuTenant {
    /// Index of its configuration in the plan.
    pub config_index: usize,
    /// Its name.
    pub name: String,
    /// Memory that it can hold without a loan, bytes.
    pub share_bytes: u64,
    /// Memory that it can never lend, as its sidecar reports, bytes; 0 = not known yet.
    pub floor_bytes: u64,
    weights_bytes: u64,
    tenant_rule: TenantRule,
}

/// Assigns the tenants of each shared GPU their shares of device and host memory; returns these GPUs. `weigh`
/// returns the bytes of a tenant's weights.
pub fn assign_shares(
    seated: &mut [AssignedTenant<'_>],
    weigh: &dyn Fn(&SidecarConfig) -> u64,
) -> Vec<SharedGpu> {
    let mut gpus: Vec<Vec<usize>> = Vec::new();
    for index in 0..seated.len() {
        let gpu = |at: usize| (&seated[at].config.namespace, &seated[at].config.gpu.name);
        match gpus.iter_mut().find(|tenants| gpu(tenants[0]) == gpu(index)) {
            Some(tenants) => tenants.push(index),
            None => gpus.push(vec![index]),
        }
    }
    gpus.retain(|tenants| tenants.len() > 1);
    gpus.iter().map(|tenants| assign_gpu_shares(seated, tenants, weigh)).collect()
}

fn assign_gpu_shares(
    seated: &mut [AssignedTenant<'_>],
    tenants: &[usize],
    weigh: &dyn Fn(&SidecarConfig) -> u64,
) -> SharedGpu {
    let weights: Vec<u64> = tenants.iter().map(|index| weigh(&seated[*index].config)).collect();
    let first = &seated[tenants[0]];
    let (gpu, sharing) = (first.config.gpu.clone(), sharing(&first.assignment.sharing));
    // Floors are unknown until the first engine has reported the size of its activations; the directive pusher then
    // assigns shares again.
    let parts: Vec<_> = weights.iter().copied().map(ShareInput::of).collect();
    let device = shares(gpu.memory_bytes, gpu.chunk_bytes, &parts);
    // Host memory is shared, too: each tenant keeps its weights there, and KV while it sleeps.
    let kept = |(index, weights): (&usize, &u64)| weights + seated[*index].config.memory.host_kv_bytes;
    let kept: Vec<_> = tenants.iter().zip(&weights).map(kept).map(ShareInput::of).collect();
    let host = gpu.host_memory_bytes.map(|bytes| shares(bytes, gpu.chunk_bytes, &kept));
    for (at, index) in tenants.iter().enumerate() {
        let AssignedTenant { tenant, config, .. } = &mut seated[*index];
        config.gpu.host_memory_bytes = host.as_ref().map(|host| host[at]);
        config.neighbourhood = Some(LedgerConfig {
            // Both are set by the caller once the GPU's folder is claimed.
            folder: std::path::PathBuf::new(),
            claim: String::new(),
            share_bytes: device[at],
            priority: tenant.spec.priority,
            sharing,
        });
    }
    let members = tenants.iter().zip(weights).zip(device);
    let member =
        |((index, weights), share): ((&usize, u64), u64)| gpu_tenant(*index, &seated[*index], weights, share);
    let members = members.map(member).collect();
    let AssignedTenant { pool, config, .. } = &seated[tenants[0]];
    SharedGpu::new(config, pool, sharing, members)
}

fn gpu_tenant(config: usize, seated: &AssignedTenant<'_>, weights_bytes: u64, share_bytes: u64) -> GpuTenant {
    GpuTenant {
        config_index: config,
        name: seated.config.name.clone(),
        share_bytes,
        floor_bytes: 0,
        weights_bytes,
        tenant_rule: tenant_rule(seated.tenant, Some(share_bytes)),
    }
}

impl SharedGpu {
    fn new(config: &SidecarConfig, pool: &GpuPool, sharing: Sharing, members: Vec<GpuTenant>) -> Self {
        let remap = &pool.spec.remap;
        SharedGpu {
            namespace: config.namespace.clone(),
            name: config.gpu.name.clone(),
            gpu_tenants: members,
            memory_bytes: config.gpu.memory_bytes,
            chunk_bytes: config.gpu.chunk_bytes,
            policy: config.policy.clone(),
            sharing,
            victim: victim_rule(remap.victim),
            min_residence_ms: to_u32(remap.min_residence_milliseconds),
            revoke_bound_ms: to_u32(remap.revoke_bound_milliseconds),
        }
    }

    /// Assigns its memory again, by the known minimums; true = a share has changed.
    pub fn reassign_shares(&mut self) -> bool {
        let part =
            |one: &GpuTenant| ShareInput { weights_bytes: one.weights_bytes, floor_bytes: one.floor_bytes };
        let parts: Vec<_> = self.gpu_tenants.iter().map(part).collect();
        let mut changed = false;
        for (one, share) in
            self.gpu_tenants.iter_mut().zip(shares(self.memory_bytes, self.chunk_bytes, &parts))
        {
            changed |= one.share_bytes != share;
            (one.share_bytes, one.tenant_rule.share_bytes) = (share, Some(share));
        }
        changed
    }

    /// Returns why its tenants cannot all be served, as far as their floors are known.
    pub fn capacity_error(&self) -> Option<String> {
        let told = || (0..self.gpu_tenants.len()).filter(|member| self.gpu_tenants[*member].floor_bytes > 0);
        let floors: u64 = told().map(|member| self.gpu_tenants[member].floor_bytes).sum();
        let each = |member| format!("{} {}", self.title(member), self.gpu_tenants[member].floor_bytes);
        let each: Vec<_> = told().map(each).collect();
        (floors > self.memory_bytes).then(|| {
            let (name, memory, each) = (&self.name, self.memory_bytes, each.join(", "));
            format!("the tenants of the GPU {name} need at least {floors} bytes ({each}) and it has {memory} bytes")
        })
    }

    /// Returns `NAMESPACE/NAME` of a member.
    pub fn title(&self, member: usize) -> String {
        format!("{}/{}", self.namespace, self.gpu_tenants[member].name)
    }

    /// Returns the directive for `member`. `records` are those of all members, in their order.
    pub fn directive(&self, member: usize, records: &[SidecarRecord], fence: Fence) -> Directive {
        let others = self.gpu_tenants.iter().zip(records).enumerate().filter(|(index, _)| *index != member);
        let mut others: Vec<_> = others.map(|(_, (other, record))| (other, record)).collect();
        // By name, the order of the victim rule `FixedOrder`.
        others.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        let neighbours = others.iter().map(|(other, record)| self.peer_info(other, record)).collect();
        // No idleness is known here, so the rule reduces to: low priorities give first.
        others.sort_by_key(|(other, _)| other.tenant_rule.priority);
        Directive {
            version: directive::VERSION,
            epoch: fence.epoch,
            sequence: fence.sequence,
            policy: self.policy.clone(),
            tenant: self.gpu_tenants[member].tenant_rule.clone(),
            // Only a driver assigns a UUID to a GPU.
            gpu_uuid: None,
            sharing: self.sharing,
            victim: self.victim,
            min_residence_ms: self.min_residence_ms,
            revoke_bound_ms: self.revoke_bound_ms,
            neighbours,
            fallback_order: others.iter().map(|(other, _)| other.name.clone()).collect(),
        }
    }

    fn peer_info(&self, other: &GpuTenant, record: &SidecarRecord) -> PeerInfo {
        PeerInfo {
            namespace: self.namespace.clone(),
            name: other.name.clone(),
            pod_uid: None,
            claim_uid: None,
            admin: record.admin,
            priority: other.tenant_rule.priority,
            share_bytes: other.share_bytes,
            floor_bytes: 0,
        }
    }
}
