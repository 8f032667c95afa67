//! The work of the surrounding process between layers.

use std::ops::ControlFlow;

/// The work of the surrounding process between layers.
pub trait LayerHooks: Send {
    /// Called before the first read of `layer`'s weights and KV; returns when both are resident. `Break` ends the step
    /// with [`ForwardError::Aborted`](super::ForwardError::Aborted).
    fn before_layer(&mut self, layer: usize) -> ControlFlow<()>;

    /// Called after the last read of `layer`'s weights and KV, with its compute time in nanoseconds (without waits).
    fn after_layer(&mut self, layer: usize, elapsed_ns: u64);
}

/// Hooks of a model whose layers are all resident.
pub struct NoHooks;

impl LayerHooks for NoHooks {
    fn before_layer(&mut self, _layer: usize) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn after_layer(&mut self, _layer: usize, _elapsed_ns: u64) {}
}
