//! Objects as they are sent: which kind, which name, and a digest that tells whether they changed.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use sluice_types::{GpuPool, ModelTenant};

use super::{
    DIGEST, Placed, Release, budget, claim, clients_policy, config_map, deployment, fnv1a, neighbours_policy,
    service,
};
use crate::gpu::Gpu;

/// Kind of an object that the operator applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
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

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 7] = [
        Kind::ConfigMap,
        Kind::Deployment,
        Kind::Job,
        Kind::NetworkPolicy,
        Kind::PodDisruptionBudget,
        Kind::ResourceClaim,
        Kind::Service,
    ];

    /// Its name in Kubernetes.
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::ConfigMap => "ConfigMap",
            Kind::Deployment => "Deployment",
            Kind::Job => "Job",
            Kind::NetworkPolicy => "NetworkPolicy",
            Kind::PodDisruptionBudget => "PodDisruptionBudget",
            Kind::ResourceClaim => "ResourceClaim",
            Kind::Service => "Service",
        }
    }
}

/// An object that is to be there.
#[derive(Clone, Debug, PartialEq)]
pub struct Child {
    /// Its kind.
    pub kind: Kind,
    /// Its name, in the namespace of its owner.
    pub name: String,
    /// Digest of all of it, as its annotation [`DIGEST`] has it.
    pub digest: u64,
    /// All of it, with that annotation.
    pub body: Value,
}

impl Child {
    /// `object`, which has a name and serialises with its kind.
    pub fn new(kind: Kind, object: &impl Serialize) -> Child {
        let mut body = serde_json::to_value(object).expect("an object serialises");
        let digest = fnv1a(&body.to_string());
        let metadata = &mut body["metadata"];
        let name = metadata["name"].as_str().unwrap_or_default().to_owned();
        metadata["annotations"][DIGEST] = Value::from(format!("{digest:016x}"));
        Child { kind, name, digest, body }
    }
}

/// The digest that an object's annotations keep.
pub fn digest(annotations: &BTreeMap<String, String>) -> Option<u64> {
    u64::from_str_radix(annotations.get(DIGEST)?, 16).ok()
}

/// What is applied for a GPU with a slot. An object's claim is immutable: while a change waits, the one that is there stays.
pub fn of_gpu(pool: &GpuPool, gpu: &Gpu, epoch: u32, waits: bool, release: &Release) -> Vec<Child> {
    let policy = Child::new(Kind::NetworkPolicy, &neighbours_policy(pool, gpu, release));
    let claim = (!waits).then(|| Child::new(Kind::ResourceClaim, &claim(pool, gpu, epoch)));
    claim.into_iter().chain([policy]).collect()
}

/// What is applied for a tenant, whether or not it has slots.
pub fn of_tenant(tenant: &ModelTenant) -> Vec<Child> {
    let policies = clients_policy(tenant).into_iter().map(|policy| Child::new(Kind::NetworkPolicy, &policy));
    let service = Child::new(Kind::Service, &service(tenant));
    let budget = Child::new(Kind::PodDisruptionBudget, &budget(tenant));
    [service, budget].into_iter().chain(policies).collect()
}

/// What is applied for a placed slot, in this order.
pub fn of_slot(placed: &Placed<'_>, release: &Release) -> [Child; 2] {
    let config = Child::new(Kind::ConfigMap, &config_map(placed));
    [config, Child::new(Kind::Deployment, &deployment(placed, release))]
}
