//! Sizes of common models that matter to a device that reads weights. Shapes as published, half precision.

/// Bytes of a half-precision number.
const HALF: u64 = 2;

/// A decoder of identical layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelShape {
    /// Name of the model.
    pub name: &'static str,
    /// n: number of layers.
    pub layers: u16,
    /// Bytes of one layer's matrices; biases and norms are less than a thousandth of them.
    pub layer_bytes: u64,
    /// Bytes of embeddings and head.
    pub global_bytes: u64,
}

impl ModelShape {
    /// Returns the bytes of all weights.
    pub const fn bytes(&self) -> u64 {
        self.layers as u64 * self.layer_bytes + self.global_bytes
    }
}

/// Returns an OPT model: full attention, two matrices of four times the width, one table for input and output.
const fn opt(name: &'static str, layers: u16, width: u64) -> ModelShape {
    let layer_bytes = HALF * (4 * width * width + 2 * width * 4 * width);
    ModelShape { name, layers, layer_bytes, global_bytes: HALF * 50_272 * width }
}

/// Returns a Llama model: keys and values of `kv` numbers, a gated network of `ffn`, separate tables for input and
/// output.
const fn llama(name: &'static str, layers: u16, [width, kv, ffn, vocab]: [u64; 4]) -> ModelShape {
    let layer_bytes = HALF * (2 * width * width + 2 * width * kv + 3 * width * ffn);
    ModelShape { name, layers, layer_bytes, global_bytes: HALF * 2 * vocab * width }
}

/// Llama-3-8B.
pub const LLAMA_3_8B: ModelShape = llama("Llama-3-8B", 32, [4096, 1024, 14_336, 128_256]);
/// OPT-13B.
pub const OPT_13B: ModelShape = opt("OPT-13B", 40, 5120);

/// All models.
pub const ALL: [ModelShape; 6] = [
    LLAMA_3_8B,
    llama("Llama-3-70B", 80, [8192, 1024, 28_672, 128_256]),
    llama("Llama-2-13B", 40, [5120, 5120, 13_824, 32_000]),
    opt("OPT-6.7B", 32, 4096),
    OPT_13B,
    opt("OPT-30B", 48, 7168),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The parameter counts are published numbers, in billions.
    #[test]
    fn models_have_the_parameters_of_their_names() {
        let parameters = ALL.map(|model| (model.name, (model.bytes() / HALF) as f64 / 1e9));
        let published = [8.03, 70.55, 13.02, 6.65, 12.85, 29.97];
        for ((name, ours), published) in parameters.into_iter().zip(published) {
            assert!((ours / published - 1.0).abs() < 0.01, "{name}: {ours} against {published}");
        }
    }
}
