//! The configuration files of a generated model.

use serde_json::{Value, json};
use sluice_link::model::{Dtype, Family, ModelSpec, RopeScaling};

use super::tokenizer::{BOS, EOS};

const CHAT_TEMPLATE: &str = "{{ bos_token }}{% for message in messages %}{{ message['role'] + ': ' + \
    message['content'] + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}";

pub(super) fn config(spec: &ModelSpec) -> Value {
    let mut config = match spec.family {
        Family::Llama => llama(spec),
        Family::Opt => opt(spec),
    };
    let dtype = match spec.dtype {
        Dtype::F32 => "float32",
        Dtype::F16 => "float16",
        Dtype::Bf16 => "bfloat16",
    };
    config["torch_dtype"] = json!(dtype);
    config["vocab_size"] = json!(spec.vocab);
    config["hidden_size"] = json!(spec.hidden);
    config["num_hidden_layers"] = json!(spec.layers);
    config["num_attention_heads"] = json!(spec.heads);
    config["max_position_embeddings"] = json!(spec.max_positions);
    config["tie_word_embeddings"] = json!(spec.tied_embeddings);
    config["bos_token_id"] = json!(BOS);
    config["eos_token_id"] = json!(EOS);
    config
}

fn llama(spec: &ModelSpec) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "intermediate_size": spec.intermediate,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "rms_norm_eps": number(spec.norm_eps),
        "rope_theta": number(spec.rope_theta),
        "rope_scaling": rope_scaling(spec.rope_scaling),
        "hidden_act": "silu",
        "attention_bias": spec.attention_bias,
        "mlp_bias": spec.mlp_bias,
    })
}

fn opt(spec: &ModelSpec) -> Value {
    json!({
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "ffn_dim": spec.intermediate,
        "word_embed_proj_dim": spec.hidden,
        "do_layer_norm_before": true,
        "activation_function": "relu",
        "enable_bias": true,
        "layer_norm_elementwise_affine": true,
        "pad_token_id": EOS,
    })
}

fn rope_scaling(scaling: RopeScaling) -> Value {
    match scaling {
        RopeScaling::None => Value::Null,
        RopeScaling::Linear { factor } => json!({ "rope_type": "linear", "factor": number(factor) }),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => json!({
            "rope_type": "llama3",
            "factor": number(factor),
            "low_freq_factor": number(low_freq_factor),
            "high_freq_factor": number(high_freq_factor),
            "original_max_position_embeddings": original_max_positions,
        }),
    }
}

/// Returns the shortest decimal that parses to `value`: 1e-5, not 9.999999747378752e-6.
fn number(value: f32) -> Value {
    let shortest: f64 = value.to_string().parse().expect("a float's text is a float");
    json!(shortest)
}

pub(super) fn generation() -> Value {
    json!({ "bos_token_id": BOS, "eos_token_id": EOS, "do_sample": false })
}

pub(super) fn tokenizer(spec: &ModelSpec) -> Value {
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "model_max_length": spec.max_positions,
        "clean_up_tokenization_spaces": false,
        "chat_template": CHAT_TEMPLATE,
    })
}
