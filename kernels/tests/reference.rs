//! The independent reference: plain loops in f64 over tensors by name, without paging, SIMD or code of the crate.

use sluice_link::model::{Dtype, Family, ModelSpec, RopeScaling};

use crate::checkpoint::Checkpoint;
use crate::memory::rounded;

pub struct Reference<'a> {
    pub spec: &'a ModelSpec,
    pub checkpoint: &'a Checkpoint,
    pub device: Rounding,
}

/// Where a device rounds to the model's format, besides K and V.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// The input of products in bf16.
    Cpu,
    /// The input of products, and queries, in bf16 and f16: tensor cores read nothing else.
    Gpu,
}

pub type Matrix = Vec<Vec<f64>>;

/// K and V of earlier tokens, as the cache of a model with one layer holds them: a row for each token.
#[derive(Default)]
pub struct Past {
    pub keys: Matrix,
    pub values: Matrix,
}

impl Reference<'_> {
    /// Returns the logits after each token.
    pub fn logits(&self, tokens: &[u32]) -> Matrix {
        self.logits_after(&Past::default(), tokens)
    }

    /// Returns the logits after each token, which follows those of `past`.
    pub fn logits_after(&self, past: &Past, tokens: &[u32]) -> Matrix {
        assert!(past.keys.is_empty() || self.spec.layers == 1, "the past is that of one layer");
        let first = past.keys.len();
        let mut stream: Matrix =
            (first..).zip(tokens).map(|(position, token)| self.embedding(*token, position)).collect();
        for layer in 0..usize::from(self.spec.layers) {
            match self.spec.family {
                Family::Llama => self.llama_layer(&format!("model.layers.{layer}"), past, &mut stream),
                Family::Opt => self.opt_layer(&format!("model.decoder.layers.{layer}"), past, &mut stream),
            }
        }
        stream.iter().map(|x| self.head(x)).collect()
    }

    fn row(&self, name: &str, row: usize) -> Vec<f64> {
        let hidden = self.spec.hidden as usize;
        self.checkpoint.values(name)[row * hidden..(row + 1) * hidden].to_vec()
    }

    fn embedding(&self, token: u32, position: usize) -> Vec<f64> {
        match self.spec.family {
            Family::Llama => self.row("model.embed_tokens.weight", token as usize),
            Family::Opt => added(
                &self.row("model.decoder.embed_tokens.weight", token as usize),
                &self.row("model.decoder.embed_positions.weight", position + 2),
            ),
        }
    }

    fn head(&self, x: &[f64]) -> Vec<f64> {
        let (norm, embedding) = match self.spec.family {
            Family::Llama => (self.rms_norm("model.norm", x), "model.embed_tokens.weight"),
            Family::Opt => {
                (self.layer_norm("model.decoder.final_layer_norm", x), "model.decoder.embed_tokens.weight")
            }
        };
        let head = if self.spec.tied_embeddings { embedding } else { "lm_head.weight" };
        let norm = self.narrowed(&norm);
        self.checkpoint.values(head).chunks(x.len()).map(|row| dot(row, &norm)).collect()
    }

    fn llama_layer(&self, name: &str, past: &Past, stream: &mut Matrix) {
        let normed: Matrix =
            stream.iter().map(|x| self.rms_norm(&format!("{name}.input_layernorm"), x)).collect();
        let attended = self.attention(&format!("{name}.self_attn"), "o_proj", past, &normed);
        for (x, attended) in stream.iter_mut().zip(&attended) {
            *x = added(x, attended);
            let normed = self.rms_norm(&format!("{name}.post_attention_layernorm"), x);
            let gate = self.linear(&format!("{name}.mlp.gate_proj"), &normed);
            let up = self.linear(&format!("{name}.mlp.up_proj"), &normed);
            let inner: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            *x = added(x, &self.linear(&format!("{name}.mlp.down_proj"), &inner));
        }
    }

    fn opt_layer(&self, name: &str, past: &Past, stream: &mut Matrix) {
        let normed: Matrix =
            stream.iter().map(|x| self.layer_norm(&format!("{name}.self_attn_layer_norm"), x)).collect();
        let attended = self.attention(&format!("{name}.self_attn"), "out_proj", past, &normed);
        for (x, attended) in stream.iter_mut().zip(&attended) {
            *x = added(x, attended);
            let normed = self.layer_norm(&format!("{name}.final_layer_norm"), x);
            let inner: Vec<f64> =
                self.linear(&format!("{name}.fc1"), &normed).iter().map(|x| x.max(0.0)).collect();
            *x = added(x, &self.linear(&format!("{name}.fc2"), &inner));
        }
    }

    /// Computes causal attention of all tokens after the past; K and V are rounded like in the cache.
    fn attention(&self, name: &str, output: &str, past: &Past, normed: &Matrix) -> Matrix {
        let first = past.keys.len();
        let project = |what: &str| -> Matrix {
            normed.iter().map(|x| self.linear(&format!("{name}.{what}"), x)).collect()
        };
        let (mut queries, mut keys, mut values) = (project("q_proj"), project("k_proj"), project("v_proj"));
        if self.spec.family == Family::Llama {
            (first..).zip(&mut queries).for_each(|(position, q)| self.rotate(q, position));
            (first..).zip(&mut keys).for_each(|(position, k)| self.rotate(k, position));
        }
        for x in keys.iter_mut().chain(&mut values).flatten() {
            *x = rounded(self.spec.dtype, *x);
        }
        if self.device == Rounding::Gpu {
            queries.iter_mut().flatten().for_each(|x| *x = rounded(self.spec.dtype, *x));
        }
        let (keys, values) = ([&past.keys[..], &keys].concat(), [&past.values[..], &values].concat());
        let attend = |token: usize| -> Vec<f64> {
            let heads = 0..self.spec.heads as usize;
            let one = |head| self.head_result(head, &queries[token], &keys[..=first + token], &values);
            self.linear(&format!("{name}.{output}"), &heads.flat_map(one).collect::<Vec<_>>())
        };
        (0..normed.len()).map(attend).collect()
    }

    fn head_result(&self, head: usize, query: &[f64], keys: &[Vec<f64>], values: &Matrix) -> Vec<f64> {
        let dim = self.spec.head_dim as usize;
        let shared = head / (self.spec.heads / self.spec.kv_heads) as usize;
        let of = |row: &[f64], head: usize| row[head * dim..(head + 1) * dim].to_vec();
        let query = of(query, head);
        let scores: Vec<f64> =
            keys.iter().map(|key| dot(&query, &of(key, shared)) / (dim as f64).sqrt()).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let weighted = |d: usize| -> f64 {
            weights.iter().zip(values).map(|(w, value)| w / sum * of(value, shared)[d]).sum()
        };
        (0..dim).map(weighted).collect()
    }

    fn rotate(&self, heads: &mut [f64], position: usize) {
        let dim = self.spec.head_dim as usize;
        for head in heads.chunks_mut(dim) {
            for pair in 0..dim / 2 {
                let angle = position as f64 * self.frequency(pair);
                let (a, b) = (head[pair], head[pair + dim / 2]);
                head[pair] = a * angle.cos() - b * angle.sin();
                head[pair + dim / 2] = b * angle.cos() + a * angle.sin();
            }
        }
    }

    /// Computes Hugging Face's `_compute_llama3_parameters`, case by case.
    fn frequency(&self, pair: usize) -> f64 {
        let plain = f64::from(self.spec.rope_theta).powf(-2.0 * pair as f64 / f64::from(self.spec.head_dim));
        match self.spec.rope_scaling {
            RopeScaling::None => plain,
            RopeScaling::Linear { factor } => plain / f64::from(factor),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
                let (low, high) = (f64::from(low_freq_factor), f64::from(high_freq_factor));
                let original = f64::from(original_max_positions);
                let wavelength = 2.0 * std::f64::consts::PI / plain;
                if wavelength < original / high {
                    plain
                } else if wavelength > original / low {
                    plain / f64::from(factor)
                } else {
                    let smooth = (original / wavelength - low) / (high - low);
                    (1.0 - smooth) * plain / f64::from(factor) + smooth * plain
                }
            }
        }
    }

    /// Returns `x` as a product reads it: a bfloat16 checkpoint multiplies weights with activations in bfloat16.
    fn narrowed(&self, x: &[f64]) -> Vec<f64> {
        if self.spec.dtype == Dtype::Bf16 || self.device == Rounding::Gpu {
            x.iter().map(|x| rounded(self.spec.dtype, *x)).collect()
        } else {
            x.to_vec()
        }
    }

    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let x = &self.narrowed(x);
        let products: Vec<f64> = self
            .checkpoint
            .values(&format!("{name}.weight"))
            .chunks(x.len())
            .map(|row| dot(row, x))
            .collect();
        match self.checkpoint.find(&format!("{name}.bias")) {
            Some(bias) => added(&products, bias),
            None => products,
        }
    }

    fn rms_norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mean_square = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let gain = 1.0 / (mean_square + f64::from(self.spec.norm_eps)).sqrt();
        let weight = self.checkpoint.values(&format!("{name}.weight"));
        x.iter().zip(weight).map(|(x, w)| x * gain * w).collect()
    }

    fn layer_norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        let centred: Vec<f64> = x.iter().map(|x| x - mean).collect();
        let scaled = self.rms_norm(name, &centred);
        added(&scaled, self.checkpoint.values(&format!("{name}.bias")))
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn added(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}
