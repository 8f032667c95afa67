//! How much memory a model's weights will take, before anybody has loaded it.

use std::path::Path;

/// Bytes of the weights in `folder` once they are in memory as `dtype` (`None` = as stored). 0 for a folder that cannot
/// be read: its sidecar says so in better words.
pub fn bytes(folder: &Path, dtype: Option<&str>) -> u64 {
    let stored = files(folder);
    let wanted = dtype.and_then(bytes_per_weight);
    match wanted.zip(stored_as(folder)) {
        Some((wanted, stored_as)) => stored / stored_as * wanted,
        None => stored,
    }
}

/// Sizes of the folder's safetensors files together.
fn files(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let files = entries.filter_map(Result::ok).map(|entry| entry.path());
    let weights = files.filter(|path| path.extension().is_some_and(|end| end == "safetensors"));
    // Not of the entry: in a cache of Hugging Face each is a link.
    weights.filter_map(|path| std::fs::metadata(path).ok()).map(|file| file.len()).sum()
}

/// Bytes of a weight as the files have it.
fn stored_as(folder: &Path) -> Option<u64> {
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("config.json")).ok()?).ok()?;
    let named = config.get("torch_dtype").or_else(|| config.get("dtype"))?;
    bytes_per_weight(named.as_str()?)
}

fn bytes_per_weight(dtype: &str) -> Option<u64> {
    match dtype.to_ascii_lowercase().as_str() {
        "float32" => Some(4),
        "float16" | "bfloat16" => Some(2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(config: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in [("a.safetensors", 1000), ("b.safetensors", 24), ("tokenizer.json", 9)] {
            std::fs::write(folder.path().join(name), vec![0; bytes]).unwrap();
        }
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        folder
    }

    #[test]
    fn weights_are_the_safetensors_files() {
        let model = model("{}");
        assert_eq!(bytes(model.path(), None), 1024);
        assert_eq!(bytes(&model.path().join("missing"), None), 0);
    }

    #[test]
    fn another_number_format_than_the_stored_one_changes_them() {
        for (stored, wanted, expected) in [
            ("float32", "BFloat16", 512),
            ("bfloat16", "Float32", 2048),
            ("float16", "BFloat16", 1024),
            ("int8", "Float32", 1024),
        ] {
            for key in ["torch_dtype", "dtype"] {
                let model = model(&format!("{{\"{key}\": \"{stored}\"}}"));
                assert_eq!(bytes(model.path(), Some(wanted)), expected, "{key}: {stored} as {wanted}");
            }
        }
    }
}
