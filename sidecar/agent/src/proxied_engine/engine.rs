//! The engine as it is seen from here: a server on this host that is asked and never driven.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use reqwest::Response;
use serde::Deserialize;

use super::engine_metrics::MAX_BYTES;
use crate::admin::tls::client_without_roots;

/// Longest wait for a connection: the engine is on this host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for the answer to a small question. A busy server may take a while.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an idle connection is kept: less than the 5 s after which uvicorn closes it.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// Most bytes of a small answer.
const MAX_SMALL_BYTES: usize = 1 << 20;

/// The URL of an engine that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{url}` is not of the form http://ADDRESS:PORT with an address of this host's loopback")]
pub struct NotLoopback {
    url: String,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// Nobody listens: nothing was sent.
    #[error("the engine cannot be reached: {0}")]
    Unreachable(String),
    /// The connection broke.
    #[error("the connection to the engine broke: {0}")]
    Broken(String),
    /// No answer in time.
    #[error("the engine did not answer in time")]
    Timeout,
    /// It says no.
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

/// The innermost cause: the outer ones say no more than that a request was sent.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// The way to the engine. Cheap to clone.
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
    /// An engine at `url`. Whoever reached it from elsewhere would reach all that it serves, with no key: it must be on
    /// this host.
    ///
    /// # Errors
    /// It is elsewhere, or the URL has more than address and port.
    ///
    /// # Panics
    /// Broken invariant: a client of fixed settings cannot be built.
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
            .expect("a client of fixed settings is built");
        Ok(EngineClient { base: format!("http://{address}"), client })
    }

    /// Asks for an answer; it may take as long as it takes.
    ///
    /// # Errors
    /// There was no head of an answer.
    pub async fn post(&self, path: &str, headers: HeaderMap, body: Bytes) -> Result<Response, EngineError> {
        Ok(self.client.post(format!("{}{path}", self.base)).headers(headers).body(body).send().await?)
    }

    /// A small answer.
    ///
    /// # Errors
    /// There was none in time.
    pub async fn get(&self, path: &str) -> Result<(StatusCode, HeaderMap, Vec<u8>), EngineError> {
        let response = self.client.get(format!("{}{path}", self.base)).timeout(PROBE_TIMEOUT).send().await?;
        let (status, headers) = (response.status(), response.headers().clone());
        Ok((status, headers, read(response, MAX_BYTES).await?))
    }

    /// Whether it could answer.
    ///
    /// # Errors
    /// It could not.
    pub async fn health(&self) -> Result<(), EngineError> {
        let (status, ..) = self.get("/health").await?;
        if status.is_success() { Ok(()) } else { Err(EngineError::Status(status.as_u16())) }
    }

    /// Its metrics, in Prometheus' text.
    ///
    /// # Errors
    /// They cannot be had.
    pub async fn metrics(&self) -> Result<String, EngineError> {
        match self.get("/metrics").await? {
            (StatusCode::OK, _, text) => Ok(String::from_utf8_lossy(&text).into_owned()),
            (status, ..) => Err(EngineError::Status(status.as_u16())),
        }
    }

    /// Whether it sleeps; `None` = it has no sleep mode, or does not serve it.
    ///
    /// # Errors
    /// It did not answer.
    pub async fn is_sleeping(&self) -> Result<Option<bool>, EngineError> {
        let (status, _, text) = self.get("/is_sleeping").await?;
        let told =
            serde_json::from_slice::<SleepingResponse>(&text).ok().filter(|_| status == StatusCode::OK);
        Ok(told.map(|told| told.is_sleeping))
    }

    /// Has it give up its device memory; weights stay in host memory.
    ///
    /// # Errors
    /// It did not.
    pub async fn sleep(&self, patience: Duration) -> Result<(), EngineError> {
        self.post_command("/sleep?level=1", patience).await
    }

    /// Has it take its device memory again.
    ///
    /// # Errors
    /// It did not.
    pub async fn wake_up(&self, patience: Duration) -> Result<(), EngineError> {
        self.post_command("/wake_up", patience).await
    }

    async fn post_command(&self, path: &str, patience: Duration) -> Result<(), EngineError> {
        let response = self.client.post(format!("{}{path}", self.base)).timeout(patience).send().await?;
        let status = response.status();
        if status.is_success() { Ok(()) } else { Err(EngineError::Status(status.as_u16())) }
    }

    /// Tokens of a prompt, as the engine counts them; `None` = it does not say.
    ///
    /// # Errors
    /// It did not answer.
    pub async fn count_tokens(&self, prompt: Vec<u8>) -> Result<Option<u32>, EngineError> {
        let json = axum::http::HeaderValue::from_static("application/json");
        let headers = HeaderMap::from_iter([(axum::http::header::CONTENT_TYPE, json)]);
        let response = self.post("/tokenize", headers, prompt.into()).await?;
        if response.status() != StatusCode::OK {
            return Ok(None);
        }
        // The ids come too.
        let text = read(response, MAX_BYTES + MAX_SMALL_BYTES).await?;
        Ok(serde_json::from_slice::<TokenizeResponse>(&text).ok().map(|counted| counted.count))
    }
}

/// At most `limit` bytes of an answer.
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
