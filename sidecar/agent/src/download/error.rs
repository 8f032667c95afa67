//! Errors of a download.

use std::path::{Path, PathBuf};

use reqwest::{StatusCode, Url};

/// Why a download failed.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// The HTTP client cannot be created.
    #[error("cannot create an HTTP client: {0}")]
    Client(#[source] reqwest::Error),
    /// The service's address is not a valid URL.
    #[error("`{endpoint}` is not the URL of a service: {problem}")]
    Endpoint {
        /// The address as given.
        endpoint: String,
        /// Its fault.
        problem: String,
    },
    /// No connection to the service: its name does not resolve, or it refuses, does not respond, or has no valid
    /// certificate.
    #[error("{host} cannot be reached: {problem}")]
    Unreachable {
        /// Host, with the port if it is not the default.
        host: String,
        /// The cause.
        problem: String,
    },
    /// The connection broke.
    #[error("{url}: {error}")]
    Http {
        /// The requested URL, without a signature.
        url: String,
        /// The cause.
        #[source]
        error: reqwest::Error,
    },
    /// The service needs other credentials.
    #[error("{url}: {status}: the credential is missing, wrong, or has no right to read this")]
    Refused {
        /// The requested URL.
        url: String,
        /// The response's status.
        status: StatusCode,
    },
    /// The resource does not exist.
    #[error("{url}: {status}: the model, revision, bucket or file does not exist")]
    NotFound {
        /// The requested URL.
        url: String,
        /// The response's status.
        status: StatusCode,
    },
    /// The response has another error status.
    #[error("{url}: {status}")]
    Status {
        /// The requested URL.
        url: String,
        /// The response's status.
        status: StatusCode,
    },
    /// The response cannot be parsed.
    #[error("{url}: the answer cannot be read: {problem}")]
    InvalidResponse {
        /// The requested URL.
        url: String,
        /// Its fault.
        problem: String,
    },
    /// The source contains no model.
    #[error("{place} is not a model: it lacks {lacks}")]
    NotAModel {
        /// The source.
        place: String,
        /// The missing file.
        lacks: &'static str,
    },
    /// A file's length differs from the source's.
    #[error("{file}: received {bytes} of {expected} bytes")]
    Size {
        /// Name of the file.
        file: String,
        /// Bytes received.
        bytes: u64,
        /// Bytes expected.
        expected: u64,
    },
    /// A file's digest differs from the source's.
    #[error("{file}: the digest is {digest}, but the source reports {expected}")]
    Digest {
        /// Name of the file.
        file: String,
        /// Digest of the received bytes.
        digest: String,
        /// Expected digest.
        expected: String,
    },
    /// The folder cannot be locked, so that concurrent downloads cannot be excluded.
    #[error("{}: the file system has no file locks (flock), which a shared download folder needs: {error}", .path.display())]
    LockFailed {
        /// The lock file.
        path: PathBuf,
        /// The cause.
        #[source]
        error: std::io::Error,
    },
    /// A local file operation failed.
    #[error("{}: {error}", .path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The cause.
        #[source]
        error: std::io::Error,
    },
}

/// Joins an error and its causes. The HTTP client's own message is the same for an unknown host and a refused
/// connection; the causes differ.
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
    /// Whether a retry cannot succeed.
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
            // Removes the URL, because it may carry a signature.
            false => DownloadError::Http { url: url.to_owned(), error: error.without_url() },
        }
    }

    fn unreachable(url: &str, error: &reqwest::Error) -> DownloadError {
        // A redirect may have led to another host.
        let asked = error.url().cloned().or_else(|| Url::parse(url).ok());
        let host = asked.as_ref().and_then(|url| {
            let host = url.host_str()?;
            Some(url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}")))
        });
        // Only the last cause is specific.
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
