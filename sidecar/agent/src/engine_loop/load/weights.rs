//! Loads weights from the model's files into host memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use sluice_link::slab::SlabLayout;
use sluice_memory::{HostWeights, Slab};
use sluice_policy::ids::LayerId;

use super::error::LoadError;
use super::gpu::Gpu;
use super::loaded_tenant::LoadedTenant;
use super::sizes::host_weight_bytes;
use crate::model::weights::Weights;

pub(super) fn read_weights(
    loaded: &LoadedTenant,
    layout: &SlabLayout,
    gpu: &Gpu,
    closed: &AtomicBool,
) -> Result<HostWeights, LoadError> {
    let begun = Instant::now();
    let weights = Weights::open(&loaded.config.model_path)?;
    let total_bytes = host_weight_bytes(loaded, layout);
    tracing::info!(model = %loaded.config.model_path.display(), total_bytes, "reading weights");
    let mut master = gpu.host_weights(layout, loaded.spec.layers)?;
    weights.fill_global(&loaded.spec, layout, master.slab_mut(Slab::Global))?;
    for_each_layer(loaded.spec.layers, closed, |layer| {
        let slab = master.slab_mut(Slab::Layer(LayerId(layer)));
        Ok(weights.fill_layer(&loaded.spec, layout, layer, slab)?)
    })?;
    tracing::info!(seconds = begun.elapsed().as_secs_f64(), "read all weights into host memory");
    Ok(master.freeze()?)
}

/// Reads the layers one by one. A large model takes minutes, so a stop takes effect before the next layer.
fn for_each_layer(
    layers: u16,
    closed: &AtomicBool,
    mut read: impl FnMut(u16) -> Result<(), LoadError>,
) -> Result<(), LoadError> {
    for layer in 0..layers {
        if closed.load(Ordering::Relaxed) {
            return Err(LoadError::Stopped);
        }
        read(layer)?;
        if (layer + 1).is_multiple_of(layers.div_ceil(4)) || layer + 1 == layers {
            tracing::info!("read {} of {layers} layers", layer + 1);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_ends_reading_before_next_layer() {
        let closed = AtomicBool::new(false);
        let mut read = Vec::new();
        let ended = for_each_layer(5, &closed, |layer| {
            read.push(layer);
            closed.store(layer == 1, Ordering::Relaxed);
            Ok(())
        });
        assert!(matches!(ended, Err(LoadError::Stopped)), "{ended:?}");
        assert_eq!(read, [0, 1]);
    }
}
