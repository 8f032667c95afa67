//! Sources of models.

use reqwest::{Client, RequestBuilder};
use serde::{Deserialize, Serialize};

use super::{Bucket, DownloadError, ExpectedDigest, Hub};

/// A file of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFile {
    /// Name in the model's folder.
    pub name: String,
    /// Length, bytes.
    pub bytes: u64,
    /// Expected digest.
    pub expected: ExpectedDigest,
    /// Tag of this version of the object.
    pub tag: Option<String>,
}

/// Source of a model.
#[derive(Clone, Debug)]
pub enum Source {
    /// A repository of a Hugging Face hub.
    Hub(Hub),
    /// Objects of a bucket.
    Bucket(Bucket),
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Hub(hub) => hub.fmt(f),
            Source::Bucket(bucket) => bucket.fmt(f),
        }
    }
}

impl Source {
    /// Returns a string that identifies the source, without its credentials.
    pub(crate) fn identity(&self) -> String {
        match self {
            Source::Hub(hub) => hub.to_string(),
            Source::Bucket(bucket) => bucket.identity(),
        }
    }

    /// Returns the source pinned to its current revision, so that a later change of a branch has no effect.
    pub(crate) async fn pin_revision(&self, client: &Client) -> Result<Source, DownloadError> {
        match self {
            Source::Hub(hub) => hub.pin_revision(client).await.map(Source::Hub),
            Source::Bucket(bucket) => Ok(Source::Bucket(bucket.clone())),
        }
    }

    /// Lists the files that a sidecar reads.
    pub(crate) async fn list(&self, client: &Client) -> Result<Vec<ModelFile>, DownloadError> {
        match self {
            Source::Hub(hub) => hub.list(client).await,
            Source::Bucket(bucket) => bucket.list(client).await,
        }
    }

    /// Returns a request for a file, and its URL for messages.
    pub(crate) fn get_request(&self, client: &Client, item: &ModelFile) -> (String, RequestBuilder) {
        match self {
            Source::Hub(hub) => hub.get_request(client, item),
            Source::Bucket(bucket) => bucket.get_request(client, item),
        }
    }
}

/// Whether a sidecar reads a file of this name. Excludes weights in other formats, their copies (`consolidated`), and
/// everything in subfolders.
pub(super) fn is_model_file(name: &str) -> bool {
    let weights = name.ends_with(".safetensors") && !name.starts_with("consolidated");
    let rest = name.ends_with(".json") || name.ends_with(".jinja") || name == "tokenizer.model";
    !name.contains(['/', '\\']) && !name.starts_with('.') && (weights || rest)
}

/// Returns the text of a successful response.
pub(super) async fn fetch_text(request: RequestBuilder, url: &str) -> Result<String, DownloadError> {
    let response = request.send().await.map_err(DownloadError::http(url))?;
    if !response.status().is_success() {
        return Err(DownloadError::status(url, response.status()));
    }
    response.text().await.map_err(DownloadError::http(url))
}
