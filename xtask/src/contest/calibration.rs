//! What a model needs of memory and how fast it computes here.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Load, burst};
use crate::tenant::{Device, Tenant, World};

/// Tokens of a KV block (DESIGN 4).
const BLOCK_TOKENS: u64 = 16;
const MIB: u64 = 1 << 20;

/// Read from a short run with ample memory and a link as fast as memory.
#[derive(Clone, Copy, Debug)]
pub struct Calibration {
    /// Weights and activations, bytes.
    pub fixed_bytes: u64,
    /// One layer's weights, bytes.
    pub layer_bytes: u64,
    /// One token's KV in all layers, bytes.
    pub token_bytes: u64,
    /// T_c: one layer of a decode step at the load's concurrency, nanoseconds.
    pub compute_ns: u64,
}

/// Measures the model in `world` under as many requests as the load keeps open.
pub fn calibrate(world: &World, load: Load) -> Result<Calibration> {
    let device = Device { memory_bytes: weights_bytes(world)? * 5 / 4 + 256 * MIB, link_bytes_per_s: None };
    let tenant = Tenant::start(world, "calibration", &load.setup("Recompute", device))?;
    let few = Load { requests: load.concurrency * 2, ..load };
    burst(world, &tenant, few, &tenant.files().join("outputs.json"), |_| ())?;
    Calibration::from_state(&tenant.state()?)
}

/// Bytes of the model's files.
fn weights_bytes(world: &World) -> Result<u64> {
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
    fn from_state(state: &Value) -> Result<Calibration> {
        let number = |path: &str| {
            state.pointer(path).and_then(Value::as_u64).with_context(|| format!("the state has no {path}"))
        };
        let owner = |name: &str| number(&format!("/memory/owners/{name}_bytes"));
        let layers = state["layers"].as_array().map_or(0, Vec::len) as u64;
        let compute_ns = number("/figures/t_compute_ns")?;
        ensure!(layers > 0 && compute_ns > 0, "the state tells no compute time of a layer");
        Ok(Calibration {
            fixed_bytes: owner("weights_global")? + owner("weights_layers")? + owner("activation")?,
            layer_bytes: owner("weights_layers")? / layers,
            token_bytes: number("/kv/block_bytes")? * layers / BLOCK_TOKENS,
            compute_ns,
        })
    }

    /// Device memory with KV for hardly more than one request of `load`.
    pub fn short_memory(&self, load: Load) -> u64 {
        let blocks = u64::from(load.context()).div_ceil(BLOCK_TOKENS);
        (self.fixed_bytes + blocks * BLOCK_TOKENS * self.token_bytes).next_multiple_of(MIB)
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
            "kv": {"block_bytes": 1600}, "figures": {"t_compute_ns": 100}});
        let found = Calibration::from_state(&state).unwrap();
        assert_eq!((found.fixed_bytes, found.layer_bytes, found.token_bytes), (500, 200, 200));
        // 200 bytes in 2 x 100 ns.
        assert_eq!(found.link_for(2.0), 1_000_000_000);
        let load = Load { requests: 1, concurrency: 1, prompt: 20_000, output: 1_000 };
        assert_eq!(found.short_memory(load), (500 + 21_008 * 200_u64).next_multiple_of(MIB));
        assert!(Calibration::from_state(&json!({"layers": []})).is_err());
    }
}
