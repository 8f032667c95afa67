//! Reads the headers of weight files: name, shape and format of each tensor.

use std::collections::BTreeMap;
use std::path::Path;

use futures_util::{StreamExt, TryStreamExt, stream};
use safetensors::tensor::Metadata;

use super::error::InspectError;
use super::model_files::ModelFiles;
use crate::model::ModelError;
use crate::model::weights::{INDEX_FILE, SINGLE_FILE, ShardIndex, TensorHeader};

/// Bytes before a header that hold its length.
const LENGTH_BYTES: u64 = 8;
/// Maximum size of a header, as in the library that reads whole files.
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Maximum number of concurrent header reads.
const MAX_CONCURRENT_READS: usize = 4;

/// Returns every tensor of the weights by name. Reads an index of at most `most_json` bytes.
pub async fn headers(
    files: &ModelFiles,
    most_json: u64,
) -> Result<BTreeMap<String, TensorHeader>, InspectError> {
    let names = shards(files, most_json).await?;
    let each = stream::iter(names).map(|name| async move { header(files, &name).await });
    let all: Vec<_> = each.buffered(MAX_CONCURRENT_READS).try_collect().await?;
    Ok(all.into_iter().flatten().collect())
}

async fn shards(files: &ModelFiles, most_json: u64) -> Result<Vec<String>, InspectError> {
    if !files.contains(INDEX_FILE) {
        return Ok(vec![SINGLE_FILE.to_owned()]);
    }
    let index: ShardIndex = files.json(INDEX_FILE, most_json).await?;
    Ok(index.shards(&files.path(INDEX_FILE))?.into_iter().collect())
}

async fn header(files: &ModelFiles, name: &str) -> Result<Vec<(String, TensorHeader)>, InspectError> {
    let path = files.path(name);
    let whole = files.bytes(name)?;
    let start = files.range(name, 0, LENGTH_BYTES.min(whole)).await?;
    let length = header_bytes(&path, &start, whole)?;
    let text = files.range(name, LENGTH_BYTES, length).await?;
    Ok(tensors(&path, &text, whole - LENGTH_BYTES - length)?)
}

/// Returns the length of the header, of the first bytes of a file of `whole` bytes.
fn header_bytes(path: &Path, start: &[u8], whole: u64) -> Result<u64, ModelError> {
    let Ok(length) = start.try_into().map(u64::from_le_bytes) else {
        return Err(damaged(path, format!("the file has {whole} bytes, too few for a header")));
    };
    if length > MAX_HEADER_BYTES.min(whole - LENGTH_BYTES) {
        return Err(damaged(path, format!("the header has {length} bytes, but the file has {whole}")));
    }
    Ok(length)
}

/// Reads the header of a whole file as [`headers`] does, for [`crate::fuzz`].
///
/// # Errors
/// Names the file and what is wrong with it.
pub(crate) fn parse_header(path: &Path, file: &[u8]) -> Result<Vec<(String, TensorHeader)>, ModelError> {
    let start = file.get(..LENGTH_BYTES as usize).unwrap_or(file);
    let length = header_bytes(path, start, file.len() as u64)?;
    let (text, data) = file[LENGTH_BYTES as usize..].split_at(length as usize);
    tensors(path, text, data.len() as u64)
}

/// Parses a header. The file must have exactly the `data` bytes after it that the header describes.
fn tensors(path: &Path, text: &[u8], data: u64) -> Result<Vec<(String, TensorHeader)>, ModelError> {
    let unreadable =
        |error: &dyn std::fmt::Display| damaged(path, format!("the header is not valid: {error}"));
    // serde_json reads bytes too, but passes over those of unknown fields unchecked.
    let text = std::str::from_utf8(text).map_err(|error| unreadable(&error))?;
    let metadata = serde_json::from_str::<Metadata>(text).map_err(|error| unreadable(&error))?;
    let stated = metadata.data_len() as u64;
    if stated != data {
        return Err(damaged(
            path,
            format!("the header describes {stated} bytes of data, but the file has {data}"),
        ));
    }
    let one = |(name, info): (String, &safetensors::tensor::TensorInfo)| {
        (name, TensorHeader { path: path.to_owned(), shape: info.shape.clone(), dtype: info.dtype })
    };
    Ok(metadata.tensors().into_iter().map(one).collect())
}

fn damaged(path: &Path, problem: String) -> ModelError {
    ModelError::Safetensors { path: path.to_owned(), problem }
}
