//! candle's Llama, driven as its examples drive it: eager tensors, KV grown by concatenation.

use std::fs;
use std::path::Path;

use anyhow::Context;
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::llama::{Cache, Config, Llama, LlamaConfig};

/// A loaded model and its caches.
pub struct Candle {
    model: Llama,
    /// Holds no KV, but the mask of the prompt, so that no repetition pays for building it.
    empty: Cache,
    /// After the last prefill.
    filled: Cache,
}

impl Candle {
    /// Loads `config.json` and `model.safetensors`; `prompt` is the length that prefills will have.
    pub fn load(folder: &Path, prompt: usize) -> anyhow::Result<Candle> {
        let config = fs::read(folder.join("config.json")).context("config.json")?;
        let config: Config = serde_json::from_slice::<LlamaConfig>(&config)?.into_config(false);
        let weights = fs::read(folder.join("model.safetensors")).context("model.safetensors")?;
        let weights = VarBuilder::from_buffered_safetensors(weights, DType::F32, &Device::Cpu)?;
        let model = Llama::load(weights, &config)?;
        let mut empty = Cache::new(false, DType::F32, &config, &Device::Cpu)?;
        model.forward(&Tensor::zeros((1, prompt), DType::U32, &Device::Cpu)?, 0, &mut empty)?;
        empty.use_kv_cache = true;
        Ok(Candle { model, filled: empty.clone(), empty })
    }

    /// Logits of the last of `tokens`, which begin a new sequence.
    pub fn prefill(&mut self, tokens: &[u32]) -> anyhow::Result<Tensor> {
        let mut cache = self.empty.clone();
        let logits = self.model.forward(&input(tokens)?, 0, &mut cache)?;
        self.filled = cache;
        Ok(logits)
    }

    /// Feeds `tokens` one by one after the last prefill of `context` tokens; `seen` gets each one's logits.
    pub fn decode(
        &mut self,
        tokens: &[u32],
        context: usize,
        mut seen: impl FnMut(&Tensor),
    ) -> anyhow::Result<()> {
        let mut cache = self.filled.clone();
        for (index, token) in tokens.iter().enumerate() {
            seen(&self.model.forward(&input(&[*token])?, context + index, &mut cache)?);
        }
        Ok(())
    }
}

fn input(tokens: &[u32]) -> candle_core::Result<Tensor> {
    Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)
}
