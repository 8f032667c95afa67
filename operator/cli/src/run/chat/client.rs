//! A client of the API that reads its event stream.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context, bail};
use eventsource_stream::Eventsource;
use futures_util::StreamExt;
use serde_json::Value;

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
        let answer = self.http.post(format!("{}{path}", self.url)).json(&body).send().await?;
        let status = answer.status();
        if !status.is_success() {
            let text = answer.text().await.unwrap_or_default();
            let words = serde_json::from_str(&text).ok().and_then(|error| error_message(&error));
            bail!("{}", words.unwrap_or_else(|| format!("the server answered {status}: {text}")));
        }
        let (mut events, mut ending) = (answer.bytes_stream().eventsource(), FinishReason::Stop);
        while let Some(event) = events.next().await {
            let data = event.context("the answer broke off")?.data;
            if data == "[DONE]" {
                return Ok(ending);
            }
            let event: Value = serde_json::from_str(&data).with_context(|| format!("no JSON: {data}"))?;
            if let Some(words) = error_message(&event) {
                bail!("{words}");
            }
            if chunk_text(&event).is_some_and(|piece| !take(piece)) {
                return Ok(FinishReason::Stop);
            }
            if event.pointer("/choices/0/finish_reason").is_some_and(|reason| reason == "length") {
                ending = FinishReason::Length;
            }
        }
        bail!("the answer broke off")
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

/// Returns the message of an error in OpenAI's form.
fn error_message(event: &Value) -> Option<String> {
    Some(event.get("error")?.get("message")?.as_str()?.to_owned())
}

/// Returns the text of a chunk of either endpoint; `None` = it has none.
fn chunk_text(chunk: &Value) -> Option<&str> {
    let choice = chunk.get("choices")?.get(0)?;
    let text = choice.get("text").or_else(|| choice.get("delta")?.get("content"));
    text?.as_str().filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn chunks_of_both_endpoints_have_their_text() {
        assert_eq!(chunk_text(&json!({"choices": [{"text": "a"}]})), Some("a"));
        assert_eq!(chunk_text(&json!({"choices": [{"delta": {"content": "b"}}]})), Some("b"));
        for empty in
            [json!({"choices": []}), json!({"choices": [{"delta": {"role": "assistant"}}]}), json!({})]
        {
            assert_eq!(chunk_text(&empty), None);
        }
        assert_eq!(error_message(&json!({"error": {"message": "m"}})).as_deref(), Some("m"));
    }

    #[test]
    fn a_listener_at_all_addresses_is_reached_at_loopback() {
        let reached = |text: &str| reachable(text.parse().unwrap()).to_string();
        assert_eq!(reached("0.0.0.0:80"), "127.0.0.1:80");
        assert_eq!(reached("[::]:80"), "[::1]:80");
        assert_eq!(reached("10.0.0.1:80"), "10.0.0.1:80");
    }
}
