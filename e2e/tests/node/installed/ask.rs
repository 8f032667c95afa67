//! Requests to tenants: completions and chats, complete or as streams.

use serde_json::{Value, json};
use sluice_client::{EventStream, chunk_text, send};

use super::{PROMPT, Product};

impl Product<'_> {
    /// Builds a request to a tenant.
    pub fn post(&self, tenant: &str, path: &str, body: &Value) -> reqwest::RequestBuilder {
        let request = self.http.post(format!("{}{path}", self.url(tenant)));
        request.header("content-type", "application/json").body(body.to_string())
    }

    /// Returns a completion, not streamed.
    pub async fn complete(&self, tenant: &str, tokens: u32) -> String {
        self.answer(tenant, PROMPT, tokens).await
    }

    /// Returns a completion of `prompt`, not streamed.
    pub async fn answer(&self, tenant: &str, prompt: &str, tokens: u32) -> String {
        let body = self.asked(tenant, COMPLETIONS, &completion(tenant, prompt, tokens, false)).await;
        one(&body)["text"].as_str().unwrap().to_owned()
    }

    /// Returns a streamed completion.
    pub async fn stream(&self, tenant: &str, tokens: u32) -> String {
        text_of(open(self.post(tenant, COMPLETIONS, &completion(tenant, PROMPT, tokens, true))).await).await
    }

    /// Returns the assistant's answer to [`PROMPT`], not streamed.
    pub async fn chat(&self, tenant: &str, tokens: u32) -> String {
        let body = self.asked(tenant, CHATS, &chat(tenant, tokens, false)).await;
        one(&body)["message"]["content"].as_str().unwrap().to_owned()
    }

    /// Returns a streamed chat answer.
    pub async fn chat_stream(&self, tenant: &str, tokens: u32) -> String {
        text_of(open(self.post(tenant, CHATS, &chat(tenant, tokens, true))).await).await
    }

    /// Returns the body of a response.
    ///
    /// # Panics
    /// If the status is not 200.
    async fn asked(&self, tenant: &str, path: &str, body: &Value) -> String {
        let answer = self.post(tenant, path, body).send().await.unwrap();
        let (status, body) = (answer.status(), answer.text().await.unwrap());
        assert_eq!(status, 200, "{body}");
        body
    }
}

/// Path of completions.
pub const COMPLETIONS: &str = "/v1/completions";
const CHATS: &str = "/v1/chat/completions";

/// Returns the only choice of a response.
fn one(body: &str) -> Value {
    serde_json::from_str::<Value>(body).unwrap()["choices"][0].take()
}

fn chat(tenant: &str, tokens: u32, stream: bool) -> Value {
    let messages = json!([{"role": "user", "content": PROMPT}]);
    json!({"model": tenant, "messages": messages, "max_tokens": tokens, "temperature": 0, "stream": stream})
}

/// Returns the body of a completion request.
pub fn completion(tenant: &str, prompt: &str, tokens: u32, stream: bool) -> Value {
    json!({"model": tenant, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": stream})
}

/// Opens a stream.
///
/// # Panics
/// If the request is refused.
pub async fn open(request: reqwest::RequestBuilder) -> EventStream {
    EventStream::new(send(request).await.unwrap())
}

/// Returns the text of the rest of a stream, of a completion or a chat.
///
/// # Panics
/// If the stream is cut.
pub async fn text_of(mut events: EventStream) -> String {
    let mut text = String::new();
    while let Some(chunk) = events.next().await.unwrap() {
        text.push_str(chunk_text(&chunk).unwrap_or_default());
    }
    text
}
