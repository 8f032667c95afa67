//! Clients: well-behaved ones use a library, others write to a socket.

use std::sync::LazyLock;
use std::time::Duration;

use reqwest::{Client, Response, StatusCode};
use serde_json::Value;
use sluice_client::{EventStream, RequestError, send};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::answer::Answer;
use super::wait::WAIT_LIMIT;

/// A client whose requests all end after [`WAIT_LIMIT`] of silence.
pub static CLIENT: LazyLock<Client> = LazyLock::new(|| {
    // The library needs a TLS provider even for plain HTTP.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // A connection for each request: one kept alive belongs to the runtime of the test that opened it.
    Client::builder().read_timeout(WAIT_LIMIT).pool_max_idle_per_host(0).build().unwrap()
});

/// An open stream of server-sent events.
#[derive(Debug)]
pub struct Stream {
    events: EventStream,
    /// The answer received so far.
    pub answer: Answer,
}

/// Sends a body.
pub async fn post(url: &str, body: &Value, key: Option<&str>) -> Result<Response, RequestError> {
    let request = CLIENT.post(url).json(body);
    in_time(send(key.into_iter().fold(request, |request, key| request.bearer_auth(key))).await)
}

/// Fails the test if the library has waited too long.
fn in_time<T>(result: Result<T, RequestError>) -> Result<T, RequestError> {
    if let Err(RequestError::Transport(error)) = &result {
        assert!(!error.is_timeout(), "nothing came for {WAIT_LIMIT:?}");
    }
    result
}

impl Stream {
    /// Opens a stream.
    pub async fn open(url: &str, body: &Value) -> Result<Stream, RequestError> {
        let mut body = body.clone();
        body["stream"] = true.into();
        let response = post(url, &body, None).await?;
        Ok(Stream::of(response))
    }

    /// The events of a response.
    pub fn of(response: Response) -> Stream {
        Stream { events: EventStream::new(response), answer: Answer::default() }
    }

    /// Reads one event; `false` after the closing mark.
    pub async fn next(&mut self) -> Result<bool, RequestError> {
        let Some(chunk) = in_time(self.events.next().await)? else { return Ok(false) };
        self.answer.add(&chunk);
        Ok(true)
    }

    /// Reads until `tokens` tokens have come.
    pub async fn until_tokens(&mut self, tokens: usize) {
        while self.answer.tokens.len() < tokens {
            let more = self.next().await.unwrap();
            assert!(more, "it ended after {} tokens", self.answer.tokens.len());
        }
    }

    /// Reads to the end.
    pub async fn finish(mut self) -> Result<Answer, RequestError> {
        while self.next().await? {}
        Ok(self.answer)
    }

    /// Whether an event comes within `limit`.
    pub async fn responds_within(&mut self, limit: Duration) -> bool {
        tokio::time::timeout(limit, self.next()).await.is_ok_and(|next| next.unwrap())
    }
}

/// Status of a GET.
pub async fn get_status(url: &str) -> Option<StatusCode> {
    Some(CLIENT.get(url).send().await.ok()?.status())
}

/// A client that sends arbitrary bytes.
#[derive(Debug)]
pub struct Raw(pub TcpStream);

impl Raw {
    /// Connects to `address` (`host:port`).
    pub async fn connect(address: &str) -> Raw {
        Raw(TcpStream::connect(address).await.unwrap())
    }

    /// Writes bytes; ignores errors.
    pub async fn send_raw(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes).await;
    }

    /// A request with a body.
    pub async fn post(&mut self, body: &[u8]) {
        let head = format!("content-length: {}\r\n", body.len());
        self.send_raw(&[Raw::head(&head).as_bytes(), body].concat()).await;
    }

    /// Head of a completion request with more header lines.
    pub fn head(lines: &str) -> String {
        format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{lines}\r\n")
    }

    /// Status of the answer; `None` when the connection ends without one.
    pub async fn status(&mut self) -> Option<u16> {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n") {
            let read =
                tokio::time::timeout(WAIT_LIMIT, self.0.read(&mut byte)).await.expect("an answer in time");
            if read.ok()? == 0 {
                return None;
            }
            head.push(byte[0]);
        }
        let line = String::from_utf8_lossy(&head);
        Some(line.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("{line}")))
    }

    /// Reads and drops all until the peer closes; `false` if it does not within `limit`.
    pub async fn closes_within(&mut self, limit: Duration) -> bool {
        let all = async { while self.0.read(&mut [0; 4096]).await.is_ok_and(|count| count > 0) {} };
        tokio::time::timeout(limit, all).await.is_ok()
    }
}
