//! A layer of OPT (Zhang et al. 2022, arXiv 2205.01068), in the variant with LayerNorm before attention and MLP.

use sluice_link::slab::Tensor;

use crate::forward::layer_pass::LayerPass;
use crate::forward::step::Linear;
use crate::simd::Element;
use crate::simd::product::Epilogue;

/// `x += attention(norm(x)); x += down(relu(up(norm(x))))`, every matrix with a bias.
pub(crate) fn layer<E: Element>(pass: &LayerPass<'_, '_, E>, layer: usize) {
    let weights = pass.layer_weights(layer);
    let linear = |matrix, bias, output, epilogue| Linear { matrix, bias, output, epilogue };
    pass.norm(weights, Tensor::AttentionNorm, Tensor::AttentionNormBias);
    let projections = [
        linear(Tensor::Query, Tensor::QueryBias, pass.queries(), Epilogue::Store),
        linear(Tensor::Key, Tensor::KeyBias, pass.keys(), Epilogue::Store),
        linear(Tensor::Value, Tensor::ValueBias, pass.values(), Epilogue::Store),
    ];
    pass.multiply(weights, pass.normed(), &projections);
    pass.write_kv(layer);
    pass.attend(layer);
    let output = linear(Tensor::Output, Tensor::OutputBias, pass.residual(), Epilogue::Add);
    pass.multiply(weights, pass.attended(), &[output]);
    pass.norm(weights, Tensor::MlpNorm, Tensor::MlpNormBias);
    let up = linear(Tensor::Up, Tensor::UpBias, pass.ffn_hidden(), Epilogue::Relu);
    pass.multiply(weights, pass.normed(), &[up]);
    let down = linear(Tensor::Down, Tensor::DownBias, pass.residual(), Epilogue::Add);
    pass.multiply(weights, pass.ffn_hidden(), &[down]);
}
