//! Files of a model, local or remote, of which only parts are read.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use reqwest::{Client, StatusCode, header};
use serde::de::DeserializeOwned;

use super::error::InspectError;
use crate::download::{
    DownloadError, ModelFile, ProgressOutput, RetryPolicy, Source, build_client, check_model_files,
    with_retries,
};
use crate::model::ModelError;

/// Files of a model.
#[derive(Debug)]
pub enum ModelFiles {
    /// Files in a local folder.
    Folder(PathBuf),
    /// Files of a remote source.
    Remote(Box<RemoteFiles>),
}

/// Files of a source, as of the time they were listed.
#[derive(Debug)]
pub struct RemoteFiles {
    client: Client,
    source: Source,
    location: PathBuf,
    items: Vec<ModelFile>,
    policy: RetryPolicy,
    report: ProgressOutput,
}

impl ModelFiles {
    /// Returns the files of a local folder.
    pub fn folder(path: &Path) -> ModelFiles {
        ModelFiles::Folder(path.to_owned())
    }

    /// Lists the files of a source.
    ///
    /// # Errors
    /// The files cannot be listed, or are not a model.
    pub async fn remote(
        source: Source,
        policy: RetryPolicy,
        report: ProgressOutput,
    ) -> Result<ModelFiles, DownloadError> {
        let client = build_client()?;
        let source = with_retries(policy, report, async || source.pin_revision(&client).await).await?;
        let items = with_retries(policy, report, async || source.list(&client).await).await?;
        check_model_files(&source, &items)?;
        let place = PathBuf::from(source.to_string());
        Ok(ModelFiles::Remote(Box::new(RemoteFiles {
            client,
            source,
            location: place,
            items,
            policy,
            report,
        })))
    }

    /// Returns the location of all files, for messages.
    pub fn location(&self) -> &Path {
        match self {
            ModelFiles::Folder(folder) => folder,
            ModelFiles::Remote(remote) => &remote.location,
        }
    }

    /// Returns the path of one file, for messages.
    pub fn path(&self, name: &str) -> PathBuf {
        match self {
            ModelFiles::Folder(folder) => folder.join(name),
            // The source may be long and is not a folder.
            ModelFiles::Remote(_) => name.into(),
        }
    }

    /// Checks that there is a model in a local folder. A remote source is checked when it is listed.
    ///
    /// # Errors
    /// The folder or its configuration is missing.
    pub fn check_present(&self) -> Result<(), ModelError> {
        match self {
            ModelFiles::Folder(folder) => ModelError::find_absent(folder).map_or(Ok(()), Err),
            ModelFiles::Remote(_) => Ok(()),
        }
    }

    /// Whether there is a file of this name.
    pub fn contains(&self, name: &str) -> bool {
        match self {
            ModelFiles::Folder(folder) => folder.join(name).exists(),
            ModelFiles::Remote(remote) => remote.item(name).is_some(),
        }
    }

    /// Returns the length of a file in bytes.
    ///
    /// # Errors
    /// The file does not exist.
    pub fn bytes(&self, name: &str) -> Result<u64, InspectError> {
        match self {
            ModelFiles::Folder(folder) => {
                let path = folder.join(name);
                let file = std::fs::metadata(&path);
                Ok(file.map_err(|source| ModelError::Io { path, source })?.len())
            }
            ModelFiles::Remote(remote) => Ok(remote.find(name)?.bytes),
        }
    }

    /// Returns the total bytes of a download of all files. `None` if they are local.
    pub fn download_bytes(&self) -> Option<u64> {
        match self {
            ModelFiles::Folder(_) => None,
            ModelFiles::Remote(remote) => {
                Some(remote.items.iter().fold(0, |sum: u64, item| sum.saturating_add(item.bytes)))
            }
        }
    }

    /// Reads `count` bytes of a file, starting at `from`. The file must have them.
    ///
    /// # Errors
    /// The bytes cannot be read.
    pub async fn range(&self, name: &str, from: u64, count: u64) -> Result<Vec<u8>, InspectError> {
        match self {
            ModelFiles::Folder(folder) => Ok(read_range(&folder.join(name), from, count)?),
            ModelFiles::Remote(remote) => {
                let item = remote.find(name)?;
                Ok(with_retries(remote.policy, remote.report, async || remote.range(item, from, count).await)
                    .await?)
            }
        }
    }

    /// Reads a whole JSON file.
    ///
    /// # Errors
    /// The file cannot be read, is longer than `most` bytes, or is not valid JSON of this type.
    pub async fn json<T: DeserializeOwned>(&self, name: &str, most: u64) -> Result<T, InspectError> {
        let bytes = self.bytes(name)?;
        if bytes > most {
            return Err(InspectError::TooLong { file: name.to_owned(), bytes, most });
        }
        let text = self.range(name, 0, bytes).await?;
        let read = serde_json::from_slice(&text);
        Ok(read.map_err(|source| ModelError::Json { path: self.path(name), source })?)
    }
}

fn read_range(path: &Path, from: u64, count: u64) -> Result<Vec<u8>, ModelError> {
    let mut bytes = vec![0; usize::try_from(count).unwrap_or(usize::MAX)];
    let read = File::open(path).and_then(|file| file.read_exact_at(&mut bytes, from));
    read.map_err(|source| ModelError::Io { path: path.to_owned(), source })?;
    Ok(bytes)
}

impl RemoteFiles {
    fn item(&self, name: &str) -> Option<&ModelFile> {
        self.items.iter().find(|item| item.name == name)
    }

    fn find(&self, name: &str) -> Result<&ModelFile, DownloadError> {
        self.item(name).ok_or_else(|| DownloadError::NotFound {
            url: format!("{}: {name}", self.source),
            status: StatusCode::NOT_FOUND,
        })
    }

    async fn range(&self, item: &ModelFile, from: u64, count: u64) -> Result<Vec<u8>, DownloadError> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let (url, request) = self.source.get_request(&self.client, item);
        let end = from + count;
        let request = request.header(header::RANGE, format!("bytes={from}-{}", end - 1));
        let mut response = request.send().await.map_err(DownloadError::http(&url))?;
        let skipped = match response.status() {
            StatusCode::PARTIAL_CONTENT => 0,
            // A server without range support sends the whole file. The connection is dropped once there are enough
            // bytes.
            StatusCode::OK => from,
            status => return Err(DownloadError::status(&url, status)),
        };
        let (mut bytes, wanted) = (Vec::new(), skipped + count);
        while (bytes.len() as u64) < wanted {
            match response.chunk().await.map_err(DownloadError::http(&url))? {
                Some(more) => bytes.extend_from_slice(&more),
                None => {
                    let (file, came) = (item.name.clone(), from - skipped + bytes.len() as u64);
                    return Err(DownloadError::Size { file, bytes: came, expected: end });
                }
            }
        }
        bytes.truncate(usize::try_from(wanted).unwrap_or(usize::MAX));
        bytes.drain(..usize::try_from(skipped).unwrap_or(usize::MAX));
        Ok(bytes)
    }
}
