//! Objects of a bucket, over the S3 protocol.

use std::fmt;
use std::time::Duration;

use reqwest::{Client, RequestBuilder, Url, header};
use rusty_s3::actions::{ListObjectsV2, ListObjectsV2Response};
use rusty_s3::{Credentials, S3Action, UrlStyle};

use super::error::DownloadError;
use super::fetch_text::fetch_text;
use super::model_file::{ExpectedDigest, ModelFile, is_model_file};

/// Lifetime of a signature; each request gets a new one.
const SIGNATURE_LIFETIME: Duration = Duration::from_secs(3600);

/// The objects of a bucket under a prefix.
#[derive(Clone)]
pub struct Bucket {
    bucket: rusty_s3::Bucket,
    prefix: String,
    credentials: Option<Credentials>,
}

impl Bucket {
    /// Creates a source for the objects under `prefix`. Without an endpoint the service is AWS in the region; without
    /// credentials requests are anonymous.
    ///
    /// # Errors
    /// The endpoint is not a valid URL, or the bucket's name is invalid.
    pub fn new(
        endpoint: Option<&str>,
        region: &str,
        name: &str,
        prefix: &str,
        credentials: Option<Credentials>,
    ) -> Result<Bucket, DownloadError> {
        let aws = format!("https://s3.{region}.amazonaws.com");
        // Custom services seldom have a DNS name per bucket.
        let style = if endpoint.is_some() { UrlStyle::Path } else { UrlStyle::VirtualHost };
        let endpoint = endpoint.unwrap_or(&aws);
        let refuse = |problem: String| DownloadError::Endpoint { endpoint: endpoint.to_owned(), problem };
        let url = Url::parse(endpoint).map_err(|error| refuse(error.to_string()))?;
        let bucket = rusty_s3::Bucket::new(url, style, name.to_owned(), region.to_owned());
        let bucket = bucket.map_err(|error| refuse(error.to_string()))?;
        let slash = if prefix.is_empty() || prefix.ends_with('/') { "" } else { "/" };
        Ok(Bucket { bucket, prefix: format!("{prefix}{slash}"), credentials })
    }

    pub(super) async fn list(&self, client: &Client) -> Result<Vec<ModelFile>, DownloadError> {
        let (mut items, mut token) = (Vec::new(), None::<String>);
        loop {
            let page = self.list_page(client, token.as_deref()).await?;
            let objects = page.contents.into_iter();
            items.extend(objects.filter_map(|object| self.model_file(&object.key, object.size, object.etag)));
            token = page.next_continuation_token;
            if token.is_none() {
                return Ok(items);
            }
        }
    }

    async fn list_page(
        &self,
        client: &Client,
        token: Option<&str>,
    ) -> Result<ListObjectsV2Response, DownloadError> {
        let mut list = ListObjectsV2::new(&self.bucket, self.credentials.as_ref());
        list.with_prefix(self.prefix.as_str());
        if let Some(token) = token {
            list.with_continuation_token(token);
        }
        let url = self.to_string();
        let answer = fetch_text(client.get(list.sign(SIGNATURE_LIFETIME)), &url).await?;
        let read = ListObjectsV2::parse_response(&answer);
        read.map_err(|error| DownloadError::InvalidResponse { url, problem: error.to_string() })
    }

    /// Returns the file of an object that a sidecar reads. S3 lists no digest, only a tag that changes with the object.
    fn model_file(&self, key: &str, size: Option<u64>, tag: Option<String>) -> Option<ModelFile> {
        let name = key.strip_prefix(&self.prefix)?.to_owned();
        let bytes = size?;
        is_model_file(&name).then_some(ModelFile { name, bytes, expected: ExpectedDigest::Length, tag })
    }

    pub(super) fn get_request(&self, client: &Client, item: &ModelFile) -> (String, RequestBuilder) {
        let key = format!("{}{}", self.prefix, item.name);
        let url = self.bucket.get_object(self.credentials.as_ref(), &key).sign(SIGNATURE_LIFETIME);
        let request = client.get(url);
        // Prevents a file that mixes two versions of the object.
        let request = match &item.tag {
            Some(tag) => request.header(header::IF_MATCH, tag),
            None => request,
        };
        (format!("{self}{}", item.name), request)
    }
}

impl Bucket {
    /// Returns an identity that includes the service, because two services may have buckets of the same name.
    pub(super) fn identity(&self) -> String {
        format!("{self} of {}", self.bucket.base_url())
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}/{}", self.bucket.name(), self.prefix)
    }
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omits the credentials.
        write!(f, "Bucket({self})")
    }
}
