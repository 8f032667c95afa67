//! What a model needs of memory and how fast it computes here.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Load, burst};
use crate::tenant::{BenchEnv, Tenant, TenantDevice};

/// Tokens of a KV block.
const BLOCK_TOKENS: u64 = 16;
const MIB: u64 = 1 << 20;

/// Read from a short run with ample memory and a link as fast as memory.
#[derive(Clone, Copy, Debug)]
pub struct Calibration {
    /// Unit of memory that suits the model, bytes.
    pub chunk_bytes: u64,
    /// Weights and activations, bytes.
    pub fixed_bytes: u64,
    /// Layers of the model.
    pub layers: u64,
    /// One layer's weights, bytes.
    pub layer_bytes: u64,
    /// One token's KV in all layers, bytes.
    pub token_bytes: u64,
    /// P99 of the time to the first token of a load for which memory is ample, milliseconds.
    pub ttft_ms: f64,
    /// T_c: one layer of a decode step at the load's concurrency, nanoseconds.
    pub compute_ns: u64,
}

/// Measures the model in `world` under as many requests as the load keeps open.
pub fn calibrate(world: &BenchEnv, load: Load) -> Result<Calibration> {
    let weights_bytes = weights_bytes(world)?;
    let (memory_bytes, chunk_bytes) = (weights_bytes * 5 / 4 + 256 * MIB, chunk_bytes(weights_bytes));
    let device = TenantDevice { memory_bytes, chunk_bytes, link_bytes_per_s: None };
    let tenant = Tenant::start(world, "calibration", &load.setup("Recompute", device))?;
    let few = Load { requests: load.concurrency * 2, ..load };
    let report = burst(world, &tenant, few, |_| ())?;
    let ttft_ms = report.figures["ttft_ms"]["p99"].as_f64().context("a report without a TTFT")?;
    Calibration::from_state(&tenant.state()?, chunk_bytes, ttft_ms)
}

/// Small compared with a layer, so that little is lost to rounding, and few enough chunks to map each separately.
fn chunk_bytes(weights_bytes: u64) -> u64 {
    match weights_bytes / MIB {
        0..128 => MIB / 16,
        128..1024 => MIB / 4,
        _ => 2 * MIB,
    }
}

/// Bytes of the model's files.
fn weights_bytes(world: &BenchEnv) -> Result<u64> {
    let folder = world.model();
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            bytes += path.metadata()?.len();
        }
    }
    ensure!(bytes > 0, "{} holds no .safetensors file", folder.display());
    Ok(bytes)
}

impl Calibration {
    fn from_state(state: &Value, chunk_bytes: u64, ttft_ms: f64) -> Result<Calibration> {
        let number = |path: &str| {
            state.pointer(path).and_then(Value::as_u64).with_context(|| format!("the state has no {path}"))
        };
        let owner = |name: &str| number(&format!("/memory/owners/{name}_bytes"));
        let layers = state["layers"].as_array().map_or(0, Vec::len) as u64;
        let compute_ns = number("/figures/t_compute_ns")?;
        ensure!(layers > 0 && compute_ns > 0, "the state has no compute time of a layer");
        Ok(Calibration {
            chunk_bytes,
            fixed_bytes: owner("weights_global")? + owner("weights_layers")? + owner("activation")?,
            layers,
            layer_bytes: owner("weights_layers")? / layers,
            token_bytes: number("/kv/layer_block_bytes")? * layers / BLOCK_TOKENS,
            ttft_ms,
            compute_ns,
        })
    }

    /// A device with KV for hardly more than one request of `context` tokens.
    pub fn short_device(&self, context: u32, link_bytes_per_s: u64) -> TenantDevice {
        let blocks = u64::from(context).div_ceil(BLOCK_TOKENS);
        let memory_bytes = self.fixed_bytes + blocks * BLOCK_TOKENS * self.token_bytes + self.chunk_bytes;
        TenantDevice {
            memory_bytes: memory_bytes.next_multiple_of(self.chunk_bytes.max(MIB)),
            chunk_bytes: self.chunk_bytes,
            link_bytes_per_s: Some(link_bytes_per_s),
        }
    }

    /// Bytes per second at which a layer's copy takes `ratio` times its compute.
    pub fn link_for(&self, ratio: f64) -> u64 {
        (self.layer_bytes as f64 * 1e9 / (ratio * self.compute_ns as f64)) as u64
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn memory_and_link_follow_from_the_state() {
        let owners = json!({"weights_global_bytes": 10, "weights_layers_bytes": 400, "activation_bytes": 90});
        let state = json!({"memory": {"owners": owners}, "layers": ["Resident", "Resident"],
            "kv": {"layer_block_bytes": 1600}, "figures": {"t_compute_ns": 100}});
        let found = Calibration::from_state(&state, MIB, 7.0).unwrap();
        assert_eq!((found.fixed_bytes, found.layer_bytes, found.token_bytes), (500, 200, 200));
        // 200 bytes in 2 x 100 ns.
        assert_eq!(found.link_for(2.0), 1_000_000_000);
        let device = found.short_device(21_000, 5);
        assert_eq!(device.memory_bytes, (500 + 21_008 * 200 + MIB).next_multiple_of(MIB));
        assert_eq!((device.chunk_bytes, device.link_bytes_per_s), (MIB, Some(5)));
        assert!(Calibration::from_state(&json!({"layers": []}), MIB, 7.0).is_err());
    }
}
