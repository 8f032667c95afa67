//! [`ServeConfig`]: the configuration of a run.

use sluice_policy::reclaim::PolicyName;
use sluice_policy::tunables::Tuned;

use super::request_slo::RequestSlo;
use crate::gpu::GpuSharing;
use crate::profiles::cost::Launch;
use crate::profiles::hardware::Hardware;
use crate::profiles::model::ModelProfile;

/// A model and its share of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantModel {
    /// The model.
    pub model: ModelProfile,
    /// The tenant's share of device memory, permille.
    pub share_permille: u32,
}

/// Options of a run besides the policy; all other values are production defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServeOptions {
    /// Largest KV on the device per tenant, bytes; unlimited if `None`.
    pub kv_bytes: Option<u64>,
    /// Host memory for KV per tenant, bytes; if `None`, an equal part of the host memory that the weights leave.
    pub host_kv_bytes: Option<u64>,
    /// Whether pauses are off: a request that does not fit is preempted and computed again.
    pub never_pauses: bool,
    /// Whether tokens are unpaced: clients have no buffer of tokens.
    pub unpaced: bool,
}

/// Configuration of a run.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// The machine.
    pub hardware: Hardware,
    /// Tenants of the machine.
    pub tenants: Vec<TenantModel>,
    /// How the tenants share it.
    pub sharing: GpuSharing,
    /// Policy of all tenants.
    pub policy: PolicyName,
    /// How kernels are launched.
    pub launch: Launch,
    /// Size of a chunk, bytes.
    pub chunk_bytes: u64,
    /// Largest number of concurrent sequences per tenant.
    pub max_sequences: u32,
    /// Whether prompts with a common prefix share KV.
    pub prefix_caching: bool,
    /// Order in which peers are asked for memory.
    pub rule: sluice_policy::peers::victim::VictimRule,
    /// Objectives for a request.
    pub slo: RequestSlo,
    /// Further options.
    pub options: ServeOptions,
    /// Tunables that differ from the policy's defaults.
    pub tunables: Tuned,
    /// Seed of message delays and prompts.
    pub seed: u64,
}

impl ServeConfig {
    /// Creates a configuration with the usual defaults: captured graphs, chunks of 16 MiB, 64 concurrent sequences, no
    /// prefix caching, seed 1.
    pub fn new(
        hardware: Hardware,
        tenants: Vec<TenantModel>,
        sharing: GpuSharing,
        policy: PolicyName,
    ) -> ServeConfig {
        ServeConfig {
            hardware,
            tenants,
            sharing,
            policy,
            launch: Launch::Graph,
            chunk_bytes: 16 << 20,
            max_sequences: 64,
            prefix_caching: false,
            rule: sluice_policy::peers::victim::VictimRule::default(),
            slo: RequestSlo::default(),
            options: ServeOptions::default(),
            tunables: Tuned::default(),
            seed: 1,
        }
    }

    /// Returns the host memory for KV per tenant, bytes.
    pub fn host_kv_bytes(&self) -> u64 {
        let weights: u64 = self.tenants.iter().map(|place| place.model.weight_bytes()).sum();
        let rest = self.hardware.host_bytes.saturating_sub(weights);
        self.options.host_kv_bytes.unwrap_or(rest / self.tenants.len().max(1) as u64)
    }
}
