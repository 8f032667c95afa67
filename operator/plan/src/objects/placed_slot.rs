//! A slot that has a GPU: what its objects are rendered from.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use sluice_types::{GpuPool, ModelTenant};

use super::{SLOT, claim, name, owner_reference, tenant_labels};
use crate::geometry::EngineGeometry;
use crate::gpu::Gpu;
use crate::resource_demand::Demand;

/// A slot that has a GPU.
#[derive(Clone, Copy, Debug)]
pub struct PlacedSlot<'a> {
    /// Its pool.
    pub pool: &'a GpuPool,
    /// Its tenant.
    pub tenant: &'a ModelTenant,
    /// Its index in the tenant.
    pub index: u32,
    /// Its GPU.
    pub gpu: &'a Gpu,
    /// Epoch of the GPU's claim.
    pub epoch: u32,
    /// Sizes of its model.
    pub model: EngineGeometry,
    /// Resources that it takes.
    pub demand: Demand,
    /// Device memory that it may hold without borrowing, bytes.
    pub share_bytes: u64,
}

impl PlacedSlot<'_> {
    /// Returns the name of its Deployment and its ConfigMap: tenant and index.
    pub fn name(&self) -> String {
        format!("{}-{}", name(self.tenant), self.index)
    }

    /// Returns the name of the Secret with its certificate. An admission policy restricts the operator to Secrets
    /// with such names.
    pub fn secret_name(&self) -> String {
        format!("sluice-{}", self.name())
    }

    /// Returns the owner reference; its objects are deleted with the tenant.
    pub fn owner(&self) -> OwnerReference {
        owner_reference(self.tenant)
    }

    /// Returns the title of its claim, which its sidecar's configuration and its certificate contain.
    pub fn title(&self) -> String {
        claim::title(self.pool, self.gpu, self.epoch)
    }

    /// Returns the labels of its objects.
    pub fn labels(&self) -> BTreeMap<String, String> {
        let mut labels = tenant_labels(self.tenant);
        labels.insert(SLOT.into(), self.index.to_string());
        labels
    }

    /// Returns the key that a pod's hooks present: it cannot be guessed by a client that only reaches the pod, and stays
    /// the same as long as the tenant exists.
    pub(super) fn drain_key(&self) -> Option<String> {
        self.tenant.metadata.uid.clone()
    }
}
