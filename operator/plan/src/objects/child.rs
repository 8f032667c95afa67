//! Objects as they are sent: which kind, which name, and a digest that tells whether they changed.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use sluice_types::{GpuPool, ModelTenant};

use super::{
    DIGEST, PlacedSlot, Release, budget, claim, clients_policy, config_map, deployment, fnv1a, peers_policy,
    service,
};
use crate::gpu::Gpu;

/// Kind of an object that the operator applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChildKind {
    /// A sidecar's configuration.
    ConfigMap,
    /// A slot.
    Deployment,
    /// An inspection of a model.
    Job,
    /// Who may connect to whom.
    NetworkPolicy,
    /// How many pods of a tenant may be taken down at once.
    PodDisruptionBudget,
    /// A GPU.
    ResourceClaim,
    /// How a tenant is reached.
    Service,
}

impl ChildKind {
    /// All of them.
    pub const ALL: [ChildKind; 7] = [
        ChildKind::ConfigMap,
        ChildKind::Deployment,
        ChildKind::Job,
        ChildKind::NetworkPolicy,
        ChildKind::PodDisruptionBudget,
        ChildKind::ResourceClaim,
        ChildKind::Service,
    ];

    /// Its name in Kubernetes.
    pub const fn as_str(self) -> &'static str {
        match self {
            ChildKind::ConfigMap => "ConfigMap",
            ChildKind::Deployment => "Deployment",
            ChildKind::Job => "Job",
            ChildKind::NetworkPolicy => "NetworkPolicy",
            ChildKind::PodDisruptionBudget => "PodDisruptionBudget",
            ChildKind::ResourceClaim => "ResourceClaim",
            ChildKind::Service => "Service",
        }
    }
}

/// An object that is to be there.
#[derive(Clone, Debug, PartialEq)]
pub struct Child {
    /// Its kind.
    pub kind: ChildKind,
    /// Its name, in the namespace of its owner.
    pub name: String,
    /// Digest of all of it, as its annotation [`DIGEST`] has it.
    pub digest: u64,
    /// All of it, with that annotation.
    pub body: Value,
}

impl Child {
    /// `object`, which has a name and serialises with its kind.
    pub fn new(kind: ChildKind, object: &impl Serialize) -> Child {
        let mut body = serde_json::to_value(object).expect("an object serialises");
        let digest = fnv1a(&body.to_string());
        let metadata = &mut body["metadata"];
        let name = metadata["name"].as_str().unwrap_or_default().to_owned();
        metadata["annotations"][DIGEST] = Value::from(format!("{digest:016x}"));
        Child { kind, name, digest, body }
    }
}

/// The digest that an object's annotations keep.
pub fn read_digest(annotations: &BTreeMap<String, String>) -> Option<u64> {
    u64::from_str_radix(annotations.get(DIGEST)?, 16).ok()
}

/// What is applied for a GPU with a slot. An object's claim is immutable: while a change waits, the one that is there stays.
pub fn gpu_children(pool: &GpuPool, gpu: &Gpu, epoch: u32, waits: bool, release: &Release) -> Vec<Child> {
    let policy = Child::new(ChildKind::NetworkPolicy, &peers_policy(pool, gpu, release));
    let claim = (!waits).then(|| Child::new(ChildKind::ResourceClaim, &claim(pool, gpu, epoch)));
    claim.into_iter().chain([policy]).collect()
}

/// What is applied for a tenant, whether or not it has slots.
pub fn tenant_children(tenant: &ModelTenant) -> Vec<Child> {
    let policies =
        clients_policy(tenant).into_iter().map(|policy| Child::new(ChildKind::NetworkPolicy, &policy));
    let service = Child::new(ChildKind::Service, &service(tenant));
    let budget = Child::new(ChildKind::PodDisruptionBudget, &budget(tenant));
    [service, budget].into_iter().chain(policies).collect()
}

/// What is applied for a placed slot, in this order.
pub fn slot_children(placed: &PlacedSlot<'_>, release: &Release) -> [Child; 2] {
    let config = Child::new(ChildKind::ConfigMap, &config_map(placed));
    [config, Child::new(ChildKind::Deployment, &deployment(placed, release))]
}
