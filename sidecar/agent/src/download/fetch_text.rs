//! [`fetch_text`].

use reqwest::RequestBuilder;

use super::error::DownloadError;

/// Returns the text of a successful response.
pub(super) async fn fetch_text(request: RequestBuilder, url: &str) -> Result<String, DownloadError> {
    let response = request.send().await.map_err(DownloadError::http(url))?;
    if !response.status().is_success() {
        return Err(DownloadError::status(url, response.status()));
    }
    response.text().await.map_err(DownloadError::http(url))
}
