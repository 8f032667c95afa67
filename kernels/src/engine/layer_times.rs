//! Times of the layers of a step.

use super::inputs::LayerInput;

/// Times by layer, nanoseconds.
pub(super) struct LayerTimes {
    /// Compute time.
    pub(super) layer_ns: Vec<u64>,
    /// Wait for weights.
    pub(super) stall_ns: Vec<u64>,
    /// Wait for KV.
    pub(super) kv_stall_ns: Vec<u64>,
}

impl LayerTimes {
    /// Creates times of layers that have not run.
    pub(super) fn new(layers: usize) -> LayerTimes {
        LayerTimes { layer_ns: vec![0; layers], stall_ns: vec![0; layers], kv_stall_ns: vec![0; layers] }
    }

    /// Records a wait for an input.
    pub(super) fn set_stall(&mut self, layer: usize, input: LayerInput, ns: u64) {
        match input {
            LayerInput::Weights => self.stall_ns[layer] = ns,
            LayerInput::Kv => self.kv_stall_ns[layer] = ns,
        }
    }

    /// Whether there was a wait for the layer.
    pub(super) fn has_stalled(&self, layer: usize) -> bool {
        self.stall_ns[layer] + self.kv_stall_ns[layer] > 0
    }

    /// Limits the stall of a layer to what the device measured: while the device works on earlier layers, a wait is no
    /// stall.
    pub(super) fn limit_stall(&mut self, layer: usize, idle_ns: u64) {
        self.stall_ns[layer] = self.stall_ns[layer].min(idle_ns);
        self.kv_stall_ns[layer] = self.kv_stall_ns[layer].min(idle_ns - self.stall_ns[layer]);
    }
}
