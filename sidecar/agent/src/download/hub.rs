//! Repositories of a Hugging Face hub.

use std::fmt;

use reqwest::{Client, RequestBuilder, Url};
use serde::Deserialize;

use super::error::DownloadError;
use super::fetch_text::fetch_text;
use super::model_file::{ExpectedDigest, ModelFile, is_model_file};

/// A repository of a hub, at one revision.
#[derive(Clone)]
pub struct Hub {
    endpoint: Url,
    repo: String,
    revision: String,
    token: Option<String>,
}

/// A hub's response about a revision. Fields: <https://huggingface.co/docs/hub/api>.
#[derive(Debug, Deserialize)]
struct Revision {
    sha: Option<String>,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Debug, Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

impl Hub {
    /// Creates a source for repository `repo` (OWNER/NAME) at a branch, tag or commit. `token` is sent to the hub only,
    /// not to hosts that it redirects to.
    ///
    /// # Errors The endpoint is not a valid URL.
    pub fn new(
        endpoint: &str,
        repo: &str,
        revision: &str,
        token: Option<String>,
    ) -> Result<Hub, DownloadError> {
        let refuse = |problem: String| DownloadError::Endpoint { endpoint: endpoint.to_owned(), problem };
        let url = Url::parse(endpoint).map_err(|error| refuse(error.to_string()))?;
        if url.cannot_be_a_base() || !url.scheme().starts_with("http") {
            return Err(refuse("the scheme must be http or https".into()));
        }
        Ok(Hub { endpoint: url, repo: repo.into(), revision: revision.into(), token })
    }

    /// Returns the repository at the commit that the revision names now.
    pub(super) async fn pin_revision(&self, client: &Client) -> Result<Hub, DownloadError> {
        let commit = self.fetch_revision(client).await?.sha;
        Ok(Hub { revision: commit.unwrap_or_else(|| self.revision.clone()), ..self.clone() })
    }

    pub(super) async fn list(&self, client: &Client) -> Result<Vec<ModelFile>, DownloadError> {
        let revision = self.fetch_revision(client).await?;
        let wanted = revision.siblings.into_iter().filter(|sibling| is_model_file(&sibling.rfilename));
        wanted.map(|sibling| self.model_file(sibling)).collect()
    }

    fn model_file(&self, sibling: Sibling) -> Result<ModelFile, DownloadError> {
        let name = sibling.rfilename;
        let (sha256, size) = sibling.lfs.map_or((None, None), |lfs| (lfs.sha256, lfs.size));
        let bytes = size.or(sibling.size).ok_or_else(|| DownloadError::InvalidResponse {
            url: self.api_url().into(),
            problem: format!("the answer has no size of {name}"),
        })?;
        let git = || sibling.blob_id.map(ExpectedDigest::GitBlob);
        let expected = sha256.map(ExpectedDigest::Sha256).or_else(git).unwrap_or(ExpectedDigest::Length);
        Ok(ModelFile { name, bytes, expected, tag: None })
    }

    async fn fetch_revision(&self, client: &Client) -> Result<Revision, DownloadError> {
        let url = self.api_url();
        let answer = fetch_text(self.with_token(client.get(url.clone())), url.as_str()).await?;
        let read = serde_json::from_str(&answer);
        read.map_err(|error| DownloadError::InvalidResponse { url: url.into(), problem: error.to_string() })
    }

    pub(super) fn get_request(&self, client: &Client, item: &ModelFile) -> (String, RequestBuilder) {
        let url = self.revision_url(&[&self.repo, "/resolve"], &item.name);
        (url.to_string(), self.with_token(client.get(url)))
    }

    /// Adds the token. reqwest removes it on a redirect to another host.
    fn with_token(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    fn api_url(&self) -> Url {
        let mut url = self.revision_url(&["api/models/", &self.repo, "/revision"], "");
        url.set_query(Some("blobs=true"));
        url
    }

    /// Returns `PATH/REVISION/FILE` under the endpoint. Slashes of a revision are escaped.
    fn revision_url(&self, path: &[&str], file: &str) -> Url {
        let mut url = self.endpoint.clone();
        let path = path.concat();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path.split('/')).push(&self.revision);
            if !file.is_empty() {
                segments.push(file);
            }
        }
        url
    }
}

impl fmt::Display for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} of {}", self.repo, self.revision, self.endpoint)
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omits the token.
        write!(f, "Hub({self})")
    }
}
