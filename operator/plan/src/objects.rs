//! The objects that the operator applies for a pool and its tenants.
//!
//! | for each | objects |
//! |---|---|
//! | GPU with a slot | a ResourceClaim of this epoch, a NetworkPolicy for the admin ports of its slots |
//! | tenant | a Service, a PodDisruptionBudget, a NetworkPolicy for its clients, a Job that inspects its model |
//! | placed slot | a ConfigMap with its sidecar's configuration, a Deployment of exactly one pod |
//!
//! Each object is complete: it is sent by server-side apply, and the operator does not own fields that are left out.

mod child;
mod claim;
mod config;
mod container_parts;
mod containers;
mod cuda;
pub mod inspect;
mod network;
mod placed_slot;
mod pod;
mod service;
mod vllm;
mod volumes;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use sluice_common::hash::fnv1a;
use sluice_types::{API_VERSION, GpuPool, ModelTenant};

pub use self::child::{Child, ChildKind, gpu_children, read_digest, slot_children, tenant_children};
pub use self::claim::{GPU_REQUEST, claim, claim_digest, claim_name, parse_claim_name};
pub use self::config::{config_map, sidecar_config};
pub use self::network::{clients_policy, peers_policy};
pub use self::placed_slot::PlacedSlot;
pub use self::pod::deployment;
pub use self::service::selector_text as selector;
pub use self::service::{budget, service};
use crate::gpu::Gpu;

/// Label of every object of a tenant: the tenant's name.
pub const TENANT: &str = "sluice.dev/tenant";
/// Label of a tenant's pods: slot or inspection.
pub const COMPONENT: &str = "app.kubernetes.io/component";
/// Label of an inspection's objects: the tenant's uid.
pub const TENANT_UID: &str = "sluice.dev/tenant-uid";
/// Label of a slot's objects: its index.
pub const SLOT: &str = "sluice.dev/slot";
/// Label of every object of a pool and of its tenants: the pool's name.
pub const POOL: &str = "sluice.dev/pool";
/// Label of pods on one GPU: its name, shortened by [`label`].
pub const GPU: &str = "sluice.dev/gpu";
/// Label of pods that download their model, until the download is complete.
pub const FETCHING: &str = "sluice.dev/fetching";
/// Annotation of a pod: the version of the Secret with its API keys. A change makes the kubelet refresh the Secret.
pub const KEYS_VERSION: &str = "sluice.dev/keys-version";
/// Annotation of a Deployment: the claim, and so the GPU and epoch, of its slot.
pub const CLAIM_NAME: &str = "sluice.dev/claim";
/// Annotation of a claim: digest of its request.
pub const CLAIM_DIGEST: &str = "sluice.dev/claim-digest";
/// Annotation of a claim: how its GPU is shared.
pub const SHARING_MODE: &str = "sluice.dev/sharing-mode";
/// Annotation of a claim: the settings of the claim and its pods ([`crate::gpu_settings`]).
pub const SETTINGS: &str = "sluice.dev/settings";
/// Annotation of every applied object: digest of the applied content.
pub const DIGEST: &str = "sluice.dev/digest";
/// Label of every applied object.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`], and the field manager.
pub const MANAGER: &str = "sluice-operator";

/// Port of the OpenAI API.
pub const SERVE_PORT: i32 = 8000;
/// Port of the admin API.
pub const ADMIN_PORT: i32 = 8001;
/// Port of probes, hooks and a copy of the metrics.
pub const PROBE_PORT: i32 = 8002;
/// Port where the supervisor of a native engine answers the kubelet's probes.
pub const ENGINE_PORT: i32 = 8004;

/// Settings of the installed release, from the operator's arguments, which it puts into every pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// Image of `sluice-sidecar`.
    pub sidecar_image: String,
    /// Image of `sluice-engine`.
    pub engine_image: String,
    /// Secrets for image pulls of every pod, in addition to those of its tenant. The kubelet ignores a Secret that
    /// its namespace lacks.
    pub pull_secrets: Vec<String>,
    /// Labels of the operator's own pods, which may reach every admin port.
    pub operator: BTreeMap<String, String>,
    /// Namespace of the operator.
    pub operator_namespace: String,
}

/// Returns the labels of every object of a tenant.
fn tenant_labels(tenant: &ModelTenant) -> BTreeMap<String, String> {
    let (pool, tenant) = (tenant.spec.pool_ref.name.as_str(), name(tenant));
    let pairs = [
        ("app.kubernetes.io/name", "sluice"),
        ("app.kubernetes.io/instance", tenant),
        (MANAGED_BY, MANAGER),
        (POOL, pool),
        (TENANT, tenant),
    ];
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// Returns the labels of every object of a GPU.
fn gpu_labels(pool: &GpuPool, gpu: &Gpu) -> BTreeMap<String, String> {
    let (pool, gpu) = (name(pool), label(&gpu.name));
    let pairs = [("app.kubernetes.io/name", "sluice"), (MANAGED_BY, MANAGER), (POOL, pool), (GPU, &gpu)];
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// A custom resource of Sluice that owns other objects.
pub(crate) trait Owner {
    const KIND: &'static str;

    fn metadata(&self) -> &ObjectMeta;
}

impl Owner for GpuPool {
    const KIND: &'static str = "GpuPool";

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

impl Owner for ModelTenant {
    const KIND: &'static str = "ModelTenant";

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

/// Returns the name of an object from the API server.
pub(crate) fn name<K: Owner>(object: &K) -> &str {
    object.metadata().name.as_deref().unwrap_or_default()
}

/// Returns metadata of an object `name` in the namespace of `owner`, which is deleted with `owner`.
fn object_meta<K: Owner>(owner: &K, name: String, labels: BTreeMap<String, String>) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: owner.metadata().namespace.clone(),
        labels: Some(labels),
        owner_references: Some(vec![owner_reference(owner)]),
        ..ObjectMeta::default()
    }
}

fn owner_reference<K: Owner>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: API_VERSION.to_owned(),
        kind: K::KIND.to_owned(),
        name: name(owner).to_owned(),
        uid: owner.metadata().uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Formats bytes as a Kubernetes quantity.
fn quantity(bytes: u64) -> Quantity {
    Quantity(sluice_types::Quantity::from_bytes(bytes).to_string())
}

/// Returns `text` as a label value. A text of more than 63 characters is cut and a digest of all of it is appended.
pub fn label(text: &str) -> String {
    const LONGEST: usize = 63;
    if text.len() <= LONGEST {
        return text.to_owned();
    }
    let digest = format!("{:016x}", fnv1a(text.bytes()));
    let head: String = text.chars().take(LONGEST - 1 - digest.len()).collect();
    format!("{head}-{digest}")
}
