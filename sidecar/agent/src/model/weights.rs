//! Copies safetensors to slabs: finds each tensor by its Hugging Face name and writes it to its place in the master
//! copy.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::{Dtype as Stored, SafeTensors};
use sluice_link::model::{Dtype, Family, ModelSpec};
use sluice_link::slab::{Slab, SlabLayout, Tensor, TensorSpan, slab_layout};

use super::error::{ModelError, read_json};

/// Mapped weight files of a folder.
#[derive(Debug)]
pub struct Weights {
    folder: PathBuf,
    files: Vec<(PathBuf, Mmap)>,
    /// Tensor name to index into `files`.
    index: BTreeMap<String, usize>,
}

impl Weights {
    /// Maps `model.safetensors`, or every shard that `model.safetensors.index.json` names.
    ///
    /// # Errors
    /// Names the file that is absent or malformed.
    pub fn open(folder: &Path) -> Result<Self, ModelError> {
        let mut weights = Weights { folder: folder.to_owned(), files: Vec::new(), index: BTreeMap::new() };
        for path in shard_paths(folder)? {
            weights.add(path)?;
        }
        Ok(weights)
    }

    fn add(&mut self, path: PathBuf) -> Result<(), ModelError> {
        let io = |source| ModelError::Io { path: path.clone(), source };
        let file = File::open(&path).map_err(io)?;
        // SAFETY: the map is read-only and lives as long as `self`. A mapped file that shrinks would raise SIGBUS. No
        // process writes a model folder's files in place (a download renames each file when it is complete), and
        // `Weights` is dropped once the slabs are filled.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        let names = parse(&path, &map)?.names().into_iter().map(str::to_owned).collect::<Vec<_>>();
        let at = self.files.len();
        self.index.extend(names.into_iter().map(|name| (name, at)));
        self.files.push((path, map));
        Ok(())
    }

    /// Copies the slab of embeddings, head and final norm to `out`.
    ///
    /// # Errors
    /// Names the tensor that is missing or has another shape.
    pub fn fill_global(
        &self,
        spec: &ModelSpec,
        layout: &SlabLayout,
        out: &mut [u8],
    ) -> Result<(), ModelError> {
        self.fill(spec, &layout.global, None, out)
    }

    /// Copies the slab of `layer` to `out`.
    ///
    /// # Errors
    /// Names the tensor that is missing or has another shape.
    pub fn fill_layer(
        &self,
        spec: &ModelSpec,
        layout: &SlabLayout,
        layer: u16,
        out: &mut [u8],
    ) -> Result<(), ModelError> {
        self.fill(spec, &layout.layer, Some(layer), out)
    }

    fn fill(
        &self,
        spec: &ModelSpec,
        slab: &Slab,
        layer: Option<u16>,
        out: &mut [u8],
    ) -> Result<(), ModelError> {
        for place in &slab.tensors {
            let range = place.offset_bytes as usize..(place.offset_bytes + place.bytes) as usize;
            self.copy(spec, place, layer, &mut out[range])?;
        }
        Ok(())
    }

    fn copy(
        &self,
        spec: &ModelSpec,
        place: &TensorSpan,
        layer: Option<u16>,
        out: &mut [u8],
    ) -> Result<(), ModelError> {
        let (name, at) = self.find(spec.family, place.tensor, layer)?;
        let (path, map) = &self.files[at];
        let file = parse(path, map)?;
        let wrong = |problem: String| ModelError::tensor(path, &name, problem);
        let view = file.tensor(&name).map_err(|e| wrong(e.to_string()))?;
        check_tensor(place, view.shape(), view.dtype()).map_err(wrong)?;
        convert(view.dtype(), spec.dtype, view.data(), out).ok_or_else(|| wrong(unsupported(view.dtype())))
    }

    fn find(
        &self,
        family: Family,
        tensor: Tensor,
        layer: Option<u16>,
    ) -> Result<(String, usize), ModelError> {
        let of = |name: &str| self.index.get(name).copied();
        find_first(&self.folder, tensor_names(family, tensor, layer), of)
    }
}

/// Returns the first of `names` for which `of` has a value, and the value.
fn find_first<T>(
    folder: &Path,
    names: Vec<String>,
    of: impl Fn(&str) -> Option<T>,
) -> Result<(String, T), ModelError> {
    let found = names.iter().find_map(|name| of(name).map(|known| (name.clone(), known)));
    found.ok_or_else(|| ModelError::tensor(folder, &names[0], "is missing from the weight files"))
}

/// Checks that a stored tensor has the configured shape, in a supported format.
fn check_tensor(place: &TensorSpan, shape: &[usize], dtype: Stored) -> Result<(), String> {
    let wanted: &[usize] = &match place.rows {
        1 => vec![place.columns as usize],
        rows => vec![rows as usize, place.columns as usize],
    };
    if shape != wanted {
        return Err(format!("has shape {shape:?}, but config.json implies {wanted:?}"));
    }
    let read = matches!(dtype, Stored::F32 | Stored::F16 | Stored::BF16);
    if read { Ok(()) } else { Err(unsupported(dtype)) }
}

fn unsupported(dtype: Stored) -> String {
    format!("format {dtype:?} is not supported (F32, F16, BF16)")
}

/// A tensor as described by the header of its file.
#[derive(Clone, Debug)]
pub struct TensorHeader {
    /// File of the tensor.
    pub path: PathBuf,
    /// Shape of the tensor.
    pub shape: Vec<usize>,
    /// Format of the tensor.
    pub dtype: Stored,
}

/// Returns every tensor of the weights in `folder` by name.
///
/// # Errors
/// Names the file that is absent or malformed.
pub fn read_headers(folder: &Path) -> Result<BTreeMap<String, TensorHeader>, ModelError> {
    let weights = Weights::open(folder)?;
    let mut headers = BTreeMap::new();
    for (path, map) in &weights.files {
        for (name, tensor) in parse(path, map)?.iter() {
            let (shape, dtype) = (tensor.shape().to_vec(), tensor.dtype());
            headers.insert(name.to_owned(), TensorHeader { path: path.clone(), shape, dtype });
        }
    }
    Ok(headers)
}

/// Returns the number format of the weights of `spec`: the narrowest that holds them all, as in vLLM. Other tensors in
/// the files, such as tables of old checkpoints, do not count. `None` if no weight has a supported format.
pub fn stored_dtype(spec: &ModelSpec, headers: &BTreeMap<String, TensorHeader>) -> Option<Dtype> {
    let stored = tensor_spans(spec).filter_map(|(layer, place)| {
        let names = tensor_names(spec.family, place.tensor, layer);
        match names.iter().find_map(|name| headers.get(name))?.dtype {
            Stored::F32 => Some(Dtype::F32),
            Stored::F16 => Some(Dtype::F16),
            Stored::BF16 => Some(Dtype::Bf16),
            _ => None,
        }
    });
    stored.reduce(|one, other| if one == other { one } else { Dtype::F32 })
}

/// Returns every tensor of a model with its layer.
fn tensor_spans(spec: &ModelSpec) -> impl Iterator<Item = (Option<u16>, TensorSpan)> + use<> {
    let (layout, layers) = (slab_layout(spec), spec.layers);
    let of_layers = (0..layers).flat_map(move |layer| {
        layout.layer.tensors.clone().into_iter().map(move |place| (Some(layer), place))
    });
    layout.global.tensors.into_iter().map(|place| (None, place)).chain(of_layers)
}

/// Checks the headers against the weights of `spec` without reading the weights. `folder` names the location of all
/// files.
///
/// # Errors
/// Names the tensor that is missing or has another shape or format.
pub fn check_headers(
    folder: &Path,
    spec: &ModelSpec,
    headers: &BTreeMap<String, TensorHeader>,
) -> Result<(), ModelError> {
    for (layer, place) in tensor_spans(spec) {
        let known = |name: &str| headers.get(name);
        let (name, header) = find_first(folder, tensor_names(spec.family, place.tensor, layer), known)?;
        check_tensor(&place, &header.shape, header.dtype)
            .map_err(|problem| ModelError::tensor(&header.path, &name, problem))?;
    }
    Ok(())
}

/// Name of the file that maps weights to files.
pub const INDEX_FILE: &str = "model.safetensors.index.json";
/// Name of the weights file if there is no [`INDEX_FILE`].
pub const SINGLE_FILE: &str = "model.safetensors";

/// Content of [`INDEX_FILE`].
#[derive(Debug, serde::Deserialize)]
pub struct ShardIndex {
    weight_map: BTreeMap<String, String>,
}

impl ShardIndex {
    /// Returns the names of the files, each once. `path` is that of the index.
    ///
    /// # Errors
    /// Names a file outside the model's folder.
    pub fn shards(self, path: &Path) -> Result<BTreeSet<String>, ModelError> {
        let names: BTreeSet<_> = self.weight_map.into_values().collect();
        // "", "." and ".." have no name of a file, "a/" and "a/b" have another.
        match names.iter().find(|name| Path::new(name).file_name() != Some(OsStr::new(name))) {
            Some(bad) => {
                Err(ModelError::field(path, "weight_map", format!("`{bad}` is outside the model folder")))
            }
            None => Ok(names),
        }
    }
}

/// Returns the path of [`SINGLE_FILE`], or of the shards in the index.
fn shard_paths(folder: &Path) -> Result<Vec<PathBuf>, ModelError> {
    let index = folder.join(INDEX_FILE);
    if !index.exists() {
        return Ok(vec![folder.join(SINGLE_FILE)]);
    }
    let names = read_json::<ShardIndex>(&index)?.shards(&index)?;
    Ok(names.into_iter().map(|name| folder.join(name)).collect())
}

/// Parses a whole file.
///
/// # Errors
/// Names the file and what is wrong with it.
pub(crate) fn parse<'a>(path: &Path, bytes: &'a [u8]) -> Result<SafeTensors<'a>, ModelError> {
    SafeTensors::deserialize(bytes)
        .map_err(|e| ModelError::Safetensors { path: path.to_owned(), problem: e.to_string() })
}

/// Returns the possible names of a tensor, the usual one first.
fn tensor_names(family: Family, tensor: Tensor, layer: Option<u16>) -> Vec<String> {
    if tensor == Tensor::Head {
        return vec!["lm_head.weight".into()];
    }
    let stem = match family {
        Family::Llama => llama_name(tensor),
        Family::Opt => opt_name(tensor),
    };
    let root = match family {
        Family::Llama => "model",
        Family::Opt => "model.decoder",
    };
    match layer {
        Some(layer) => {
            vec![format!("{root}.layers.{layer}.{stem}"), format!("decoder.layers.{layer}.{stem}")]
        }
        None => vec![format!("{root}.{stem}"), format!("decoder.{stem}")],
    }
}

fn llama_name(tensor: Tensor) -> &'static str {
    match tensor {
        Tensor::Embedding => "embed_tokens.weight",
        Tensor::FinalNorm => "norm.weight",
        Tensor::AttentionNorm => "input_layernorm.weight",
        Tensor::MlpNorm => "post_attention_layernorm.weight",
        Tensor::Query => "self_attn.q_proj.weight",
        Tensor::QueryBias => "self_attn.q_proj.bias",
        Tensor::Key => "self_attn.k_proj.weight",
        Tensor::KeyBias => "self_attn.k_proj.bias",
        Tensor::Value => "self_attn.v_proj.weight",
        Tensor::ValueBias => "self_attn.v_proj.bias",
        Tensor::Output => "self_attn.o_proj.weight",
        Tensor::OutputBias => "self_attn.o_proj.bias",
        Tensor::Gate => "mlp.gate_proj.weight",
        Tensor::GateBias => "mlp.gate_proj.bias",
        Tensor::Up => "mlp.up_proj.weight",
        Tensor::UpBias => "mlp.up_proj.bias",
        Tensor::Down => "mlp.down_proj.weight",
        Tensor::DownBias => "mlp.down_proj.bias",
        other => unreachable!("Llama's layout has no {other:?}"),
    }
}

fn opt_name(tensor: Tensor) -> &'static str {
    match tensor {
        Tensor::Embedding => "embed_tokens.weight",
        Tensor::Positions => "embed_positions.weight",
        Tensor::FinalNorm => "final_layer_norm.weight",
        Tensor::FinalNormBias => "final_layer_norm.bias",
        Tensor::AttentionNorm => "self_attn_layer_norm.weight",
        Tensor::AttentionNormBias => "self_attn_layer_norm.bias",
        Tensor::MlpNorm => "final_layer_norm.weight",
        Tensor::MlpNormBias => "final_layer_norm.bias",
        Tensor::Output => "self_attn.out_proj.weight",
        Tensor::OutputBias => "self_attn.out_proj.bias",
        Tensor::Up => "fc1.weight",
        Tensor::UpBias => "fc1.bias",
        Tensor::Down => "fc2.weight",
        Tensor::DownBias => "fc2.bias",
        attention => llama_name(attention),
    }
}

/// Copies values, widened or rounded to the format in memory (to nearest, ties to even). `None` for an unsupported
/// format.
pub(crate) fn convert(from: Stored, to: Dtype, data: &[u8], out: &mut [u8]) -> Option<()> {
    match (from, to) {
        (Stored::F32, Dtype::F32) | (Stored::F16, Dtype::F16) | (Stored::BF16, Dtype::Bf16) => {
            out.copy_from_slice(data);
        }
        (Stored::F32, to) => narrow(data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)), to, out),
        (Stored::F16, to) => {
            narrow(data.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()), to, out)
        }
        (Stored::BF16, to) => {
            narrow(data.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()), to, out)
        }
        _ => return None,
    }
    Some(())
}

fn narrow(values: impl Iterator<Item = f32>, to: Dtype, out: &mut [u8]) {
    match to {
        Dtype::F32 => values.zip(out.as_chunks_mut().0).for_each(|(v, out)| *out = v.to_le_bytes()),
        Dtype::F16 => {
            values.zip(out.as_chunks_mut().0).for_each(|(v, out)| *out = f16::from_f32(v).to_le_bytes())
        }
        Dtype::Bf16 => {
            values.zip(out.as_chunks_mut().0).for_each(|(v, out)| *out = bf16::from_f32(v).to_le_bytes())
        }
    }
}
