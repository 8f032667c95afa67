//! Applied objects: kind, name, and a digest that shows whether they changed.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use sluice_common::hash::fnv1a;
use sluice_types::{GpuPool, ModelTenant};

use super::{
    DIGEST, PlacedSlot, Release, budget, claim, clients_policy, config_map, deployment, peers_policy, service,
};
use crate::gpu::Gpu;

/// Kind of an object that the operator applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChildKind {
    /// A sidecar's configuration.
    ConfigMap,
    /// The pod of a slot.
    Deployment,
    /// An inspection of a model.
    Job,
    /// Allowed connections.
    NetworkPolicy,
    /// How many pods of a tenant may be evicted at once.
    PodDisruptionBudget,
    /// The claim of a GPU.
    ResourceClaim,
    /// The endpoint of a tenant.
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

    /// Returns the kind's name in Kubernetes.
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

/// An object that should exist.
#[derive(Clone, Debug, PartialEq)]
pub struct Child {
    /// Its kind.
    pub kind: ChildKind,
    /// Its name, in the namespace of its owner.
    pub name: String,
    /// Digest of the whole object, as in its annotation [`DIGEST`].
    pub digest: u64,
    /// The whole object, including that annotation.
    pub body: Value,
}

impl Child {
    /// Serialises `object`, which must have a name and a kind.
    pub fn new(kind: ChildKind, object: &impl Serialize) -> Child {
        let mut body = serde_json::to_value(object).expect("an object serialises");
        let digest = fnv1a(body.to_string().bytes());
        let metadata = &mut body["metadata"];
        let name = metadata["name"].as_str().unwrap_or_default().to_owned();
        metadata["annotations"][DIGEST] = Value::from(format!("{digest:016x}"));
        Child { kind, name, digest, body }
    }
}

/// Returns the digest in an object's annotations.
pub fn read_digest(annotations: &BTreeMap<String, String>) -> Option<u64> {
    u64::from_str_radix(annotations.get(DIGEST)?, 16).ok()
}

/// Returns the objects of a GPU with a slot. A claim is immutable: while an update is pending, the existing claim
/// stays.
pub fn gpu_children(pool: &GpuPool, gpu: &Gpu, epoch: u32, waits: bool, release: &Release) -> Vec<Child> {
    let policy = Child::new(ChildKind::NetworkPolicy, &peers_policy(pool, gpu, release));
    let claim = (!waits).then(|| Child::new(ChildKind::ResourceClaim, &claim(pool, gpu, epoch)));
    claim.into_iter().chain([policy]).collect()
}

/// Returns the objects of a tenant, with or without slots.
pub fn tenant_children(tenant: &ModelTenant) -> Vec<Child> {
    let policies =
        clients_policy(tenant).into_iter().map(|policy| Child::new(ChildKind::NetworkPolicy, &policy));
    let service = Child::new(ChildKind::Service, &service(tenant));
    let budget = Child::new(ChildKind::PodDisruptionBudget, &budget(tenant));
    [service, budget].into_iter().chain(policies).collect()
}

/// Returns the objects of a placed slot, in the order in which they are applied.
pub fn slot_children(placed: &PlacedSlot<'_>, release: &Release) -> [Child; 2] {
    let config = Child::new(ChildKind::ConfigMap, &config_map(placed));
    [config, Child::new(ChildKind::Deployment, &deployment(placed, release))]
}
