//! Names of tensors in Hugging Face checkpoints.

use sluice_link::model::Family;
use sluice_link::slab::Tensor;

/// Returns the name of `tensor`; `layer` is ignored for global tensors.
pub fn tensor_name(family: Family, tensor: Tensor, layer: usize) -> String {
    match (family, in_layer(family, tensor)) {
        (Family::Llama, Some(name)) => format!("model.layers.{layer}.{name}"),
        (Family::Opt, Some(name)) => format!("model.decoder.layers.{layer}.{name}"),
        (_, None) => global(family, tensor).to_owned(),
    }
}

fn global(family: Family, tensor: Tensor) -> &'static str {
    match (family, tensor) {
        (_, Tensor::Head) => "lm_head.weight",
        (Family::Llama, Tensor::Embedding) => "model.embed_tokens.weight",
        (Family::Llama, Tensor::FinalNorm) => "model.norm.weight",
        (Family::Opt, Tensor::Embedding) => "model.decoder.embed_tokens.weight",
        (Family::Opt, Tensor::Positions) => "model.decoder.embed_positions.weight",
        (Family::Opt, Tensor::FinalNorm) => "model.decoder.final_layer_norm.weight",
        (Family::Opt, Tensor::FinalNormBias) => "model.decoder.final_layer_norm.bias",
        _ => unreachable!("{family:?} has no tensor {tensor:?}"),
    }
}

fn in_layer(family: Family, tensor: Tensor) -> Option<&'static str> {
    let opt = family == Family::Opt;
    let pick = |llama, in_opt| Some(if opt { in_opt } else { llama });
    match tensor {
        Tensor::AttentionNorm => pick("input_layernorm.weight", "self_attn_layer_norm.weight"),
        Tensor::AttentionNormBias => pick("input_layernorm.bias", "self_attn_layer_norm.bias"),
        Tensor::Query => Some("self_attn.q_proj.weight"),
        Tensor::QueryBias => Some("self_attn.q_proj.bias"),
        Tensor::Key => Some("self_attn.k_proj.weight"),
        Tensor::KeyBias => Some("self_attn.k_proj.bias"),
        Tensor::Value => Some("self_attn.v_proj.weight"),
        Tensor::ValueBias => Some("self_attn.v_proj.bias"),
        Tensor::Output => pick("self_attn.o_proj.weight", "self_attn.out_proj.weight"),
        Tensor::OutputBias => pick("self_attn.o_proj.bias", "self_attn.out_proj.bias"),
        Tensor::MlpNorm => pick("post_attention_layernorm.weight", "final_layer_norm.weight"),
        Tensor::MlpNormBias => pick("post_attention_layernorm.bias", "final_layer_norm.bias"),
        Tensor::Gate => Some("mlp.gate_proj.weight"),
        Tensor::GateBias => Some("mlp.gate_proj.bias"),
        Tensor::Up => pick("mlp.up_proj.weight", "fc1.weight"),
        Tensor::UpBias => pick("mlp.up_proj.bias", "fc1.bias"),
        Tensor::Down => pick("mlp.down_proj.weight", "fc2.weight"),
        Tensor::DownBias => pick("mlp.down_proj.bias", "fc2.bias"),
        _ => None,
    }
}
