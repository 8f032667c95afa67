//! A layer of Llama (Touvron et al. 2023; grouped-query attention and scaled rotary positions as in Llama 3).

use sluice_link::slab::Tensor;

use crate::forward::layer_ops::{LayerOps, Linear, Value};
use crate::simd::product::Epilogue;

/// `x += attention(norm(x)); x += down(silu(gate(norm(x))) * up(norm(x)))`
pub(crate) fn layer(pass: &mut impl LayerOps) {
    attention(pass);
    mlp(pass);
}

fn attention(pass: &mut impl LayerOps) {
    pass.norm(Tensor::AttentionNorm, Tensor::AttentionNormBias);
    let linear = |matrix, bias, output| Linear { matrix, bias, output, epilogue: Epilogue::Store };
    let projections = [
        linear(Tensor::Query, Tensor::QueryBias, Value::Queries),
        linear(Tensor::Key, Tensor::KeyBias, Value::Keys),
        linear(Tensor::Value, Tensor::ValueBias, Value::Values),
    ];
    pass.multiply(Value::Normed, &projections);
    pass.rotate();
    pass.write_kv();
    pass.attend();
    let (matrix, bias) = (Tensor::Output, Tensor::OutputBias);
    let output = Linear { matrix, bias, output: Value::Residual, epilogue: Epilogue::Add };
    pass.multiply(Value::AttentionOutput, &[output]);
}

fn mlp(pass: &mut impl LayerOps) {
    pass.norm(Tensor::MlpNorm, Tensor::MlpNormBias);
    let linear = |matrix, bias, output, epilogue| Linear { matrix, bias, output, epilogue };
    let gate = linear(Tensor::Gate, Tensor::GateBias, Value::FfnHidden, Epilogue::Silu);
    let up = linear(Tensor::Up, Tensor::UpBias, Value::FfnHidden, Epilogue::Multiply);
    pass.multiply_gated(Value::Normed, &gate, &up);
    let down = linear(Tensor::Down, Tensor::DownBias, Value::Residual, Epilogue::Add);
    pass.multiply(Value::FfnHidden, &[down]);
}
