//! HTTP client of the engine, a server on this host.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use reqwest::Response;
use serde::Deserialize;

use crate::admin::tls::client_without_roots;
use crate::root_cause::root_cause;

/// Longest wait for a connection; the engine is on this host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for the response to a probe. A busy server may be slow.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest time an idle connection is kept; uvicorn closes it after 5 s.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// Largest metrics response of an engine, bytes.
const MAX_BYTES: usize = 4 << 20;
/// Largest small response, bytes.
const MAX_SMALL_BYTES: usize = 1 << 20;

/// The URL cannot be used for an engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{url}` is not of the form http://ADDRESS:PORT with an address of this host's loopback")]
pub struct NotLoopback {
    url: String,
}

/// Why the engine gave no usable response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// No process listens; no request was sent.
    #[error("the engine cannot be reached: {0}")]
    Unreachable(String),
    /// The connection broke.
    #[error("the connection to the engine failed: {0}")]
    Broken(String),
    /// No response in time.
    #[error("the engine did not answer in time")]
    Timeout,
    /// The response has an error status.
    #[error("the engine answered {0}")]
    Status(u16),
}

impl From<reqwest::Error> for EngineError {
    fn from(error: reqwest::Error) -> Self {
        if error.is_connect() {
            EngineError::Unreachable(root_cause(&error))
        } else if error.is_timeout() {
            EngineError::Timeout
        } else {
            EngineError::Broken(root_cause(&error))
        }
    }
}

/// Client of the engine. Cheap to clone.
#[derive(Clone, Debug)]
pub struct EngineClient {
    base: String,
    client: reqwest::Client,
}

#[derive(Deserialize)]
struct SleepingResponse {
    is_sleeping: bool,
}

#[derive(Deserialize)]
struct TokenizeResponse {
    count: u32,
}

impl EngineClient {
    /// Creates a client for the engine at `url`. The engine must be on this host, because its API needs no key.
    ///
    /// # Errors
    /// The address is not a loopback address, or the URL has more than address and port.
    ///
    /// # Panics
    /// Broken invariant: a client with fixed settings cannot be built.
    pub fn new(url: &str) -> Result<EngineClient, NotLoopback> {
        let not_local = || NotLoopback { url: url.to_owned() };
        let address = url.strip_prefix("http://").ok_or_else(not_local)?.trim_end_matches('/');
        let address =
            address.strip_prefix("localhost:").map_or(address.to_owned(), |p| format!("127.0.0.1:{p}"));
        let address: SocketAddr = address.parse().map_err(|_| not_local())?;
        if !IpAddr::is_loopback(&address.ip()) {
            return Err(not_local());
        }
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(client_without_roots())
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(POOL_IDLE_TIMEOUT)
            .http1_only()
            .build()
            .expect("a client with fixed settings can be created");
        Ok(EngineClient { base: format!("http://{address}"), client })
    }

    /// Sends a request without a time limit.
    ///
    /// # Errors
    /// No response head was received.
    pub async fn post(&self, path: &str, headers: HeaderMap, body: Bytes) -> Result<Response, EngineError> {
        Ok(self.client.post(format!("{}{path}", self.base)).headers(headers).body(body).send().await?)
    }

    /// Returns a small response.
    ///
    /// # Errors
    /// There was no response in time.
    pub async fn get(&self, path: &str) -> Result<(StatusCode, HeaderMap, Vec<u8>), EngineError> {
        let response = self.client.get(format!("{}{path}", self.base)).timeout(PROBE_TIMEOUT).send().await?;
        let (status, headers) = (response.status(), response.headers().clone());
        Ok((status, headers, read(response, MAX_BYTES).await?))
    }

    /// Checks that the engine is healthy.
    ///
    /// # Errors
    /// It is not, or did not respond.
    pub async fn health(&self) -> Result<(), EngineError> {
        let (status, ..) = self.get("/health").await?;
        if status.is_success() { Ok(()) } else { Err(EngineError::Status(status.as_u16())) }
    }

    /// Returns the engine's metrics in Prometheus text format.
    ///
    /// # Errors
    /// The engine did not return them.
    pub async fn metrics(&self) -> Result<String, EngineError> {
        match self.get("/metrics").await? {
            (StatusCode::OK, _, text) => Ok(String::from_utf8_lossy(&text).into_owned()),
            (status, ..) => Err(EngineError::Status(status.as_u16())),
        }
    }

    /// Whether the engine sleeps; `None` = it has no sleep mode or does not expose it.
    ///
    /// # Errors
    /// The engine did not respond.
    pub async fn is_sleeping(&self) -> Result<Option<bool>, EngineError> {
        let (status, _, text) = self.get("/is_sleeping").await?;
        let response =
            serde_json::from_slice::<SleepingResponse>(&text).ok().filter(|_| status == StatusCode::OK);
        Ok(response.map(|response| response.is_sleeping))
    }

    /// Puts the engine to sleep: it releases its device memory and keeps the weights in host memory.
    ///
    /// # Errors
    /// The engine did not do so.
    pub async fn sleep(&self, patience: Duration) -> Result<(), EngineError> {
        self.post_command("/sleep?level=1", patience).await
    }

    /// Wakes the engine: it allocates its device memory again.
    ///
    /// # Errors
    /// The engine did not do so.
    pub async fn wake_up(&self, patience: Duration) -> Result<(), EngineError> {
        self.post_command("/wake_up", patience).await
    }

    async fn post_command(&self, path: &str, patience: Duration) -> Result<(), EngineError> {
        let response = self.client.post(format!("{}{path}", self.base)).timeout(patience).send().await?;
        let status = response.status();
        if status.is_success() { Ok(()) } else { Err(EngineError::Status(status.as_u16())) }
    }

    /// Returns the tokens of a prompt as the engine counts them; `None` = the engine does not count.
    ///
    /// # Errors
    /// The engine did not respond.
    pub async fn count_tokens(&self, prompt: Vec<u8>) -> Result<Option<u32>, EngineError> {
        let json = axum::http::HeaderValue::from_static("application/json");
        let headers = HeaderMap::from_iter([(axum::http::header::CONTENT_TYPE, json)]);
        let response = self.post("/tokenize", headers, prompt.into()).await?;
        if response.status() != StatusCode::OK {
            return Ok(None);
        }
        // The response includes the token ids.
        let text = read(response, MAX_BYTES + MAX_SMALL_BYTES).await?;
        Ok(serde_json::from_slice::<TokenizeResponse>(&text).ok().map(|counted| counted.count))
    }
}

/// Reads at most `limit` bytes of a response.
async fn read(mut response: Response, limit: usize) -> Result<Vec<u8>, EngineError> {
    let mut text = Vec::new();
    while let Some(piece) = response.chunk().await? {
        if text.len() + piece.len() > limit {
            return Err(EngineError::Broken(format!("an answer has more than {limit} bytes")));
        }
        text.extend_from_slice(&piece);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn non_loopback_engine_url_is_refused() {
        for good in
            ["http://127.0.0.1:8010", "http://127.0.0.1:8010/", "http://[::1]:1", "http://localhost:80"]
        {
            assert!(EngineClient::new(good).is_ok(), "{good}");
        }
        let bad = [
            "",
            "127.0.0.1:8010",
            "https://127.0.0.1:8010",
            "http://10.0.0.1:8010",
            "http://0.0.0.0:8010",
            "http://engine:8010",
            "http://127.0.0.1",
            "http://127.0.0.1:8010/v1",
            "http://user@127.0.0.1:8010",
        ];
        for bad in bad {
            assert_eq!(EngineClient::new(bad).err(), Some(NotLoopback { url: bad.into() }));
        }
    }
}
