//! A layer of Llama (Touvron et al. 2023; grouped-query attention and scaled rotary positions as in Llama 3).

use sluice_link::slab::Tensor;

use crate::forward::step::{Linear, Step};
use crate::simd::Element;
use crate::simd::matmul::Epilogue;

/// `x += attention(norm(x)); x += down(silu(gate(norm(x))) * up(norm(x)))`
pub(crate) fn layer<E: Element>(step: &Step<'_, E>, layer: usize) {
    attention(step, layer);
    mlp(step, layer);
}

fn attention<E: Element>(step: &Step<'_, E>, layer: usize) {
    use Tensor::{AttentionNorm, AttentionNormBias};
    let weights = step.layer_weights(layer);
    step.norm(weights, AttentionNorm, AttentionNormBias);
    let linear = |matrix, bias, output| Linear { matrix, bias, output, epilogue: Epilogue::Store };
    let projections = [
        linear(Tensor::Query, Tensor::QueryBias, step.queries()),
        linear(Tensor::Key, Tensor::KeyBias, step.keys()),
        linear(Tensor::Value, Tensor::ValueBias, step.values()),
    ];
    step.multiply(weights, step.normed(), &projections);
    step.rotate();
    step.write_kv(layer);
    step.attend(layer);
    let (matrix, bias) = (Tensor::Output, Tensor::OutputBias);
    let output = Linear { matrix, bias, output: step.stream(), epilogue: Epilogue::Add };
    step.multiply(weights, step.attended(), &[output]);
}

fn mlp<E: Element>(step: &Step<'_, E>, layer: usize) {
    let weights = step.layer_weights(layer);
    step.norm(weights, Tensor::MlpNorm, Tensor::MlpNormBias);
    let linear = |matrix, bias, output, epilogue| Linear { matrix, bias, output, epilogue };
    let gate = linear(Tensor::Gate, Tensor::GateBias, step.inner(), Epilogue::Silu);
    let up = linear(Tensor::Up, Tensor::UpBias, step.inner(), Epilogue::Multiply);
    step.multiply_twice(weights, step.normed(), [&gate, &up]);
    let down = linear(Tensor::Down, Tensor::DownBias, step.stream(), Epilogue::Add);
    step.multiply(weights, step.inner(), &[down]);
}
