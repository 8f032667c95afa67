//! Estimates the memory of a model's weights before it is loaded.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::Metadata;

/// Longest header that is read, the limit of the library that reads whole files.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Returns the bytes of the weights in `folder` once loaded as `dtype` (`None` = as configured, or as
/// stored). Returns 0 for an unreadable folder, and counts a damaged file by its length: its sidecar reports a
/// better error.
pub fn weights_bytes(folder: &Path, dtype: Option<&str>) -> u64 {
    let files: Vec<_> = files(folder).into_iter().map(|file| stored_weights(&file).ok_or(file)).collect();
    let wanted =
        dtype.and_then(bytes_per_weight).or_else(|| configured_bytes_per_weight(folder)).or_else(|| {
            // The rule of the sidecar: the narrowest format that holds them all.
            let mut formats = files.iter().flatten().flatten().map(|(dtype, _)| *dtype);
            let first = formats.next()?;
            if formats.all(|other| other == first) { float_bytes(first) } else { float_bytes(Dtype::F32) }
        });
    let sizes = files.into_iter().map(|file| match file {
        Ok(tensors) => {
            tensors.into_iter().map(|(dtype, count)| count * wanted.or(float_bytes(dtype)).unwrap_or(0)).sum()
        }
        // Follows links, because in a cache of Hugging Face each entry is a link.
        Err(damaged) => std::fs::metadata(damaged).map_or(0, |file| file.len()),
    });
    sizes.sum()
}

/// Lists the folder's safetensors files.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let files = entries.filter_map(Result::ok).map(|entry| entry.path());
    files.filter(|path| path.extension().is_some_and(|end| end == "safetensors")).collect()
}

/// Reads the format and number of weights of each tensor in `file`, from the header alone.
fn stored_weights(file: &Path) -> Option<Vec<(Dtype, u64)>> {
    let mut file = File::open(file).ok()?;
    let mut length = [0; 8];
    file.read_exact(&mut length).ok()?;
    let length = Some(u64::from_le_bytes(length)).filter(|length| *length <= MAX_HEADER_BYTES)?;
    let mut header = Vec::new();
    file.take(length).read_to_end(&mut header).ok()?;
    let metadata: Metadata = serde_json::from_slice(&header).ok()?;
    let tensors = metadata.tensors();
    let floats = tensors.values().filter(|tensor| float_bytes(tensor.dtype).is_some());
    Some(floats.map(|tensor| (tensor.dtype, tensor.shape.iter().product::<usize>() as u64)).collect())
}

/// Returns the bytes per weight that the configuration sets.
fn configured_bytes_per_weight(folder: &Path) -> Option<u64> {
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("config.json")).ok()?).ok()?;
    let named = ["torch_dtype", "dtype"].into_iter().find_map(|key| config.get(key)?.as_str());
    bytes_per_weight(named?)
}

fn bytes_per_weight(dtype: &str) -> Option<u64> {
    match dtype.to_ascii_lowercase().as_str() {
        "float32" => Some(4),
        "float16" | "bfloat16" => Some(2),
        _ => None,
    }
}

/// Returns the bytes per weight of `dtype`, if it is a supported format.
fn float_bytes(dtype: Dtype) -> Option<u64> {
    match dtype {
        Dtype::F32 => Some(4),
        Dtype::F16 | Dtype::BF16 => Some(2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::TensorView;

    use super::*;

    /// Returns a folder of files, each with one tensor of this number of weights.
    fn model(config: &str, files: &[(&str, Dtype, usize)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, dtype, count) in files {
            let zeros = vec![0; count * dtype.bitsize() / 8];
            let tensor = TensorView::new(*dtype, vec![*count], &zeros).unwrap();
            let file = safetensors::serialize([("weight", tensor)], None).unwrap();
            std::fs::write(folder.path().join(name), file).unwrap();
        }
        std::fs::write(folder.path().join("tokenizer.json"), [0; 9]).unwrap();
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        folder
    }

    #[test]
    fn weights_are_the_tensors_of_the_safetensors_files() {
        let files = [("a.safetensors", Dtype::BF16, 500), ("b.safetensors", Dtype::BF16, 12)];
        let model = model("{}", &files);
        assert_eq!(weights_bytes(model.path(), None), 1024, "as in the files");
        assert_eq!(weights_bytes(&model.path().join("missing"), None), 0);
        std::fs::write(model.path().join("c.safetensors"), [0xff; 100]).unwrap();
        assert_eq!(weights_bytes(model.path(), None), 1124, "a damaged file has its length");
    }

    #[test]
    fn configured_dtype_sets_weight_size() {
        for (named, stored, wanted, expected) in [
            ("float32", Dtype::F32, Some("BFloat16"), 1024),
            ("bfloat16", Dtype::BF16, Some("Float32"), 2048),
            ("float16", Dtype::F16, Some("BFloat16"), 1024),
            ("float32", Dtype::BF16, None, 2048),
            ("bfloat16", Dtype::F32, Some("Auto"), 1024),
            ("int8", Dtype::F32, None, 2048),
            ("auto", Dtype::F16, None, 1024),
        ] {
            for key in ["torch_dtype", "dtype"] {
                let config = format!("{{\"{key}\": \"{named}\"}}");
                let model = model(&config, &[("a.safetensors", stored, 512)]);
                assert_eq!(
                    weights_bytes(model.path(), wanted),
                    expected,
                    "{key}: {named}, {stored:?} as {wanted:?}"
                );
            }
        }
    }

    #[test]
    fn mixed_formats_use_widest_without_configured_dtype() {
        let files = [("a.safetensors", Dtype::BF16, 500), ("b.safetensors", Dtype::F32, 12)];
        assert_eq!(weights_bytes(model("{}", &files).path(), None), 2048);
        let other = [("a.safetensors", Dtype::BF16, 500), ("b.safetensors", Dtype::I64, 12)];
        assert_eq!(weights_bytes(model("{}", &other).path(), None), 1000, "what is no weight is not loaded");
    }
}
