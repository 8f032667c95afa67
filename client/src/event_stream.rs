//! Reads an answer that the server streams as server-sent events.

use std::fmt;
use std::pin::Pin;

use eventsource_stream::{Event, EventStreamError, Eventsource};
use futures_util::{Stream, StreamExt};
use reqwest::header::RETRY_AFTER;
use reqwest::{RequestBuilder, Response, StatusCode};
use serde_json::Value;

/// Data of the event that ends every complete stream.
const DONE: &str = "[DONE]";

/// Why a request has no complete answer.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The connection failed.
    #[error(transparent)]
    Transport(#[from] reqwest::Error),
    /// The server refused the request.
    #[error("{status}: {}", error_message(body).unwrap_or("no message"))]
    Refused {
        /// Status of the answer.
        status: StatusCode,
        /// Body of the answer; a string if it is no JSON.
        body: Value,
        /// Value of the header `Retry-After`.
        retry_after: Option<String>,
    },
    /// The stream contains an error event.
    #[error("{}", error_message(.0).unwrap_or("no message"))]
    Failed(Value),
    /// An event is no JSON, or the stream is no UTF-8.
    #[error("unreadable event: {0}")]
    Unreadable(String),
    /// The stream ended without the event that ends a complete stream.
    #[error("the stream ended without {DONE}")]
    Cut,
}

/// Sends a request.
///
/// # Errors
/// The connection failed, or the status is not 2xx.
pub async fn send(request: RequestBuilder) -> Result<Response, RequestError> {
    let response = request.send().await?;
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let retry_after = retry_after.map(str::to_owned);
    let body = response.bytes().await?;
    let body = serde_json::from_slice(&body)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&body).into_owned()));
    Err(RequestError::Refused { status, body, retry_after })
}

type Events = dyn Stream<Item = Result<Event, EventStreamError<reqwest::Error>>> + Send;

/// The events of one answer.
pub struct EventStream(Pin<Box<Events>>);

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream").finish_non_exhaustive()
    }
}

impl EventStream {
    /// Reads the events of a response.
    pub fn new(response: Response) -> EventStream {
        EventStream(Box::pin(response.bytes_stream().eventsource()))
    }

    /// Returns the next chunk of the answer; `None` after the last one of a complete stream.
    ///
    /// # Errors
    /// The server reports an error, or the stream is not complete.
    pub async fn next(&mut self) -> Result<Option<Value>, RequestError> {
        let data = match self.0.next().await {
            None => return Err(RequestError::Cut),
            Some(Err(EventStreamError::Transport(error))) => return Err(error.into()),
            Some(Err(error)) => return Err(RequestError::Unreadable(error.to_string())),
            Some(Ok(event)) => event.data,
        };
        if data == DONE {
            return Ok(None);
        }
        let chunk: Value = serde_json::from_str(&data)
            .map_err(|error| RequestError::Unreadable(format!("{error}: {data}")))?;
        if chunk.get("error").is_some_and(|error| !error.is_null()) {
            return Err(RequestError::Failed(chunk));
        }
        Ok(Some(chunk))
    }
}

/// Returns the text of the first choice of a chunk, of a completion or a chat; `None` if it has none.
pub fn chunk_text(chunk: &Value) -> Option<&str> {
    let choice = chunk.get("choices")?.get(0)?;
    let text = choice.get("text").or_else(|| choice.get("delta")?.get("content"));
    text?.as_str().filter(|text| !text.is_empty())
}

/// Returns the message of an error in OpenAI's form.
pub fn error_message(body: &Value) -> Option<&str> {
    body.get("error")?.get("message")?.as_str()
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;
    use http::StatusCode;
    use serde_json::json;

    use super::*;

    async fn answered(status: StatusCode, body: &'static str) -> Result<EventStream, RequestError> {
        let answer = move || async move { (status, [("retry-after", "7")], body) };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            axum::serve(listener, Router::new().route("/", get(answer))).await.unwrap();
        });
        // The library needs a TLS provider even for plain HTTP.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let response = send(http.get(url)).await;
        let stream = response.map(EventStream::new);
        server.abort();
        stream
    }

    async fn text_of(body: &'static str) -> Result<String, RequestError> {
        let (mut stream, mut text) = (answered(StatusCode::OK, body).await?, String::new());
        while let Some(chunk) = stream.next().await? {
            text.push_str(chunk_text(&chunk).unwrap_or_default());
        }
        Ok(text)
    }

    #[tokio::test]
    async fn a_complete_stream_is_read_to_its_closing_event() {
        let chunks = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n: comment\n\n\
            data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\r\n\r\ndata: [DONE]\n\n";
        assert_eq!(text_of(chunks).await.unwrap(), "ab");
    }

    #[tokio::test]
    async fn an_incomplete_stream_is_an_error() {
        let error = |body| async move { text_of(body).await.unwrap_err().to_string() };
        assert_eq!(error("data: {}\n\n").await, "the stream ended without [DONE]");
        assert_eq!(error("data: {\"error\":{\"message\":\"gone\"}}\n\ndata: [DONE]\n\n").await, "gone");
        assert!(error("data: {\n\n").await.starts_with("unreadable event: "));
    }

    #[tokio::test]
    async fn a_refusal_has_its_status_its_body_and_its_retry_time() {
        let body = "{\"error\":{\"message\":\"the queue is full\"}}";
        let error = answered(StatusCode::TOO_MANY_REQUESTS, body).await.unwrap_err();
        assert_eq!(error.to_string(), "429 Too Many Requests: the queue is full");
        let RequestError::Refused { retry_after, .. } = error else { panic!("{error}") };
        assert_eq!(retry_after.as_deref(), Some("7"));
        let error = answered(StatusCode::BAD_GATEWAY, "no JSON").await.unwrap_err();
        let RequestError::Refused { body, .. } = error else { panic!("{error}") };
        assert_eq!(body, json!("no JSON"));
    }

    #[test]
    fn a_chunk_without_text_has_none() {
        for empty in
            [json!({"choices": []}), json!({"choices": [{"delta": {"role": "assistant"}}]}), json!({})]
        {
            assert_eq!(chunk_text(&empty), None);
        }
    }
}
