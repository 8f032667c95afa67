//! The configuration of a sidecar.

use std::path::Path;

use sluice_wire::config::{
    CudaConfig, DebugConfig, EngineConfig, EngineKind, GpuConfig, LimitsConfig, ListenConfig, MemoryConfig,
    SidecarConfig, SloConfig,
};

use super::error::ServedError;
use super::load::{Load, MODEL_NAME};
use super::model::ServedModel;
use super::sidecar::binary;

/// Namespace of all tenants.
pub(super) const NAMESPACE: &str = "bench";
/// Share of the layers that may be remapped, percent: the default of tenants.
pub(super) const MAX_REMAPPED_PERCENT: u32 = 60;

/// How a tenant whose KV is exhausted gets memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Not at all: it preempts requests and computes their KV again.
    Recompute,
    /// Layers of weights give their memory to KV, its own and those of idle peers.
    Oneiros,
}

impl Policy {
    /// Both, the baseline first.
    pub const BOTH: [Policy; 2] = [Policy::Recompute, Policy::Oneiros];

    /// Name as in `GpuPool`.
    pub const fn name(self) -> &'static str {
        match self {
            Policy::Recompute => "Recompute",
            Policy::Oneiros => "Oneiros",
        }
    }
}

/// What the configurations of a measurement's tenants have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct TenantConfig<'a> {
    pub(super) model: &'a ServedModel,
    /// UUID of the device.
    pub(super) uuid: &'a str,
    /// Memory of the device of which chunks are made, bytes.
    pub(super) memory_bytes: u64,
    pub(super) policy: Policy,
    pub(super) load: Load,
}

impl TenantConfig<'_> {
    /// Returns the configuration of a tenant that keeps its files in `folder`.
    pub(super) fn of(&self, name: &str, folder: &Path) -> Result<SidecarConfig, ServedError> {
        let free = ([127, 0, 0, 1], 0).into();
        Ok(SidecarConfig {
            namespace: NAMESPACE.into(),
            name: name.into(),
            served_names: vec![MODEL_NAME.into()],
            model_path: self.model.path().to_owned(),
            dtype: None,
            max_model_len: Some(self.load.context()),
            gpu: GpuConfig {
                name: "gpu".into(),
                cuda: Some(CudaConfig { uuid: Some(self.uuid.into()) }),
                memory_bytes: self.memory_bytes,
                chunk_bytes: self.model.chunk_bytes,
                link_bytes_per_second: None,
                link_to_host_bytes_per_second: None,
                host_memory_bytes: None,
            },
            gpu_ledger: None,
            policy: self.policy.name().into(),
            memory: MemoryConfig {
                guaranteed_kv_bytes: None,
                kv_limit_bytes: None,
                host_kv_bytes: 0,
                max_remapped_percent: MAX_REMAPPED_PERCENT,
            },
            slo: SloConfig::default(),
            order: "FirstCome".into(),
            // Clients see each token when it is made.
            pacing: "Immediate".into(),
            limits: LimitsConfig::default(),
            api_keys_file: None,
            listen: ListenConfig {
                serve: free,
                admin: free,
                probes: free,
                drain_hook: false,
                drain_key: None,
                admin_tls: None,
                peer_token_file: None,
            },
            runtime_dir: folder.join("run"),
            engine: EngineConfig {
                kind: EngineKind::Native,
                spawn: Some(binary("sluice-engine")?),
                ..EngineConfig::default()
            },
            hibernate_after_seconds: None,
            drain_seconds: 1,
            journal: None,
            tunables: std::collections::BTreeMap::new(),
            debug: DebugConfig::default(),
        })
    }
}
