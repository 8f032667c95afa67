//! Converts `config.json` to [`ModelSpec`]. Features that are not supported are refused by name, never ignored.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

use serde_json::{Map, Value};
use sluice_link::model::{Dtype, Family, ModelSpec, RopeScaling};
use sluice_policy::layer_set::MAX_LAYERS;

use super::error::{ModelError, read_json};
use super::weights::{TensorHeader, read_headers, stored_dtype};

/// Allowed numbers of layers. Memory moves by layers, so a model needs at least two.
const LAYER_RANGE: RangeInclusive<u16> = 2..=MAX_LAYERS;

/// Parser of a `config.json`.
struct ConfigReader<'a> {
    path: &'a Path,
    map: Map<String, Value>,
}

/// Reads `config.json` of `folder`. `dtype` overrides the number format (`Float32`, `Float16`, `BFloat16`). If the file
/// names none, the format of the weights applies.
///
/// # Errors
/// Names the file, the field and the problem.
pub fn read_spec(folder: &Path, dtype: Option<&str>) -> Result<ModelSpec, ModelError> {
    if let Some(absent) = ModelError::find_absent(folder) {
        return Err(absent);
    }
    let path = folder.join("config.json");
    let shape = parse_config(&path, read_json(&path)?, dtype)?;
    match shape.has_dtype {
        true => Ok(shape.spec),
        false => Ok(shape.into_spec(&read_headers(folder)?)),
    }
}

/// Content of a `config.json`.
#[derive(Clone, Debug)]
pub struct ParsedConfig {
    spec: ModelSpec,
    has_dtype: bool,
}

impl ParsedConfig {
    /// Returns the model in the configured number format, or in that of its weights according to `headers`. Float32 if
    /// the headers name none.
    pub fn into_spec(self, headers: &BTreeMap<String, TensorHeader>) -> ModelSpec {
        let dtype = match self.has_dtype {
            true => self.spec.dtype,
            false => stored_dtype(&self.spec, headers).unwrap_or(Dtype::F32),
        };
        ModelSpec { dtype, ..self.spec }
    }
}

/// Parses the content of the `config.json` at `path`. `dtype` as in [`read_spec`].
///
/// # Errors
/// Names the field and the problem.
pub fn parse_config(
    path: &Path,
    map: Map<String, Value>,
    dtype: Option<&str>,
) -> Result<ParsedConfig, ModelError> {
    let fields = ConfigReader { path, map };
    let named = fields.dtype(dtype)?;
    // Used until the format of the weights is read.
    let provisional = named.unwrap_or(Dtype::F32);
    let spec = match fields.text("model_type")?.unwrap_or_default() {
        "llama" => fields.llama(provisional)?,
        "opt" => fields.opt(provisional)?,
        other => {
            return Err(
                fields.field_error("model_type", format!("`{other}` is not supported; use llama or opt"))
            );
        }
    };
    fields.validate(&spec)?;
    Ok(ParsedConfig { spec, has_dtype: named.is_some() })
}

impl ConfigReader<'_> {
    fn field_error(&self, field: &str, problem: impl Into<String>) -> ModelError {
        ModelError::field(self.path, field, problem)
    }

    fn get(&self, field: &str) -> Option<&Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    fn text(&self, field: &str) -> Result<Option<&str>, ModelError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.field_error(field, "is not a text"))
    }

    fn optional_count(&self, field: &str) -> Result<Option<u32>, ModelError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let count = value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
        count.map(Some).ok_or_else(|| self.field_error(field, format!("`{value}` is not a positive count")))
    }

    fn count(&self, field: &str) -> Result<u32, ModelError> {
        self.optional_count(field)?.ok_or_else(|| self.field_error(field, "is missing"))
    }

    fn number(&self, field: &str, default: f32) -> Result<f32, ModelError> {
        let Some(value) = self.get(field) else { return Ok(default) };
        let number = value.as_f64().filter(|n| n.is_finite() && *n > 0.0);
        number
            .map(|n| n as f32)
            .ok_or_else(|| self.field_error(field, format!("`{value}` is not a positive number")))
    }

    fn flag(&self, field: &str, default: bool) -> Result<bool, ModelError> {
        let Some(value) = self.get(field) else { return Ok(default) };
        value.as_bool().ok_or_else(|| self.field_error(field, format!("`{value}` is neither true nor false")))
    }

    /// Checks that the value is one of `supported`.
    fn require_one_of(&self, field: &str, supported: &[&str]) -> Result<(), ModelError> {
        match self.text(field)? {
            Some(found) if !supported.contains(&found) => {
                Err(self.field_error(field, format!("`{found}` is not supported ({})", supported.join(", "))))
            }
            _ => Ok(()),
        }
    }

    /// Returns the configured number format, if any.
    fn dtype(&self, wanted: Option<&str>) -> Result<Option<Dtype>, ModelError> {
        let stored = self.text("torch_dtype")?.or(self.text("dtype")?);
        match wanted.filter(|w| *w != "Auto").or(stored) {
            None | Some("auto") => Ok(None),
            Some("float32" | "Float32") => Ok(Some(Dtype::F32)),
            Some("float16" | "Float16") => Ok(Some(Dtype::F16)),
            Some("bfloat16" | "BFloat16") => Ok(Some(Dtype::Bf16)),
            Some(other) => Err(self.field_error(
                "torch_dtype",
                format!("`{other}` is not supported; use float32, float16 or bfloat16"),
            )),
        }
    }

    fn layers(&self) -> Result<u16, ModelError> {
        let layers = self.count("num_hidden_layers")?;
        let possible = u16::try_from(layers).ok().filter(|layers| LAYER_RANGE.contains(layers));
        possible.ok_or_else(|| {
            let problem = format!(
                "{layers} is not supported; a model may have {} to {} layers",
                LAYER_RANGE.start(),
                LAYER_RANGE.end()
            );
            self.field_error("num_hidden_layers", problem)
        })
    }

    fn llama(&self, dtype: Dtype) -> Result<ModelSpec, ModelError> {
        self.require_one_of("hidden_act", &["silu", "swish"])?;
        if self.get("quantization_config").is_some() {
            return Err(self.field_error("quantization_config", "quantised weights are not supported"));
        }
        let (hidden, heads) = (self.count("hidden_size")?, self.count("num_attention_heads")?);
        Ok(ModelSpec {
            family: Family::Llama,
            dtype,
            vocab: self.count("vocab_size")?,
            hidden,
            intermediate: self.count("intermediate_size")?,
            layers: self.layers()?,
            heads,
            kv_heads: self.optional_count("num_key_value_heads")?.unwrap_or(heads),
            head_dim: self.optional_count("head_dim")?.unwrap_or(hidden / heads),
            max_positions: self.optional_count("max_position_embeddings")?.unwrap_or(2048),
            norm_eps: self.number("rms_norm_eps", 1e-6)?,
            rope_theta: self.rope_theta()?,
            rope_scaling: self.rope_scaling()?,
            tied_embeddings: self.flag("tie_word_embeddings", false)?,
            attention_bias: self.flag("attention_bias", false)?,
            mlp_bias: self.flag("mlp_bias", false)?,
        })
    }

    fn opt(&self, dtype: Dtype) -> Result<ModelSpec, ModelError> {
        self.require_one_of("activation_function", &["relu"])?;
        for (field, supported) in
            [("do_layer_norm_before", true), ("enable_bias", true), ("layer_norm_elementwise_affine", true)]
        {
            if self.flag(field, supported)? != supported {
                return Err(self.field_error(field, format!("only {supported} is supported")));
            }
        }
        let (hidden, heads) = (self.count("hidden_size")?, self.count("num_attention_heads")?);
        if self.optional_count("word_embed_proj_dim")?.is_some_and(|dim| dim != hidden) {
            return Err(self.field_error("word_embed_proj_dim", format!("must equal hidden_size ({hidden})")));
        }
        Ok(ModelSpec {
            family: Family::Opt,
            dtype,
            vocab: self.count("vocab_size")?,
            hidden,
            intermediate: self.count("ffn_dim")?,
            layers: self.layers()?,
            heads,
            kv_heads: heads,
            head_dim: hidden / heads,
            max_positions: self.count("max_position_embeddings")?,
            norm_eps: 1e-5,
            rope_theta: 10_000.0,
            rope_scaling: RopeScaling::None,
            tied_embeddings: self.flag("tie_word_embeddings", true)?,
            attention_bias: true,
            mlp_bias: true,
        })
    }

    /// Newer configurations nest the base under `rope_parameters`.
    fn rope_theta(&self) -> Result<f32, ModelError> {
        match self.get("rope_parameters").and_then(|p| p.get("rope_theta")).and_then(Value::as_f64) {
            Some(theta) => Ok(theta as f32),
            None => self.number("rope_theta", 10_000.0),
        }
    }

    fn rope_scaling(&self) -> Result<RopeScaling, ModelError> {
        let name = if self.get("rope_scaling").is_some() { "rope_scaling" } else { "rope_parameters" };
        let Some(scaling) = self.get(name) else { return Ok(RopeScaling::None) };
        let kind = scaling.get("rope_type").or_else(|| scaling.get("type")).and_then(Value::as_str);
        let part = |field: &str| {
            let number = scaling.get(field).and_then(Value::as_f64).filter(|n| *n > 0.0);
            number
                .map(|n| n as f32)
                .ok_or_else(|| self.field_error(&format!("{name}.{field}"), "is missing or not positive"))
        };
        match kind.unwrap_or("default") {
            "default" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor: part("factor")? }),
            "llama3" => Ok(RopeScaling::Llama3 {
                factor: part("factor")?,
                low_freq_factor: part("low_freq_factor")?,
                high_freq_factor: part("high_freq_factor")?,
                original_max_positions: part("original_max_position_embeddings")? as u32,
            }),
            other => Err(self.field_error(
                &format!("{name}.rope_type"),
                format!("`{other}` is not supported; use default, linear or llama3"),
            )),
        }
    }

    fn validate(&self, spec: &ModelSpec) -> Result<(), ModelError> {
        if !spec.heads.is_multiple_of(spec.kv_heads) {
            let problem = format!("{} does not divide num_attention_heads ({})", spec.kv_heads, spec.heads);
            return Err(self.field_error("num_key_value_heads", problem));
        }
        if spec.head_dim == 0 || (spec.family == Family::Llama && !spec.head_dim.is_multiple_of(2)) {
            return Err(
                self.field_error("head_dim", format!("{} is not a positive even width", spec.head_dim))
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec_of(json: &str) -> Result<ModelSpec, ModelError> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), json).unwrap();
        read_spec(folder.path(), None)
    }

    const LLAMA: &str = r#"{"model_type":"llama","hidden_size":64,"intermediate_size":172,"num_hidden_layers":5,
        "num_attention_heads":8,"num_key_value_heads":4,"vocab_size":512,"torch_dtype":"bfloat16" EXTRA}"#;

    #[test]
    fn a_llama_config_is_read_with_hugging_face_defaults() {
        let spec = spec_of(&LLAMA.replace("EXTRA", "")).unwrap();
        assert_eq!((spec.head_dim, spec.kv_heads, spec.max_positions), (8, 4, 2048));
        assert_eq!((spec.dtype, spec.tied_embeddings), (Dtype::Bf16, false));
    }

    /// Returns a folder with a model of two layers. `format` maps the names of its weights to their formats.
    fn folder(config: &str, format: impl Fn(&str) -> safetensors::Dtype) -> tempfile::TempDir {
        let layer = [
            "input_layernorm",
            "post_attention_layernorm",
            "self_attn.q_proj",
            "self_attn.rotary_emb.inv_freq",
        ];
        let layers = (0..2).flat_map(|n| layer.map(|name| format!("model.layers.{n}.{name}.weight")));
        let zeros = [0; 8];
        let view = |name: &str| {
            let dtype = format(name);
            let bytes = &zeros[..dtype.bitsize() / 8];
            safetensors::tensor::TensorView::new(dtype, vec![1], bytes).unwrap()
        };
        let names = layers.chain(["model.embed_tokens.weight".to_owned()]);
        let views: Vec<_> = names.map(|name| (name.clone(), view(&name))).collect();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        let bytes = safetensors::serialize(views, None).unwrap();
        std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
        folder
    }

    #[test]
    fn dtype_falls_back_to_weights() {
        use safetensors::Dtype as Stored;
        let unnamed = LLAMA.replace(r#","torch_dtype":"bfloat16" EXTRA"#, "");
        let null = unnamed.replace(":512", r#":512,"torch_dtype":null,"dtype":"auto""#);
        let named = LLAMA.replace("EXTRA", "");
        let all = |format: Stored| move |_: &str| format;
        // A table in an old checkpoint is not a weight.
        let table = |name: &str| if name.contains("inv_freq") { Stored::F32 } else { Stored::F16 };
        let mixed = |name: &str| if name.contains("norm") { Stored::F32 } else { Stored::BF16 };
        let halves = |name: &str| if name.contains("norm") { Stored::F16 } else { Stored::BF16 };
        let read = |folder: tempfile::TempDir, dtype| read_spec(folder.path(), dtype).unwrap().dtype;
        for config in [&unnamed, &null] {
            assert_eq!(read(folder(config, all(Stored::BF16)), None), Dtype::Bf16);
            assert_eq!(read(folder(config, all(Stored::F16)), Some("Auto")), Dtype::F16);
            assert_eq!(read(folder(config, all(Stored::F32)), None), Dtype::F32);
            assert_eq!(read(folder(config, table), None), Dtype::F16);
            assert_eq!(read(folder(config, mixed), None), Dtype::F32, "the narrowest that holds both");
            assert_eq!(read(folder(config, halves), None), Dtype::F32, "neither holds the other");
            assert_eq!(read(folder(config, all(Stored::BF16)), Some("Float16")), Dtype::F16, "as asked for");
        }
        assert_eq!(read(folder(&named, all(Stored::F32)), None), Dtype::Bf16, "as the file says");
        let absent = folder(&unnamed, all(Stored::F32));
        std::fs::remove_file(absent.path().join("model.safetensors")).unwrap();
        let message = read_spec(absent.path(), None).unwrap_err().to_string();
        assert!(message.contains("model.safetensors: No such file"), "{message}");
    }

    #[test]
    fn llama_3_1_scaling_is_read() {
        let extra = r#","rope_theta":500000.0,"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,
            "high_freq_factor":4.0,"original_max_position_embeddings":8192}"#;
        let spec = spec_of(&LLAMA.replace("EXTRA", extra)).unwrap();
        let RopeScaling::Llama3 { factor, original_max_positions, .. } = spec.rope_scaling else { panic!() };
        assert_eq!((factor, original_max_positions, spec.rope_theta), (8.0, 8192, 500_000.0));
    }

    #[test]
    fn unsupported_field_is_refused_by_name() {
        for (extra, field) in [
            (r#","rope_scaling":{"rope_type":"yarn","factor":2.0}"#, "rope_scaling.rope_type"),
            (r#","hidden_act":"gelu""#, "hidden_act"),
            (r#","quantization_config":{"bits":4}"#, "quantization_config"),
            (r#","num_key_value_heads":3"#, "num_key_value_heads"),
            (r#","vocab_size":-1"#, "vocab_size"),
        ] {
            let json = LLAMA.replace("EXTRA", extra);
            let message = spec_of(&json).unwrap_err().to_string();
            assert!(message.contains("config.json") && message.contains(field), "{message}");
        }
    }

    #[test]
    fn a_model_has_from_2_to_256_layers() {
        let of = |layers: &str| spec_of(&LLAMA.replace("EXTRA", "").replace(":5,", &format!(":{layers},")));
        assert_eq!([of("2").unwrap().layers, of("256").unwrap().layers], [2, 256]);
        assert_eq!(sluice_wire::geometry::MAX_LAYERS, u64::from(MAX_LAYERS), "the operator knows it too");
        for layers in ["1", "257", "65537"] {
            let message = of(layers).unwrap_err().to_string();
            let expected =
                format!("num_hidden_layers: {layers} is not supported; a model may have 2 to 256 layers");
            assert!(message.contains("config.json") && message.contains(&expected), "{message}");
        }
    }

    #[test]
    fn an_unknown_family_is_refused() {
        let message = spec_of(r#"{"model_type":"gpt2"}"#).unwrap_err().to_string();
        assert!(message.contains("model_type: `gpt2` is not supported"), "{message}");
    }
}
