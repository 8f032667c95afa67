//! Random weights, streamed into safetensors files (header length, JSON header, then the tensors one after another).

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use half::{bf16, f16};
use rayon::prelude::*;
use serde_json::{Map, Value, json};
use sluice_common::hash::fnv1a;
use sluice_common::random::GOLDEN_GAMMA;
use sluice_link::model::{Dtype, Family};
use sluice_link::slab::{Tensor, TensorSpan, slab_layout};

use super::random_model::{GenerateError, RandomModel, in_file, write_json};
use super::tensor_name;
use crate::sampling::random_bits;

/// Values generated at a time.
const BATCH_VALUES: usize = 1 << 20;

/// One tensor of the checkpoint.
struct TensorEntry {
    name: String,
    place: TensorSpan,
}

pub(super) fn write(model: &RandomModel, folder: &Path) -> Result<(), GenerateError> {
    let entries = entries(model);
    if model.shards == 1 {
        return write_shard(model, &folder.join("model.safetensors"), &entries);
    }
    let mut files = Map::new();
    for (number, shard) in split(&entries, model.shards).iter().enumerate() {
        let file = format!("model-{:05}-of-{:05}.safetensors", number + 1, model.shards);
        write_shard(model, &folder.join(&file), shard)?;
        files.extend(shard.iter().map(|entry| (entry.name.clone(), json!(file))));
    }
    let total: u64 = entries.iter().map(|entry| entry.place.bytes).sum();
    let index = json!({ "metadata": { "total_size": total }, "weight_map": files });
    write_json(folder, "model.safetensors.index.json", &index)
}

fn entries(model: &RandomModel) -> Vec<TensorEntry> {
    let layout = slab_layout(&model.spec);
    let entry = |layer, place: &TensorSpan| {
        let name = tensor_name(model.spec.family, place.tensor, layer);
        TensorEntry { name, place: *place }
    };
    let global = layout.global.tensors.iter().map(|place| entry(0, place));
    let layers = (0..usize::from(model.spec.layers))
        .flat_map(|layer| layout.layer.tensors.iter().map(move |place| entry(layer, place)));
    global.chain(layers).collect()
}

/// Splits the entries into `shards` runs whose lengths differ by at most one. With more shards than entries, some runs
/// are empty.
fn split(entries: &[TensorEntry], shards: usize) -> Vec<&[TensorEntry]> {
    let bound = |shard: usize| entries.len() * shard / shards;
    (0..shards).map(|shard| &entries[bound(shard)..bound(shard + 1)]).collect()
}

fn write_shard(model: &RandomModel, path: &Path, entries: &[TensorEntry]) -> Result<(), GenerateError> {
    let write = || -> io::Result<()> {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
        let header = header(model, entries);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        for entry in entries {
            write_tensor(model, entry, &mut file)?;
        }
        file.flush()
    };
    in_file(path, write())
}

/// Returns the JSON header, padded so that the data start at a multiple of 64.
fn header(model: &RandomModel, entries: &[TensorEntry]) -> String {
    let dtype = match model.spec.dtype {
        Dtype::F32 => "F32",
        Dtype::F16 => "F16",
        Dtype::Bf16 => "BF16",
    };
    let mut header = Map::from_iter([("__metadata__".to_owned(), json!({ "format": "pt" }))]);
    let mut begin = 0;
    for entry in entries {
        let TensorSpan { rows, columns, bytes, .. } = entry.place;
        let shape = if is_vector(entry.place.tensor) { json!([columns]) } else { json!([rows, columns]) };
        let offsets = [begin, begin + bytes];
        header.insert(entry.name.clone(), json!({ "dtype": dtype, "shape": shape, "data_offsets": offsets }));
        begin += bytes;
    }
    let text = Value::Object(header).to_string();
    let padded = (8 + text.len()).next_multiple_of(64) - 8;
    format!("{text:padded$}")
}

fn is_vector(tensor: Tensor) -> bool {
    is_bias(tensor) || matches!(tensor, Tensor::FinalNorm | Tensor::AttentionNorm | Tensor::MlpNorm)
}

fn is_bias(tensor: Tensor) -> bool {
    use Tensor::*;
    matches!(
        tensor,
        FinalNormBias
            | AttentionNormBias
            | QueryBias
            | KeyBias
            | ValueBias
            | OutputBias
            | MlpNormBias
            | GateBias
            | UpBias
            | DownBias
    )
}

/// Returns the mean and deviation of a tensor's values.
fn mean_and_deviation(family: Family, place: &TensorSpan) -> (f32, f32) {
    let per_input = 1.0 / (place.columns as f32).sqrt();
    match place.tensor {
        Tensor::FinalNorm | Tensor::AttentionNorm | Tensor::MlpNorm => (1.0, 0.1),
        tensor if is_bias(tensor) => (0.0, 0.1),
        // Scores have a deviation of about 4, so attention is peaked and earlier tokens matter.
        Tensor::Query | Tensor::Key => (0.0, 2.0 * per_input),
        // Small compared to the layers' outputs; otherwise a tied head would repeat the last token.
        Tensor::Embedding if family == Family::Llama => (0.0, 0.25 * per_input.max(0.02)),
        Tensor::Embedding | Tensor::Positions => (0.0, 0.5 * per_input),
        _ => (0.0, per_input),
    }
}

fn write_tensor(model: &RandomModel, entry: &TensorEntry, to: &mut impl Write) -> io::Result<()> {
    let stream = fnv1a(entry.name.bytes()) ^ model.seed.wrapping_mul(GOLDEN_GAMMA);
    let (mean, deviation) = mean_and_deviation(model.spec.family, &entry.place);
    let count = entry.place.rows as usize * entry.place.columns as usize;
    let width = model.spec.dtype.bytes();
    let mut piece = vec![0; BATCH_VALUES.min(count) * width];
    for first in (0..count).step_by(BATCH_VALUES) {
        let bytes = &mut piece[..BATCH_VALUES.min(count - first) * width];
        bytes.par_chunks_exact_mut(width).enumerate().for_each(|(index, bytes)| {
            let value = mean + deviation * normal_sample(random_bits(stream, (first + index) as u64));
            store(model.spec.dtype, value, bytes);
        });
        to.write_all(bytes)?;
    }
    Ok(())
}

fn store(dtype: Dtype, value: f32, to: &mut [u8]) {
    match dtype {
        Dtype::F32 => to.copy_from_slice(&value.to_le_bytes()),
        Dtype::F16 => to.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
        Dtype::Bf16 => to.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
    }
}

/// Returns a nearly normal sample of mean 0 and deviation 1, as the sum of four uniform numbers.
fn normal_sample(bits: u64) -> f32 {
    let sum: u64 = (0..4).map(|part| (bits >> (16 * part)) & 0xffff).sum();
    // Four uniform numbers in 0 ..= 65535 have mean 131070 and deviation 65536 / sqrt(3).
    (sum as f32 - 131_070.0) * (1.732_050_8 / 65_536.0)
}
