//! Where models come from.

use reqwest::{Client, RequestBuilder};
use serde::{Deserialize, Serialize};

use super::{Bucket, DownloadError, ExpectedDigest, Hub};

/// A file of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFile {
    /// Its name in the model's folder.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Its bytes.
    pub expected: ExpectedDigest,
    /// Names these very bytes among all that the source ever had under this name.
    pub tag: Option<String>,
}

/// Where a model comes from.
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
    /// Names the source among all others, without its credentials.
    pub(crate) fn identity(&self) -> String {
        match self {
            Source::Hub(hub) => hub.to_string(),
            Source::Bucket(bucket) => bucket.identity(),
        }
    }

    /// The source as it is now: a later change of a branch changes nothing.
    pub(crate) async fn pin_revision(&self, client: &Client) -> Result<Source, DownloadError> {
        match self {
            Source::Hub(hub) => hub.pin_revision(client).await.map(Source::Hub),
            Source::Bucket(bucket) => Ok(Source::Bucket(bucket.clone())),
        }
    }

    /// The files that a sidecar reads.
    pub(crate) async fn list(&self, client: &Client) -> Result<Vec<ModelFile>, DownloadError> {
        match self {
            Source::Hub(hub) => hub.list(client).await,
            Source::Bucket(bucket) => bucket.list(client).await,
        }
    }

    /// A request for a file, and its address for people.
    pub(crate) fn get_request(&self, client: &Client, item: &ModelFile) -> (String, RequestBuilder) {
        match self {
            Source::Hub(hub) => hub.get_request(client, item),
            Source::Bucket(bucket) => bucket.get_request(client, item),
        }
    }
}

/// Whether a sidecar reads a file of this name. Weights in other formats, and copies of them (`consolidated`), are left
/// where they are, and so is everything in folders.
pub(super) fn is_model_file(name: &str) -> bool {
    let weights = name.ends_with(".safetensors") && !name.starts_with("consolidated");
    let rest = name.ends_with(".json") || name.ends_with(".jinja") || name == "tokenizer.model";
    !name.contains(['/', '\\']) && !name.starts_with('.') && (weights || rest)
}

/// An answer's text, if it was a success.
pub(super) async fn fetch_text(request: RequestBuilder, url: &str) -> Result<String, DownloadError> {
    let response = request.send().await.map_err(DownloadError::http(url))?;
    if !response.status().is_success() {
        return Err(DownloadError::status(url, response.status()));
    }
    response.text().await.map_err(DownloadError::http(url))
}
