//! Tests that the inspection of a model reports the sizes that a sidecar with a real engine needs.

use std::path::Path;

use sluice_agent::engine_loop::LoadError;
use sluice_agent::inspect::{DeviceArgs, ModelFiles, inspect};
use sluice_policy::config_error::ConfigError;
use sluice_wire::config::{LimitsConfig, SidecarConfig};
use sluice_wire::geometry::Geometry;

use crate::machine::HOST_CHUNK;
use crate::models::{Shape, generate};
use crate::support::{Tenant, config, poisoned, shared};

const THREADS: u32 = 3;

pub fn inspected(model: &Path, dtype: Option<&str>, device: DeviceArgs) -> Geometry {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(inspect(&ModelFiles::folder(model), dtype, device)).unwrap()
}

/// Returns the floor in a sidecar's error for a GPU that is too small; it includes the activation cost from the engine.
pub fn refused(mut config: SidecarConfig) -> u64 {
    config.gpu.memory_bytes = config.gpu.chunk_bytes * 4;
    match Tenant::begin(config, poisoned()) {
        Err(LoadError::Unsatisfiable(ConfigError::FloorExceedsCapacity { floor_bytes, .. })) => floor_bytes,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("four chunks are enough"),
    }
}

/// Returns the floor of a tenant without moving layers, in bytes of whole chunks.
pub fn floor(model: &Geometry, activations: u64, tokens: u32, chunk: u64) -> u64 {
    let layers = u64::from(model.layers);
    let chunks = |bytes: u64| bytes.div_ceil(chunk);
    let blocks = u64::from(tokens.div_ceil(16)) * layers;
    let block = model.kv_bytes_per_token * 16 / layers;
    let weights = chunks(model.global_bytes) + layers * chunks(model.layer_bytes);
    let activations = chunks(activations + u64::from(THREADS) * model.thread_bytes);
    (weights + activations + blocks.div_ceil(chunk / block)) * chunk
}

fn assert_equal(model: &Path, dtype: Option<&str>) {
    let reported = inspected(model, dtype, DeviceArgs::default());
    // All layers with the activations of the smallest step, and of the largest step.
    for (policy, activations) in
        [("Ellm", reported.activation_bytes), ("Recompute", reported.step_activation_bytes)]
    {
        let mut config = config(model, 0, policy);
        config.limits = LimitsConfig::default();
        config.dtype = dtype.map(str::to_owned);
        config.engine.threads = THREADS;
        assert_eq!(
            refused(config),
            floor(&reported, activations, reported.max_model_len, HOST_CHUNK),
            "{policy}, {dtype:?}"
        );
    }
}

#[test]
fn an_inspection_of_a_generated_model_equals_what_its_sidecar_needs() {
    for (family, dtype) in [("llama", "bf16"), ("opt", "f32")] {
        let model = generate(&Shape { family, dtype, layers: 6, hidden: 96, vocab: 512 });
        assert_equal(model.path(), None);
        assert_equal(model.path(), Some("Float32"));
    }
}

#[test]
fn an_inspection_of_a_trained_model_equals_what_its_sidecar_needs() {
    let Some(model) = shared("models/stories260k") else { return };
    assert_equal(&model, None);
    assert_equal(&model, Some("Float16"));
}
