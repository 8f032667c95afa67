//! The start configuration of a slot's sidecar.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use k8s_openapi::api::core::v1::ConfigMap;
use sluice_types::Quantity;
use sluice_types::tenant::{EngineKind as Kind, ModelTenant, ModelTenantSpec, WeightType};
use sluice_wire::config::{
    AdminTls, CudaConfig, DebugConfig, EngineConfig, EngineKind, GpuConfig, LedgerConfig, ListenConfig,
    SidecarConfig,
};

use super::volumes::{CONFIG, KEYS, LEDGER_FOLDER, RUN, TLS, model_folder};
use super::{ADMIN_PORT, PROBE_PORT, PlacedSlot, SERVE_PORT, claim, name, object_meta, vllm};
use crate::geometry::engine_threads;
use crate::spec_convert::{limits, memory, sharing, slo, to_u32};

/// Key of the configuration in its ConfigMap, and its file name in the pod.
pub const FILE: &str = "sidecar.json";

/// Renders the ConfigMap of a slot.
pub fn config_map(placed: &PlacedSlot<'_>) -> ConfigMap {
    let config = sidecar_config(placed);
    let text = serde_json::to_string_pretty(&config).expect("a configuration serialises");
    ConfigMap {
        metadata: object_meta(placed.tenant, placed.name(), placed.labels()),
        data: Some(BTreeMap::from([(FILE.to_owned(), text + "\n")])),
        ..ConfigMap::default()
    }
}

/// Returns the configuration of a slot's sidecar.
pub fn sidecar_config(placed: &PlacedSlot<'_>) -> SidecarConfig {
    let (spec, pool) = (&placed.tenant.spec, placed.pool);
    SidecarConfig {
        namespace: placed.tenant.metadata.namespace.clone().unwrap_or_default(),
        name: name(placed.tenant).to_owned(),
        served_names: spec.model.served_names.clone(),
        model_path: model_folder(spec),
        dtype: (spec.model.dtype != WeightType::Auto).then(|| format!("{:?}", spec.model.dtype)),
        max_model_len: spec.model.max_model_len.map(to_u32),
        gpu: gpu_config(placed),
        // A proxied engine manages its own memory and cannot lend it.
        gpu_ledger: (spec.engine.kind == Kind::Native).then(|| ledger_config(placed)),
        policy: pool.spec.policy.as_str().to_owned(),
        memory: memory(spec),
        slo: slo(spec),
        order: format!("{:?}", spec.scheduling.order),
        pacing: format!("{:?}", spec.pacing.mode),
        limits: limits(spec),
        api_keys_file: keys_file(placed.tenant),
        listen: listen(placed),
        runtime_dir: RUN.into(),
        engine: engine_config(spec),
        hibernate_after_seconds: Some(to_u32(spec.idle.hibernate_after_seconds)),
        drain_seconds: to_u32(spec.drain_seconds),
        journal: None,
        tunables: BTreeMap::default(),
        debug: DebugConfig::default(),
    }
}

fn engine_config(spec: &ModelTenantSpec) -> EngineConfig {
    match spec.engine.kind {
        Kind::Native => EngineConfig {
            threads: engine_threads(spec),
            hang_timeout_seconds: spec.engine.hang_timeout_seconds.map(to_u32),
            ..EngineConfig::default()
        },
        Kind::Vllm => {
            EngineConfig { kind: EngineKind::Vllm, url: Some(vllm::url()), ..EngineConfig::default() }
        }
    }
}

fn keys_file(tenant: &ModelTenant) -> Option<PathBuf> {
    tenant.spec.access.api_keys_secret_ref.as_ref().map(|keys| PathBuf::from(KEYS).join(&keys.key))
}

fn gpu_config(placed: &PlacedSlot<'_>) -> GpuConfig {
    let settings = &placed.gpu.settings;
    let link = settings.host.as_ref().and_then(|host| host.link_bytes_per_second.as_ref());
    // A proxied engine has the device, and its sidecar opens none.
    let opens = !settings.is_host_backed() && placed.tenant.spec.engine.kind == Kind::Native;
    GpuConfig {
        name: placed.gpu.name.clone(),
        // A pod sees the device of its claim alone.
        cuda: opens.then(CudaConfig::default),
        memory_bytes: placed.gpu.capacity_bytes.unwrap_or(0),
        chunk_bytes: settings.chunk_bytes(),
        link_bytes_per_second: link.map(Quantity::bytes),
        link_to_host_bytes_per_second: None,
        host_memory_bytes: Some(host_memory_bytes(placed)),
    }
}

/// Returns the sidecar container's memory without the GPU's chunks. The sidecar reaches this limit before the kernel
/// kills it.
fn host_memory_bytes(placed: &PlacedSlot<'_>) -> u64 {
    let native = placed.tenant.spec.engine.kind == Kind::Native;
    let chunks = placed.gpu.settings.device_bytes().filter(|_| native).unwrap_or(0);
    placed.demand.pod.sidecar_bytes.saturating_sub(chunks)
}

fn ledger_config(placed: &PlacedSlot<'_>) -> LedgerConfig {
    LedgerConfig {
        folder: LEDGER_FOLDER.into(),
        claim: claim::ledger_name(placed.pool, placed.gpu, placed.epoch),
        share_bytes: placed.share_bytes,
        priority: placed.tenant.spec.priority,
        sharing: sharing(&placed.gpu.settings.sharing),
    }
}

fn listen(placed: &PlacedSlot<'_>) -> ListenConfig {
    let everywhere = |port: i32| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port as u16));
    let file = |name: &str| PathBuf::from(TLS).join(name);
    ListenConfig {
        serve: everywhere(SERVE_PORT),
        admin: everywhere(ADMIN_PORT),
        probes: everywhere(PROBE_PORT),
        drain_hook: true,
        drain_key: placed.drain_key(),
        admin_tls: Some(AdminTls {
            cert: file("tls.crt"),
            key: file("tls.key"),
            client_ca: file("ca.crt"),
            claim: claim::title(placed.pool, placed.gpu, placed.epoch),
        }),
        peer_token_file: None,
    }
}

/// Returns the path of the configuration in the pod.
pub(super) fn config_path() -> String {
    format!("{CONFIG}/{FILE}")
}
