//! Reads the fields of a request that limits, pacing and metrics need; the engine validates the rest.

use axum::body::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::gateway::error::ApiError;
use crate::gateway::params::not_an_object;
use crate::gateway::prompt::{PROMPTS_MAX, Prompts};
use crate::gateway::values;

/// Field that is inserted into a streamed request without `stream_options`.
const INCLUDE_USAGE: &[u8] = br#""stream_options":{"include_usage":true},"#;

/// The fields that are read. A duplicate field is refused, because the engine might use the other value.
#[derive(Deserialize)]
struct RequestBody<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    stream: Option<&'a RawValue>,
    #[serde(borrow)]
    stream_options: Option<&'a RawValue>,
    #[serde(borrow)]
    n: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt: Option<&'a RawValue>,
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
}

/// A request that can be forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardedRequest {
    /// Whether the response is a stream.
    pub stream: bool,
    /// Whether the sidecar requested the usage and the client did not; then it is removed from the response.
    pub is_usage_injected: bool,
    /// Choices of all prompts, which each need a permit.
    pub choices: u32,
}

impl ForwardedRequest {
    /// Reads a body for a tenant that serves `names`.
    ///
    /// # Errors
    /// The body is not a JSON object, a field has the wrong type, or the model is not served.
    pub fn read(body: &[u8], names: &[String]) -> Result<ForwardedRequest, ApiError> {
        let read = RequestBody::read(body)?;
        let model: Option<String> = field("model", read.model)?;
        if let Some(name) = model.filter(|name| !names.contains(name)) {
            return Err(ApiError::model_not_found(&name));
        }
        let stream = field("stream", read.stream)?.unwrap_or(false);
        let usage_is_ours = stream && read.stream_options.is_none() && !has_stream_options(body);
        let prompts = read.prompt.map_or(Ok(1), |prompt| prompts(prompt).map(|prompts| prompts.count()))?;
        let prompts = u32::try_from(prompts).unwrap_or(u32::MAX);
        let choices = field::<u32>("n", read.n)?.unwrap_or(1).max(1).saturating_mul(prompts);
        Ok(ForwardedRequest { stream, is_usage_injected: usage_is_ours, choices })
    }
}

impl ForwardedRequest {
    /// Returns the body to send for `body`, from which this request was read.
    pub fn upstream_body(&self, body: Vec<u8>) -> Bytes {
        if self.is_usage_injected { with_usage(&body).into() } else { body.into() }
    }
}

/// Whether `stream_options` is present, also as `null`: an engine may use either value of a duplicate field.
fn has_stream_options(body: &[u8]) -> bool {
    serde_json::from_slice::<Map<String, Value>>(body).is_ok_and(|body| body.contains_key("stream_options"))
}

/// Inserts one field at the front of the object and leaves all other bytes unchanged.
fn with_usage(body: &[u8]) -> Vec<u8> {
    let open = body.iter().position(|byte| *byte == b'{').expect("an object with a field has a brace");
    let (front, rest) = body.split_at(open + 1);
    [front, INCLUDE_USAGE, rest].concat()
}

impl RequestBody<'_> {
    fn read(body: &[u8]) -> Result<RequestBody<'_>, ApiError> {
        serde_json::from_slice(body).map_err(|error| match duplicate_field(&error) {
            Some(name) => ApiError::invalid_param(&name, format!("`{name}` occurs twice")),
            None => not_an_object(body, &error),
        })
    }
}

/// Returns the duplicate field that serde's error names.
fn duplicate_field(error: &serde_json::Error) -> Option<String> {
    let message = error.to_string();
    Some(message.strip_prefix("duplicate field `")?.split('`').next()?.to_owned())
}

/// Deserializes one field as the native engine's requests do.
fn field<T: DeserializeOwned>(name: &str, value: Option<&RawValue>) -> Result<Option<T>, ApiError> {
    let Some(value) = value else { return Ok(None) };
    let value = serde_json::from_str(value.get())
        .map_err(|error| ApiError::invalid_param(name, format!("`{name}` cannot be read: {error}")))?;
    values::read_field(name, value)
}

fn prompts(prompt: &RawValue) -> Result<Prompts, ApiError> {
    let read: Prompts = field("prompt", Some(prompt))?.unwrap_or(Prompts::Texts(Vec::new()));
    if read.count() > PROMPTS_MAX {
        return Err(ApiError::invalid_param("prompt", format!("at most {PROMPTS_MAX} prompts")));
    }
    Ok(read)
}

/// Known prompt lengths of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenCounts {
    /// Tokens of the longest prompt given as token ids.
    pub known_tokens: usize,
    /// Requests to the engine (`POST /tokenize`), one per prompt given as text.
    pub tokenize_requests: Vec<Vec<u8>>,
}

/// Fields of a request that affect its prompt.
const PROMPT_FIELDS: [&str; 9] = [
    "model",
    "messages",
    "add_special_tokens",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "chat_template_kwargs",
    "tools",
    "mm_processor_kwargs",
];

impl TokenCounts {
    /// Returns the lengths of the prompts in `body`, which is valid. A text shorter than `limit` bytes is not counted:
    /// each of its tokens has at least one byte, except those that a template or the model adds.
    pub fn from_body(body: &[u8], limit: u32) -> Result<TokenCounts, ApiError> {
        let read = RequestBody::read(body)?;
        let mut lengths = TokenCounts { known_tokens: 0, tokenize_requests: Vec::new() };
        if read.messages.is_some() {
            lengths.tokenize_requests.push(tokenize_request(body, None));
        }
        let texts = match read.prompt.map(prompts).transpose()? {
            None => Vec::new(),
            Some(Prompts::Text(text)) => vec![text],
            Some(Prompts::Texts(texts)) => texts,
            Some(Prompts::Ids(ids)) => {
                lengths.known_tokens = ids.len();
                Vec::new()
            }
            Some(Prompts::IdLists(many)) => {
                lengths.known_tokens = many.iter().map(Vec::len).max().unwrap_or(0);
                Vec::new()
            }
        };
        let long = texts.into_iter().filter(|text| text.len() >= limit as usize);
        lengths.tokenize_requests.extend(long.map(|text| tokenize_request(body, Some(text))));
        Ok(lengths)
    }
}

/// Returns a `/tokenize` request for a prompt.
fn tokenize_request(body: &[u8], prompt: Option<String>) -> Vec<u8> {
    let all: Map<String, Value> = serde_json::from_slice(body).unwrap_or_default();
    let mut asked: Map<String, Value> =
        all.into_iter().filter(|(name, _)| PROMPT_FIELDS.contains(&name.as_str())).collect();
    if let Some(prompt) = prompt {
        asked.remove("messages");
        asked.insert("prompt".into(), prompt.into());
    }
    Value::Object(asked).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<ForwardedRequest, ApiError> {
        ForwardedRequest::read(body.as_bytes(), &["m".to_owned(), "org/m".to_owned()])
    }

    #[test]
    fn usage_is_injected_unless_client_sets_stream_options() {
        let body = r#" {"prompt":"a" ,"stream":true}"#;
        let asked = read(body).unwrap();
        let wanted = r#" {"stream_options":{"include_usage":true},"prompt":"a" ,"stream":true}"#;
        assert_eq!((&*asked.upstream_body(body.into()), asked.is_usage_injected), (wanted.as_bytes(), true));
        let silent = [
            r#"{"prompt":"a"}"#,
            r#"{"prompt":"a","stream":false}"#,
            r#"{"prompt":"a","stream":true,"stream_options":null}"#,
            r#"{"prompt":"a","stream":true,"stream_options":{"include_usage":false}}"#,
            r#"{"prompt":"a","stream":true,"stream_options":{"include_usage":true}}"#,
        ];
        for body in silent {
            let asked = read(body).unwrap();
            assert_eq!(
                (&*asked.upstream_body(body.into()), asked.is_usage_injected),
                (body.as_bytes(), false)
            );
        }
    }

    #[test]
    fn choices_multiply_prompts_by_n() {
        for (body, choices) in [
            (r#"{"prompt":"a"}"#, 1),
            (r#"{"messages":[],"n":3}"#, 3),
            (r#"{"prompt":["a","b"],"n":3}"#, 6),
            (r#"{"prompt":[1,2,3]}"#, 1),
            (r#"{"prompt":[[1],[2]]}"#, 2),
            (r#"{"prompt":"a","n":4294967295}"#, u32::MAX),
        ] {
            assert_eq!(read(body).unwrap().choices, choices, "{body}");
        }
    }

    #[test]
    fn ambiguous_bodies_are_refused() {
        let bad = [
            "",
            "[]",
            "{",
            r#"{"model":"m","model":"org/m"}"#,
            r#"{"stream":false,"stream":true}"#,
            r#"{"stream":"true"}"#,
            r#"{"stream":1}"#,
            r#"{"model":7}"#,
            r#"{"prompt":{"a":1}}"#,
            r#"{"n":-1}"#,
        ];
        for body in bad {
            let error = read(body).expect_err(body).body();
            assert_eq!(error["error"]["type"], "invalid_request_error", "{body}");
        }
        assert_eq!(read(r#"{"model":"x"}"#).unwrap_err(), ApiError::model_not_found("x"));
        assert!(read(r#"{"model":"org/m"}"#).is_ok());
    }

    #[test]
    fn id_prompts_are_counted_and_long_texts_tokenized() {
        let of = |body: &str| TokenCounts::from_body(body.as_bytes(), 4).unwrap();
        assert_eq!(of(r#"{"prompt":[1,2,3]}"#), TokenCounts { known_tokens: 3, tokenize_requests: vec![] });
        assert_eq!(of(r#"{"prompt":[[1],[2,3]]}"#).known_tokens, 2);
        assert_eq!(of(r#"{"prompt":"abc"}"#).tokenize_requests.len(), 0);
        let asked = of(r#"{"model":"m","prompt":["abcd","a"],"max_tokens":3}"#).tokenize_requests;
        assert_eq!(asked, [br#"{"model":"m","prompt":"abcd"}"#]);
        let asked = of(r#"{"messages":[{"role":"user","content":""}],"stream":true}"#).tokenize_requests;
        assert_eq!(asked, [br#"{"messages":[{"content":"","role":"user"}]}"#]);
    }
}
