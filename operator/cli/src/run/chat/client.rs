//! A client of the API that reads its event stream.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::anyhow;
use serde_json::Value;
use sluice_client::{EventStream, RequestError, chunk_text, error_message, send};

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model or the user ended it.
    Stop,
    /// It reached the token limit.
    Length,
}

/// A client of the API at one address.
#[derive(Debug)]
pub struct ChatClient {
    http: reqwest::Client,
    url: String,
}

impl ChatClient {
    /// Creates a client of the API at `address`.
    ///
    /// # Errors
    /// The HTTP client cannot be created.
    pub fn new(address: SocketAddr) -> anyhow::Result<ChatClient> {
        let http = reqwest::Client::builder().no_proxy().build()?;
        Ok(ChatClient { http, url: format!("http://{}", reachable(address)) })
    }

    /// Requests a stream and passes each piece of its text to `take`, until `take` returns `false`. Returns why the
    /// answer ended.
    ///
    /// # Errors
    /// The error of the server or of the connection.
    pub async fn complete(
        &self,
        path: &str,
        body: &Value,
        mut take: impl FnMut(&str) -> bool,
    ) -> anyhow::Result<FinishReason> {
        let mut body = body.clone();
        body["stream"] = true.into();
        let request = self.http.post(format!("{}{path}", self.url)).json(&body);
        let answer = send(request).await.map_err(in_words)?;
        let (mut events, mut ending) = (EventStream::new(answer), FinishReason::Stop);
        while let Some(chunk) = events.next().await.map_err(broken_off)? {
            if chunk_text(&chunk).is_some_and(|piece| !take(piece)) {
                return Ok(FinishReason::Stop);
            }
            if chunk.pointer("/choices/0/finish_reason").is_some_and(|reason| reason == "length") {
                ending = FinishReason::Length;
            }
        }
        Ok(ending)
    }
}

/// Returns the error of an answer that has begun.
fn broken_off(error: RequestError) -> anyhow::Error {
    match error {
        RequestError::Transport(error) => {
            anyhow::Error::from(error).context("the connection ended before the answer was complete")
        }
        error => in_words(error),
    }
}

/// Returns the error as a user reads it: the server's own message if there is one.
fn in_words(error: RequestError) -> anyhow::Error {
    match error {
        RequestError::Refused { status, body, .. } => match (error_message(&body), body.as_str()) {
            (Some(message), _) => anyhow!("{message}"),
            (None, Some(text)) => anyhow!("the server answered {status}: {text}"),
            (None, None) => anyhow!("the server answered {status}: {body}"),
        },
        RequestError::Cut => anyhow!("the connection ended before the answer was complete"),
        error => error.into(),
    }
}

/// Returns the address at which this machine reaches a listener at `address`.
pub fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use reqwest::StatusCode;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_error_is_the_servers_message_if_it_has_one() {
        let refused = |body| {
            let status = StatusCode::NOT_FOUND;
            in_words(RequestError::Refused { status, body, retry_after: None }).to_string()
        };
        assert_eq!(refused(json!({"error": {"message": "no such model"}})), "no such model");
        assert_eq!(refused(json!("nothing here")), "the server answered 404 Not Found: nothing here");
        assert_eq!(in_words(RequestError::Failed(json!({"error": {"message": "m"}}))).to_string(), "m");
        assert_eq!(
            in_words(RequestError::Cut).to_string(),
            "the connection ended before the answer was complete"
        );
    }

    #[test]
    fn a_listener_at_all_addresses_is_reached_at_loopback() {
        let reached = |text: &str| reachable(text.parse().unwrap()).to_string();
        assert_eq!(reached("0.0.0.0:80"), "127.0.0.1:80");
        assert_eq!(reached("[::]:80"), "[::1]:80");
        assert_eq!(reached("10.0.0.1:80"), "10.0.0.1:80");
    }
}
