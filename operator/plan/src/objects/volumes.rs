//! Folders of a pod and the volumes behind them.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, EmptyDirVolumeSource, ImageVolumeSource, PersistentVolumeClaimVolumeSource,
    SecretVolumeSource, Volume, VolumeMount,
};
use sluice_common::hash::fnv1a;
use sluice_types::ModelTenantSpec;
use sluice_types::pool::SharingMode;
use sluice_types::tenant::{EngineKind, WeightType};

use super::placed_slot::PlacedSlot;
use super::quantity;
use crate::geometry::EngineGeometry;
use crate::model_source::fetches;

/// The sidecar's configuration.
pub const CONFIG: &str = "/etc/sluice";
/// Its certificate.
pub const TLS: &str = "/etc/sluice-tls";
/// API keys.
pub const KEYS: &str = "/etc/sluice-keys";
/// The engine's socket and the sidecar's own files.
pub const RUN: &str = "/run/sluice";
/// The model.
pub const MODEL: &str = "/model";
/// The ledger folder that the tenants of the GPU share; `sluice-devices` mounts it.
pub const LEDGER_FOLDER: &str = "/run/sluice-neighbourhood";

/// Writable folder of a proxied engine: compiled kernels, sockets.
pub const SCRATCH: &str = "/tmp";
/// Memory that the processes of a proxied engine share by name. Native processes share memfds, which need no folder.
const SHARED_MEMORY: &str = "/dev/shm";
/// Kernels that the CUDA driver has compiled for a native engine; kept when the container restarts.
pub const CUDA_CACHE: &str = "/var/cache/cuda";

/// Names of the volumes.
const MODEL_VOLUME: &str = "model";
const RUN_VOLUME: &str = "run";
const SCRATCH_VOLUME: &str = "scratch";
const SHARED_MEMORY_VOLUME: &str = "shm";
const CUDA_CACHE_VOLUME: &str = "cuda-cache";

/// Returns the model's folder in the pod.
pub fn model_folder(spec: &ModelTenantSpec) -> PathBuf {
    let source = &spec.model.source;
    let claim = source.persistent_volume_claim.as_ref().and_then(|claim| claim.path.as_deref());
    let image = source.image.as_ref().and_then(|image| image.path.as_deref());
    // A leading slash means the root of the volume, not of the pod.
    let inside = claim.or(image).unwrap_or_default().trim_start_matches('/');
    if inside.is_empty() { MODEL.into() } else { Path::new(MODEL).join(inside) }
}

/// Returns the model's folder in a cache volume: a readable name, then a digest of endpoint, repository and revision.
fn cache_folder(spec: &ModelTenantSpec) -> Option<String> {
    let hub = spec.model.source.hugging_face.as_ref().filter(|_| spec.cache.is_some())?;
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._".contains(c) { c } else { '-' };
    let name: String = hub.repo.chars().map(plain).take(MAX_CACHED_NAME_CHARS).collect();
    let all = format!("{}\n{}\n{}", hub.endpoint, hub.repo, hub.revision);
    Some(format!("{}-{:016x}", name.trim_start_matches('.'), fnv1a(all.bytes())))
}

/// Maximum characters of a model's name in a cache: file systems limit a name to 255.
const MAX_CACHED_NAME_CHARS: usize = 200;

/// Returns the download's target folder in its view of the volume.
pub fn fetch_folder(spec: &ModelTenantSpec) -> PathBuf {
    cache_folder(spec).map_or(MODEL.into(), |folder| Path::new(MODEL).join(folder))
}

/// Returns all volumes of a slot's pod.
pub fn volumes(placed: &PlacedSlot<'_>) -> Vec<Volume> {
    let spec = &placed.tenant.spec;
    let config = ConfigMapVolumeSource { name: placed.name(), ..ConfigMapVolumeSource::default() };
    let keys = spec.access.api_keys_secret_ref.as_ref().map(|keys| Volume {
        name: "keys".into(),
        secret: Some(secret(&keys.name)),
        ..Volume::default()
    });
    let all = [
        Volume { name: "config".into(), config_map: Some(config), ..Volume::default() },
        Volume { name: "tls".into(), secret: Some(secret(&placed.secret_name())), ..Volume::default() },
        Volume { name: RUN_VOLUME.into(), empty_dir: Some(scratch(RUN_BYTES)), ..Volume::default() },
        model_volume(spec, Some(&placed.model)),
    ];
    let memory = EmptyDirVolumeSource { medium: Some("Memory".into()), ..scratch(SHARED_MEMORY_BYTES) };
    let written = [
        (SCRATCH_VOLUME, spec.engine.kind == EngineKind::Vllm, scratch(SCRATCH_BYTES)),
        (SHARED_MEMORY_VOLUME, mounts_shared_memory(placed), memory),
        (CUDA_CACHE_VOLUME, mounts_cuda_cache(placed), scratch(CUDA_CACHE_VOLUME_BYTES)),
    ];
    let written = written.into_iter().filter(|(_, wanted, _)| *wanted);
    let written = written.map(|(name, _, empty_dir)| Volume {
        name: name.into(),
        empty_dir: Some(empty_dir),
        ..Volume::default()
    });
    all.into_iter().chain(keys).chain(written).collect()
}

/// Whether the pod has memory of its own in place of the runtime's 64 MiB. In mode `Spatial` NVIDIA's driver mounts the
/// memory there that the clients of its MPS daemon share with the daemon.
fn mounts_shared_memory(placed: &PlacedSlot<'_>) -> bool {
    let mode = placed.gpu.settings.sharing.mode;
    placed.tenant.spec.engine.kind == EngineKind::Vllm && mode != SharingMode::Spatial
}

fn mounts_cuda_cache(placed: &PlacedSlot<'_>) -> bool {
    placed.tenant.spec.engine.kind == EngineKind::Native && !placed.gpu.settings.is_host_backed()
}

/// Size limit for files that a proxied engine compiles, bytes.
const SCRATCH_BYTES: u64 = 8 << 30;
/// Size limit for memory that the processes of a proxied engine share, bytes. It counts as memory of the engine, which
/// has 8 GiB besides its weights.
const SHARED_MEMORY_BYTES: u64 = 1 << 30;
/// Size limit for kernels that the CUDA driver has compiled, bytes: twice what the driver keeps.
const CUDA_CACHE_VOLUME_BYTES: u64 = 512 << 20;
/// Size limit for a socket, a record and a journal of directives, bytes.
const RUN_BYTES: u64 = 16 << 20;

fn secret(name: &str) -> SecretVolumeSource {
    SecretVolumeSource {
        secret_name: Some(name.into()),
        default_mode: Some(0o440),
        ..SecretVolumeSource::default()
    }
}

fn scratch(bytes: u64) -> EmptyDirVolumeSource {
    EmptyDirVolumeSource { medium: None, size_limit: Some(quantity(bytes)) }
}

/// Returns the model's volume. Without a cache, a download of known size gets a volume of matching size limit.
pub fn model_volume(spec: &ModelTenantSpec, downloaded: Option<&EngineGeometry>) -> Volume {
    let source = &spec.model.source;
    let there = source.persistent_volume_claim.as_ref().map(|claim| (&claim.claim_name, true));
    let cache = spec.cache.as_ref().map(|cache| (&cache.claim_name, false));
    let claim = there.or(cache).map(|(claim_name, read_only)| PersistentVolumeClaimVolumeSource {
        claim_name: claim_name.clone(),
        read_only: read_only.then_some(true),
    });
    let image = source.image.as_ref().map(|image| ImageVolumeSource {
        reference: Some(image.reference.clone()),
        pull_policy: Some("IfNotPresent".into()),
    });
    let downloaded = downloaded.filter(|_| fetches(spec) && claim.is_none());
    let empty_dir = downloaded.map(|model| download_volume(model, spec.model.dtype));
    Volume {
        name: MODEL_VOLUME.into(),
        persistent_volume_claim: claim,
        image,
        empty_dir,
        ..Volume::default()
    }
}

/// Returns a volume for the files, a simultaneous partial download, tokenizer and configuration. A model of unknown
/// size gets no limit.
fn download_volume(model: &EngineGeometry, dtype: WeightType) -> EmptyDirVolumeSource {
    // Older inspections did not report the download size: the files have at most twice the bits.
    let widest = match dtype {
        WeightType::Float16 | WeightType::BFloat16 => 2,
        WeightType::Auto | WeightType::Float32 => 1,
    };
    match model.download_bytes.unwrap_or(model.weights_bytes().saturating_mul(widest)) {
        0 => EmptyDirVolumeSource::default(),
        stored => scratch(stored.saturating_add(stored / 10 + (64 << 20))),
    }
}

/// Returns the sidecar's mounts; the model only if the sidecar loads it.
pub fn sidecar_mounts(spec: &ModelTenantSpec) -> Vec<VolumeMount> {
    let keys = spec.access.api_keys_secret_ref.as_ref().map(|_| mount("keys", KEYS, true));
    let model = (spec.engine.kind == EngineKind::Native).then(|| loaded_model_mount(spec));
    let all = [mount("config", CONFIG, true), mount("tls", TLS, true), run_mount()];
    all.into_iter().chain(model).chain(keys).collect()
}

/// Returns the engine's mounts: the socket and compiled kernels, but not the model.
pub fn engine_mounts(placed: &PlacedSlot<'_>) -> Vec<VolumeMount> {
    let cache = mounts_cuda_cache(placed).then(|| mount(CUDA_CACHE_VOLUME, CUDA_CACHE, false));
    [run_mount()].into_iter().chain(cache).collect()
}

/// Returns a proxied engine's mounts: the model, a scratch folder and shared memory.
pub fn proxied_mounts(placed: &PlacedSlot<'_>) -> Vec<VolumeMount> {
    let memory = mounts_shared_memory(placed).then(|| mount(SHARED_MEMORY_VOLUME, SHARED_MEMORY, false));
    let own = [loaded_model_mount(&placed.tenant.spec), mount(SCRATCH_VOLUME, SCRATCH, false)];
    own.into_iter().chain(memory).collect()
}

/// Returns the read-only mount of the model. Of a cache it exposes only the model's own folder, because this tenant's
/// credential may not permit the others.
fn loaded_model_mount(spec: &ModelTenantSpec) -> VolumeMount {
    VolumeMount { sub_path: cache_folder(spec), ..model_mount(true) }
}

/// Returns the download's mounts: the model's folder, and no Secret.
pub fn fetch_mounts() -> Vec<VolumeMount> {
    vec![model_mount(false)]
}

/// Returns the mount of the model's folder.
pub fn model_mount(read_only: bool) -> VolumeMount {
    mount(MODEL_VOLUME, MODEL, read_only)
}

fn run_mount() -> VolumeMount {
    mount(RUN_VOLUME, RUN, false)
}

fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.into(),
        mount_path: path.into(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}
