//! Responses of both endpoints: server-sent events or one JSON object.

use std::borrow::Cow;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, ready};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::future::Either;
use futures_util::stream::{self, Stream, StreamExt};
use serde::Serialize;
use serde_json::{Value, json};

use super::endpoint::Endpoint;
use super::error::ApiError;
use super::limits::RequestPermit;
use super::logprobs;
use super::token_stream::{FinishReason, StreamItem, TokenStream, TokenText};
use crate::model::text::Text;

/// Initial buffer for an event: fits one token without log-probabilities.
const EVENT_BYTES: usize = 320;

/// Data that all chunks of a response share.
#[derive(Debug)]
pub struct ResponseMeta {
    /// Endpoint.
    pub endpoint: Endpoint,
    /// Id of the response.
    pub id: String,
    /// Creation time, Unix seconds.
    pub created: u64,
    /// Reported model name.
    pub model: String,
    /// Whether log-probabilities were requested.
    pub logprobs: bool,
    /// Tokenizer, to name tokens in log-probabilities.
    pub text: Arc<Text>,
    /// Tokens of all prompts. As with OpenAI and vLLM, a prompt counts once for any number of choices.
    pub prompt_tokens: u32,
    /// Whether a last chunk reports the usage.
    pub include_usage: bool,
    /// Whether every chunk reports the usage so far.
    pub continuous_usage: bool,
    /// Permit of the open request.
    pub permit: RequestPermit,
}

/// Returns the `usage` object.
fn usage_json(prompt: u32, completion: u32) -> Value {
    json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion})
}

/// Generated tokens of all finished choices.
#[derive(Debug, Default)]
struct GeneratedTokens(AtomicU32);

impl GeneratedTokens {
    fn add(&self, generation: &TokenStream) {
        let (_, completion) = generation.usage();
        self.0.fetch_add(completion, Ordering::Relaxed);
    }
}

#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: [ChunkChoice<'a>; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Value>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum ChunkChoice<'a> {
    Text { index: usize, text: &'a str, logprobs: Value, finish_reason: Option<&'static str> },
    Delta { index: usize, delta: Delta<'a>, logprobs: Value, finish_reason: Option<&'static str> },
}

#[derive(Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
}

impl ResponseMeta {
    fn object(&self, chunk: bool) -> &'static str {
        match (self.endpoint, chunk) {
            (Endpoint::Completion, _) => "text_completion",
            (Endpoint::Chat, false) => "chat.completion",
            (Endpoint::Chat, true) => "chat.completion.chunk",
        }
    }

    fn envelope(&self, chunk: bool, choices: Vec<Value>) -> Value {
        let object = self.object(chunk);
        let mut envelope = json!({"id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices});
        if chunk && self.include_usage {
            // As OpenAI: every chunk has the field if a last chunk with the usage was requested.
            envelope["usage"] = Value::Null;
        }
        envelope
    }

    /// Encodes a chunk without an intermediate [`Value`], because this runs for every token.
    fn chunk(
        &self,
        index: usize,
        text: &str,
        pieces: &[TokenText],
        reason: Option<FinishReason>,
        usage: Option<Value>,
    ) -> Bytes {
        let (logprobs, finish_reason) = (self.logprobs(pieces), reason.map(FinishReason::label));
        let choice = match self.endpoint {
            Endpoint::Completion => ChunkChoice::Text { index, text, logprobs, finish_reason },
            Endpoint::Chat => {
                let delta = Delta { content: Some(text).filter(|text| reason.is_none() || !text.is_empty()) };
                ChunkChoice::Delta { index, delta, logprobs, finish_reason }
            }
        };
        let ResponseMeta { id, created, model, .. } = self;
        let usage = usage.or(self.include_usage.then_some(Value::Null));
        event(&Chunk { id, object: self.object(true), created: *created, model, choices: [choice], usage })
    }

    fn logprobs(&self, pieces: &[TokenText]) -> Value {
        match (self.logprobs && !pieces.is_empty(), self.endpoint) {
            (false, _) => Value::Null,
            (true, Endpoint::Completion) => logprobs::completion(&self.text, pieces),
            (true, Endpoint::Chat) => logprobs::chat(&self.text, pieces),
        }
    }

    /// Returns the first chunk of a chat stream, which carries the role.
    fn role_chunk(&self, index: usize) -> Option<Bytes> {
        let delta = json!({"role": "assistant", "content": ""});
        let choice = json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": null});
        (self.endpoint == Endpoint::Chat).then(|| event(&self.envelope(true, vec![choice])))
    }

    /// Returns the chunks after the end of all choices.
    fn final_chunks(&self, generated: &GeneratedTokens) -> Bytes {
        let done = Bytes::from_static(b"data: [DONE]\n\n");
        if !self.include_usage {
            return done;
        }
        let mut chunk = self.envelope(true, Vec::new());
        chunk["usage"] = self.usage(generated);
        [event(&chunk), done].concat().into()
    }

    fn usage(&self, generated: &GeneratedTokens) -> Value {
        usage_json(self.prompt_tokens, generated.0.load(Ordering::Relaxed))
    }

    fn choice(&self, index: usize, text: &str, pieces: &[TokenText], reason: FinishReason) -> Value {
        let logprobs = self.logprobs(pieces);
        match self.endpoint {
            Endpoint::Completion => {
                json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason.label()})
            }
            Endpoint::Chat => {
                let message = json!({"role": "assistant", "content": text, "refusal": null});
                json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason.label()})
            }
        }
    }
}

/// Returns one JSON object with all choices, after all have finished.
///
/// # Errors
/// The first failure among the choices; the others are cancelled.
pub async fn full_response(frame: ResponseMeta, generations: Vec<TokenStream>) -> Result<Response, ApiError> {
    let generated = GeneratedTokens::default();
    let collected =
        generations.into_iter().enumerate().map(|(index, g)| collect_choice(&frame, &generated, index, g));
    let choices = futures_util::future::try_join_all(collected).await?;
    let mut body = frame.envelope(false, choices);
    body["usage"] = frame.usage(&generated);
    Ok(Json(body).into_response())
}

async fn collect_choice(
    frame: &ResponseMeta,
    generated: &GeneratedTokens,
    index: usize,
    mut generation: TokenStream,
) -> Result<Value, ApiError> {
    let (mut text, mut all) = (String::new(), Vec::new());
    loop {
        match generation.next().await? {
            StreamItem::Tokens(pieces) => {
                pieces.iter().for_each(|piece| text.push_str(&piece.text));
                if frame.logprobs {
                    all.extend(pieces);
                }
            }
            StreamItem::End(reason) => {
                generated.add(&generation);
                return Ok(frame.choice(index, &text, &all, reason));
            }
        }
    }
}

/// Returns server-sent events with the choices interleaved. The response begins with the first event of any choice, so
/// that a refusal or an early failure becomes a status instead of a broken stream.
///
/// # Errors
/// A choice was refused or failed before any choice had a token.
pub async fn stream_response(
    frame: ResponseMeta,
    mut generations: Vec<TokenStream>,
) -> Result<Response, ApiError> {
    let first = first_events(&mut generations).await?;
    let (frame, generated) = (Arc::new(frame), Arc::new(GeneratedTokens::default()));
    let choices = generations.into_iter().zip(first).enumerate().map(|(index, (generation, first))| {
        let opening = frame.role_chunk(index);
        ChoiceStream {
            meta: frame.clone(),
            generated: generated.clone(),
            index,
            stream: generation,
            role_chunk: opening,
            first_item: first,
            is_finished: false,
        }
    });
    let choices: Vec<_> = choices.collect();
    // Nearly every response has one choice, which needs no `select_all`.
    let choices = match <[ChoiceStream; 1]>::try_from(choices) {
        Ok([choice]) => Either::Left(choice),
        Err(choices) => Either::Right(stream::select_all(choices)),
    };
    let events = choices.chain(stream::once(async move { frame.final_chunks(&generated) }));
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    Ok((headers, Body::from_stream(events.map(Ok::<_, Infallible>))).into_response())
}

/// Encodes one server-sent event. JSON has no line breaks outside of strings and escapes those inside.
fn event(data: &impl Serialize) -> Bytes {
    let mut event = Vec::with_capacity(EVENT_BYTES);
    event.extend_from_slice(b"data: ");
    serde_json::to_writer(&mut event, data).expect("texts and numbers can be written to memory");
    event.extend_from_slice(b"\n\n");
    event.into()
}

/// Waits until one choice has an item; `None` for each choice without one.
async fn first_events(generations: &mut [TokenStream]) -> Result<Vec<Option<StreamItem>>, ApiError> {
    std::future::poll_fn(|cx| {
        // All choices are polled, so that an error of one is seen before a token of another begins the response.
        let mut asked = generations.iter_mut().map(|generation| match generation.poll_next(cx) {
            Poll::Ready(Ok(emission)) => Ok(Some(emission)),
            Poll::Ready(Err(error)) => Err(error),
            Poll::Pending => Ok(None),
        });
        match asked.by_ref().collect::<Result<Vec<_>, _>>() {
            Ok(events) if events.iter().all(Option::is_none) => Poll::Pending,
            ready => Poll::Ready(ready),
        }
    })
    .await
}

/// One choice of a streamed response.
struct ChoiceStream {
    meta: Arc<ResponseMeta>,
    generated: Arc<GeneratedTokens>,
    index: usize,
    stream: TokenStream,
    role_chunk: Option<Bytes>,
    first_item: Option<StreamItem>,
    is_finished: bool,
}

impl Stream for ChoiceStream {
    type Item = Bytes;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let choice = self.get_mut();
        if choice.is_finished {
            return Poll::Ready(None);
        }
        if let Some(opening) = choice.role_chunk.take() {
            return Poll::Ready(Some(opening));
        }
        let next = match choice.first_item.take() {
            Some(first) => Ok(first),
            None => ready!(choice.stream.poll_next(cx)),
        };
        Poll::Ready(Some(choice.encode(next)))
    }
}

impl ChoiceStream {
    fn encode(&mut self, next: Result<StreamItem, ApiError>) -> Bytes {
        self.is_finished = !matches!(next, Ok(StreamItem::Tokens(_)));
        if self.is_finished {
            self.generated.add(&self.stream);
        }
        match next {
            Ok(StreamItem::Tokens(pieces)) => self.encode_tokens(&pieces),
            Ok(StreamItem::End(reason)) => self.meta.chunk(self.index, "", &[], Some(reason), None),
            Err(error) => event(&error.body()),
        }
    }

    fn encode_tokens(&self, pieces: &[TokenText]) -> Bytes {
        let text: Cow<'_, str> = match pieces {
            [piece] => piece.text.as_str().into(),
            pieces => pieces.iter().map(|piece| piece.text.as_str()).collect::<String>().into(),
        };
        let usage = self.meta.continuous_usage.then(|| {
            let (prompt, completion) = self.stream.usage();
            usage_json(prompt, completion)
        });
        self.meta.chunk(self.index, &text, pieces, None, usage)
    }
}
