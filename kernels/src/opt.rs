//! A layer of OPT (Zhang et al. 2022, arXiv 2205.01068), in the form with LayerNorm before each half.

use sluice_link::slab::Tensor;

use crate::forward::step::{Linear, Step};
use crate::simd::Element;
use crate::simd::matmul::Epilogue;

/// `x += attention(norm(x)); x += down(relu(up(norm(x))))`, every matrix with a bias.
pub(crate) fn layer<E: Element>(step: &Step<'_, E>, layer: usize) {
    let weights = step.layer_weights(layer);
    let linear = |matrix, bias, output, epilogue| Linear { matrix, bias, output, epilogue };
    step.norm(weights, Tensor::AttentionNorm, Tensor::AttentionNormBias);
    let projections = [
        linear(Tensor::Query, Tensor::QueryBias, step.queries(), Epilogue::Store),
        linear(Tensor::Key, Tensor::KeyBias, step.keys(), Epilogue::Store),
        linear(Tensor::Value, Tensor::ValueBias, step.values(), Epilogue::Store),
    ];
    step.multiply(weights, step.normed(), &projections);
    step.write_kv(layer);
    step.attend(layer);
    let output = linear(Tensor::Output, Tensor::OutputBias, step.stream(), Epilogue::Add);
    step.multiply(weights, step.attended(), &[output]);
    step.norm(weights, Tensor::MlpNorm, Tensor::MlpNormBias);
    let up = linear(Tensor::Up, Tensor::UpBias, step.inner(), Epilogue::Relu);
    step.multiply(weights, step.normed(), &[up]);
    let down = linear(Tensor::Down, Tensor::DownBias, step.stream(), Epilogue::Add);
    step.multiply(weights, step.inner(), &[down]);
}
