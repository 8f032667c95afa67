//! Why a model could not be had.

use std::path::{Path, PathBuf};

use reqwest::{StatusCode, Url};

/// Why a model could not be had.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// No client could be made.
    #[error("no HTTP client: {0}")]
    Client(#[source] reqwest::Error),
    /// The address of the service is none.
    #[error("`{endpoint}` is no address of a service: {problem}")]
    Endpoint {
        /// As written.
        endpoint: String,
        /// What is wrong with it.
        problem: String,
    },
    /// There is no connection to the service: its host has no address, refuses, is silent, or has no valid certificate.
    #[error("{host} cannot be reached: {problem}")]
    Unreachable {
        /// Its host, and its port where that is not the usual one.
        host: String,
        /// What failed.
        problem: String,
    },
    /// The connection broke.
    #[error("{url}: {error}")]
    Http {
        /// What was asked for, without signatures.
        url: String,
        /// What failed.
        #[source]
        error: reqwest::Error,
    },
    /// The service wants other credentials.
    #[error("{url}: {status}: the credential is missing, wrong, or not allowed to read this")]
    Refused {
        /// What was asked for.
        url: String,
        /// What it answered.
        status: StatusCode,
    },
    /// There is no such thing.
    #[error("{url}: {status}: no such model, revision, bucket or file")]
    NotFound {
        /// What was asked for.
        url: String,
        /// What it answered.
        status: StatusCode,
    },
    /// Any other answer that is no success.
    #[error("{url}: {status}")]
    Status {
        /// What was asked for.
        url: String,
        /// What it answered.
        status: StatusCode,
    },
    /// An answer that cannot be read.
    #[error("{url}: the answer cannot be read: {problem}")]
    InvalidResponse {
        /// What was asked for.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The source has no model.
    #[error("{place} holds no model: it lacks {lacks}")]
    NotAModel {
        /// The source.
        place: String,
        /// What is missing.
        lacks: &'static str,
    },
    /// A file is not as long as its source said.
    #[error("{file}: {bytes} bytes came of {expected}")]
    Size {
        /// The file.
        file: String,
        /// What came.
        bytes: u64,
        /// What was told.
        expected: u64,
    },
    /// A file's bytes are not those that its source told.
    #[error("{file}: its digest is {digest}, and {expected} was told")]
    Digest {
        /// The file.
        file: String,
        /// Of what came.
        digest: String,
        /// As told.
        expected: String,
    },
    /// Of those who download into a folder one does, and nobody can say who.
    #[error("{}: its file system has no locks (flock), which a folder for several downloads needs: {error}", .path.display())]
    LockFailed {
        /// The file that would be locked.
        path: PathBuf,
        /// What failed.
        #[source]
        error: std::io::Error,
    },
    /// A file on this machine.
    #[error("{}: {error}", .path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// What failed.
        #[source]
        error: std::io::Error,
    },
}

/// What an error says and what its causes add to it. A client's own words for a host without a name, or one that refuses the
/// connection, are the same; the causes are not.
pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    for words in causes.map(ToString::to_string) {
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
    }
    text
}

impl DownloadError {
    /// Whether trying again cannot help before somebody changes something.
    pub fn is_final(&self) -> bool {
        match self {
            DownloadError::Unreachable { .. } | DownloadError::Http { .. } | DownloadError::Size { .. } => {
                false
            }
            DownloadError::Status { status, .. } => {
                !(status.is_server_error()
                    || matches!(*status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT))
            }
            _ => true,
        }
    }

    pub(crate) fn http(url: &str) -> impl FnOnce(reqwest::Error) -> DownloadError + '_ {
        move |error| match error.is_connect() {
            true => DownloadError::unreachable(url, &error),
            // Without the address that was asked: it may carry a signature.
            false => DownloadError::Http { url: url.to_owned(), error: error.without_url() },
        }
    }

    fn unreachable(url: &str, error: &reqwest::Error) -> DownloadError {
        // The service may have sent the client on to another host.
        let asked = error.url().cloned().or_else(|| Url::parse(url).ok());
        let host = asked.as_ref().and_then(|url| {
            let host = url.host_str()?;
            Some(url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}")))
        });
        // The last cause says what failed, the others that something did.
        let causes = std::iter::successors(Some(error as &dyn std::error::Error), |cause| cause.source());
        let problem = causes.last().map(ToString::to_string).unwrap_or_default();
        DownloadError::Unreachable { host: host.unwrap_or_else(|| url.to_owned()), problem }
    }

    pub(crate) fn file(path: &Path) -> impl FnOnce(std::io::Error) -> DownloadError + '_ {
        move |error| DownloadError::File { path: path.to_owned(), error }
    }

    pub(crate) fn status(url: &str, status: StatusCode) -> DownloadError {
        let url = url.to_owned();
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => DownloadError::Refused { url, status },
            StatusCode::NOT_FOUND => DownloadError::NotFound { url, status },
            status => DownloadError::Status { url, status },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_chain_lists_each_cause_once() {
        let refused = std::io::Error::other("connection refused");
        let file = DownloadError::File { path: "/a".into(), error: std::io::Error::other(refused) };
        assert_eq!(error_chain(&file), "/a: connection refused");
        #[derive(Debug, thiserror::Error)]
        #[error("error sending request")]
        struct Outer(#[source] std::io::Error);
        let outer = Outer(std::io::Error::other("dns error"));
        assert_eq!(error_chain(&outer), "error sending request: dns error");
    }
}
