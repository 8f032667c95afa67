//! A layer of OPT (Zhang et al. 2022, arXiv 2205.01068), in the variant with LayerNorm before attention and MLP.

use sluice_link::slab::Tensor;

use crate::forward::layer_ops::{LayerOps, Linear, Value};
use crate::simd::product::Epilogue;

/// `x += attention(norm(x)); x += down(relu(up(norm(x))))`, every matrix with a bias.
pub(crate) fn layer(pass: &mut impl LayerOps) {
    let linear = |matrix, bias, output, epilogue| Linear { matrix, bias, output, epilogue };
    pass.norm(Tensor::AttentionNorm, Tensor::AttentionNormBias);
    let projections = [
        linear(Tensor::Query, Tensor::QueryBias, Value::Queries, Epilogue::Store),
        linear(Tensor::Key, Tensor::KeyBias, Value::Keys, Epilogue::Store),
        linear(Tensor::Value, Tensor::ValueBias, Value::Values, Epilogue::Store),
    ];
    pass.multiply(Value::Normed, &projections);
    pass.write_kv();
    pass.attend();
    let output = linear(Tensor::Output, Tensor::OutputBias, Value::Residual, Epilogue::Add);
    pass.multiply(Value::AttentionOutput, &[output]);
    pass.norm(Tensor::MlpNorm, Tensor::MlpNormBias);
    let up = linear(Tensor::Up, Tensor::UpBias, Value::FfnHidden, Epilogue::Relu);
    pass.multiply(Value::Normed, &[up]);
    let down = linear(Tensor::Down, Tensor::DownBias, Value::Residual, Epilogue::Add);
    pass.multiply(Value::FfnHidden, &[down]);
}
