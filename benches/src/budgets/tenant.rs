//! A tenant with ample KV, and requests to it.

use anyhow::{Context, Result};

use crate::client::Client;
use crate::tenant::{BenchEnv, Tenant, TenantDevice, TenantOptions};

/// Device memory: weights and activations are a third of it at most, all the rest is KV.
const DEVICE: TenantDevice =
    TenantDevice { memory_bytes: 256 << 20, chunk_bytes: 64 << 10, link_bytes_per_s: None };

/// Starts it under `policy`.
pub fn start<'a>(world: &'a BenchEnv, policy: &str) -> Result<Tenant<'a>> {
    start_with(world, policy, policy, false)
}

/// The same as `name`, with the live page or without.
pub fn start_with<'a>(world: &'a BenchEnv, name: &str, policy: &str, page: bool) -> Result<Tenant<'a>> {
    let threads = Some(engine_threads());
    let setup = TenantOptions { policy, device: DEVICE, context: 512, paced: false, threads, page };
    Tenant::start(world, name, &setup)
}

/// Returns all cores but one, which is left to the sidecar and its client: their competition with the engine must
/// not be measured.
fn engine_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().saturating_sub(1).max(1))
}

/// Greedy completions at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Burst {
    /// How many.
    pub requests: u32,
    /// Of each.
    pub prompt_tokens: u32,
    /// Of each.
    pub tokens: u32,
}

impl Burst {
    /// Sends it by `sluice bench`; returns the texts. The same burst has the same prompts.
    pub fn send(self, world: &BenchEnv, tenant: &Tenant<'_>) -> Result<Vec<String>> {
        let outputs = tenant.files().join("outputs.json");
        let Burst { requests, prompt_tokens, tokens } = self;
        let options = format!("-n {requests} --lengths {prompt_tokens}:{tokens} --vocab 512");
        let options: Vec<_> = options.split(' ').map(str::to_owned).collect();
        let report = Client::new(world, &tenant.url(), outputs, &options).run(&world.stop)?;
        serde_json::from_slice(&report.outputs).context("the answers that sluice bench wrote")
    }
}
