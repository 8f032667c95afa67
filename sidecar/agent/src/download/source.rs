//! Sources of models.

use reqwest::{Client, RequestBuilder};

use super::{Bucket, DownloadError, Hub, ModelFile};

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
