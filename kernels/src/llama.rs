//! A layer of Llama (Touvron et al. 2023; grouped-query attention and scaled rotary positions as in Llama 3).

use sluice_link::slab::Tensor;

use crate::forward::layer_pass::LayerPass;
use crate::forward::step::Linear;
use crate::simd::Element;
use crate::simd::product::Epilogue;

/// `x += attention(norm(x)); x += down(silu(gate(norm(x))) * up(norm(x)))`
pub(crate) fn layer<E: Element>(pass: &LayerPass<'_, '_, E>, layer: usize) {
    attention(pass, layer);
    mlp(pass, layer);
}

fn attention<E: Element>(pass: &LayerPass<'_, '_, E>, layer: usize) {
    use Tensor::{AttentionNorm, AttentionNormBias};
    let weights = pass.layer_weights(layer);
    pass.norm(weights, AttentionNorm, AttentionNormBias);
    let linear = |matrix, bias, output| Linear { matrix, bias, output, epilogue: Epilogue::Store };
    let projections = [
        linear(Tensor::Query, Tensor::QueryBias, pass.queries()),
        linear(Tensor::Key, Tensor::KeyBias, pass.keys()),
        linear(Tensor::Value, Tensor::ValueBias, pass.values()),
    ];
    pass.multiply(weights, pass.normed(), &projections);
    pass.rotate();
    pass.write_kv(layer);
    pass.attend(layer);
    let (matrix, bias) = (Tensor::Output, Tensor::OutputBias);
    let output = Linear { matrix, bias, output: pass.residual(), epilogue: Epilogue::Add };
    pass.multiply(weights, pass.attended(), &[output]);
}

fn mlp<E: Element>(pass: &LayerPass<'_, '_, E>, layer: usize) {
    let weights = pass.layer_weights(layer);
    pass.norm(weights, Tensor::MlpNorm, Tensor::MlpNormBias);
    let linear = |matrix, bias, output, epilogue| Linear { matrix, bias, output, epilogue };
    let gate = linear(Tensor::Gate, Tensor::GateBias, pass.ffn_hidden(), Epilogue::Silu);
    let up = linear(Tensor::Up, Tensor::UpBias, pass.ffn_hidden(), Epilogue::Multiply);
    pass.multiply_twice(weights, pass.normed(), [&gate, &up]);
    let down = linear(Tensor::Down, Tensor::DownBias, pass.residual(), Epilogue::Add);
    pass.multiply(weights, pass.ffn_hidden(), &[down]);
}
