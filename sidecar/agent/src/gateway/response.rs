//! Answers on the wire: server-sent events or one JSON object, for both endpoints.

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

use super::error::ApiError;
use super::limits::RequestPermit;
use super::logprobs;
use super::token_stream::{FinishReason, StreamItem, TokenStream, TokenText};
use crate::model::text::Text;

/// Room for an event of one token without log-probabilities, so that it is written without growing.
const EVENT_BYTES: usize = 320;

/// Which endpoint is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/completions`
    Completion,
    /// `/v1/chat/completions`
    Chat,
}

impl Endpoint {
    /// The parameter that holds the prompt.
    pub fn prompt_param(self) -> &'static str {
        match self {
            Endpoint::Completion => "prompt",
            Endpoint::Chat => "messages",
        }
    }
}

/// What all chunks of an answer share.
#[derive(Debug)]
pub struct ResponseMeta {
    /// Endpoint.
    pub endpoint: Endpoint,
    /// Identity of the answer.
    pub id: String,
    /// Unix time, seconds.
    pub created: u64,
    /// Model as reported.
    pub model: String,
    /// Log-probabilities were asked for.
    pub logprobs: bool,
    /// To name tokens in log-probabilities.
    pub text: Arc<Text>,
    /// Tokens of all prompts. As with OpenAI and vLLM, a prompt counts once however many choices are made of it.
    pub prompt_tokens: u32,
    /// Usage in a last chunk.
    pub include_usage: bool,
    /// Usage so far in every chunk.
    pub continuous_usage: bool,
    /// Holds the request's place among the open ones.
    pub permit: RequestPermit,
}

/// `usage`.
fn usage_json(prompt: u32, completion: u32) -> Value {
    json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion})
}

/// Generated tokens of all choices that have ended.
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
            // OpenAI: every chunk has the field once a last one with the usage was asked for.
            envelope["usage"] = Value::Null;
        }
        envelope
    }

    /// A chunk, written without an intermediate [`Value`]: this runs once for every token.
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

    /// Chat streams open with the role.
    fn role_chunk(&self, index: usize) -> Option<Bytes> {
        let delta = json!({"role": "assistant", "content": ""});
        let choice = json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": null});
        (self.endpoint == Endpoint::Chat).then(|| event(&self.envelope(true, vec![choice])))
    }

    /// What follows when all choices have ended.
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

/// One JSON object with all choices, once all have ended.
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

/// Server-sent events, choices interleaved as they come. The answer begins with the first event of any choice, so that a
/// refusal or an early failure is a status and not a broken stream.
///
/// # Errors
/// A choice that was refused or failed before any had a token.
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
    // Nearly every answer has one choice; it does without what watches many.
    let choices = match <[ChoiceStream; 1]>::try_from(choices) {
        Ok([choice]) => Either::Left(choice),
        Err(choices) => Either::Right(stream::select_all(choices)),
    };
    let events = choices.chain(stream::once(async move { frame.final_chunks(&generated) }));
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    Ok((headers, Body::from_stream(events.map(Ok::<_, Infallible>))).into_response())
}

/// One server-sent event as bytes on the wire. JSON has no line breaks outside its texts and escapes those inside.
fn event(data: &impl Serialize) -> Bytes {
    let mut event = Vec::with_capacity(EVENT_BYTES);
    event.extend_from_slice(b"data: ");
    serde_json::to_writer(&mut event, data).expect("texts and numbers can be written to memory");
    event.extend_from_slice(b"\n\n");
    event.into()
}

/// Waits until one choice has something to write; `None` for those that have nothing yet.
async fn first_events(generations: &mut [TokenStream]) -> Result<Vec<Option<StreamItem>>, ApiError> {
    std::future::poll_fn(|cx| {
        // All are asked, so that an error of any is seen before a token of another begins the answer.
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

/// One choice of a stream.
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
