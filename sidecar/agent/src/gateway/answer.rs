//! Answers on the wire: server-sent events or one JSON object, for both endpoints.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;

use axum::Json;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream, StreamExt};
use serde::Serialize;
use serde_json::{Value, json};

use super::error::ApiError;
use super::generate::{Emission, Generation, Piece, Reason};
use super::logprobs;
use super::open::OpenRequest;
use crate::model::text::Text;

/// Which endpoint is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `/v1/completions`
    Completion,
    /// `/v1/chat/completions`
    Chat,
}

/// What all chunks of an answer share.
#[derive(Debug)]
pub struct Frame {
    /// Endpoint.
    pub kind: Kind,
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
    /// Usage in a last chunk.
    pub include_usage: bool,
    /// Usage so far in every chunk.
    pub continuous_usage: bool,
    /// Holds the request's place among the open ones.
    pub open: OpenRequest,
}

/// Tokens of all choices.
#[derive(Debug, Default)]
struct Usage {
    prompt: AtomicU32,
    completion: AtomicU32,
}

impl Usage {
    fn json(&self) -> Value {
        let (prompt, completion) =
            (self.prompt.load(Ordering::Relaxed), self.completion.load(Ordering::Relaxed));
        json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion})
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

impl Frame {
    fn object(&self, chunk: bool) -> &'static str {
        match (self.kind, chunk) {
            (Kind::Completion, _) => "text_completion",
            (Kind::Chat, false) => "chat.completion",
            (Kind::Chat, true) => "chat.completion.chunk",
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
        pieces: &[Piece],
        reason: Option<Reason>,
        usage: Option<Value>,
    ) -> String {
        let (logprobs, finish_reason) = (self.logprobs(pieces), reason.map(Reason::label));
        let choice = match self.kind {
            Kind::Completion => ChunkChoice::Text { index, text, logprobs, finish_reason },
            Kind::Chat => {
                let delta = Delta { content: Some(text).filter(|text| reason.is_none() || !text.is_empty()) };
                ChunkChoice::Delta { index, delta, logprobs, finish_reason }
            }
        };
        let Frame { id, created, model, .. } = self;
        let usage = usage.or(self.include_usage.then_some(Value::Null));
        let chunk =
            Chunk { id, object: self.object(true), created: *created, model, choices: [choice], usage };
        serde_json::to_string(&chunk).expect("texts and numbers can be written")
    }

    fn logprobs(&self, pieces: &[Piece]) -> Value {
        match (self.logprobs && !pieces.is_empty(), self.kind) {
            (false, _) => Value::Null,
            (true, Kind::Completion) => logprobs::completion(&self.text, pieces),
            (true, Kind::Chat) => logprobs::chat(&self.text, pieces),
        }
    }

    /// Chat streams open with the role.
    fn opening(&self, index: usize) -> Option<String> {
        let delta = json!({"role": "assistant", "content": ""});
        let choice = json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": null});
        (self.kind == Kind::Chat).then(|| self.envelope(true, vec![choice]).to_string())
    }

    fn choice(&self, index: usize, text: &str, pieces: &[Piece], reason: Reason) -> Value {
        let logprobs = self.logprobs(pieces);
        match self.kind {
            Kind::Completion => {
                json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason.label()})
            }
            Kind::Chat => {
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
pub async fn whole(frame: Frame, generations: Vec<Generation>) -> Result<Response, ApiError> {
    let usage = Usage::default();
    let collected = generations.into_iter().enumerate().map(|(index, g)| collect(&frame, &usage, index, g));
    let choices = futures_util::future::try_join_all(collected).await?;
    let mut body = frame.envelope(false, choices);
    body["usage"] = usage.json();
    Ok(Json(body).into_response())
}

async fn collect(
    frame: &Frame,
    usage: &Usage,
    index: usize,
    mut generation: Generation,
) -> Result<Value, ApiError> {
    let (mut text, mut all) = (String::new(), Vec::new());
    loop {
        match generation.next().await? {
            Emission::Pieces(pieces) => {
                pieces.iter().for_each(|piece| text.push_str(&piece.text));
                if frame.logprobs {
                    all.extend(pieces);
                }
            }
            Emission::End(reason) => {
                let (prompt, completion) = generation.usage();
                usage.prompt.fetch_add(prompt, Ordering::Relaxed);
                usage.completion.fetch_add(completion, Ordering::Relaxed);
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
pub async fn streamed(frame: Frame, mut generations: Vec<Generation>) -> Result<Response, ApiError> {
    let first = first_events(&mut generations).await?;
    let (frame, usage) = (Arc::new(frame), Arc::new(Usage::default()));
    let choices = generations.into_iter().zip(first).enumerate().map(|(index, (generation, first))| {
        let opening = frame.opening(index).into_iter().map(Ok);
        let choice = Choice { frame: frame.clone(), usage: usage.clone(), index, generation, first };
        stream::iter(opening).chain(choice.events()).boxed()
    });
    let choices: Vec<_> = choices.collect();
    let closing = Closing { frame, usage };
    let events = stream::select_all(choices).chain(stream::iter([()]).flat_map(move |()| closing.events()));
    Ok(Sse::new(events.map(event)).into_response())
}

/// Waits until one choice has something to write; `None` for those that have nothing yet.
async fn first_events(generations: &mut [Generation]) -> Result<Vec<Option<Emission>>, ApiError> {
    std::future::poll_fn(|cx| {
        // All are asked, so that an error of any is seen before a token of another begins the answer. `next` loses nothing
        // when it is dropped while it waits.
        let mut asked = generations.iter_mut().map(|generation| match pin!(generation.next()).poll(cx) {
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

/// A chunk, or the error that ends the choice, or the closing mark.
fn event(item: Result<String, Option<ApiError>>) -> Result<Event, Infallible> {
    Ok(match item {
        Ok(chunk) => Event::default().data(chunk),
        Err(Some(error)) => Event::default().data(error.body().to_string()),
        Err(None) => Event::default().data("[DONE]"),
    })
}

/// One choice of a stream.
struct Choice {
    frame: Arc<Frame>,
    usage: Arc<Usage>,
    index: usize,
    generation: Generation,
    first: Option<Emission>,
}

impl Choice {
    fn events(self) -> impl Stream<Item = Result<String, Option<ApiError>>> {
        stream::unfold(Some(self), |state| async {
            let mut choice = state?;
            let next = match choice.first.take() {
                Some(first) => Ok(first),
                None => choice.generation.next().await,
            };
            Some(match next {
                Ok(Emission::Pieces(pieces)) => (Ok(choice.write(&pieces)), Some(choice)),
                Ok(Emission::End(reason)) => (Ok(choice.end(reason)), None),
                Err(error) => (Err(Some(error)), None),
            })
        })
    }

    fn write(&self, pieces: &[Piece]) -> String {
        let text: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
        let usage = self.frame.continuous_usage.then(|| {
            let (prompt, completion) = self.generation.usage();
            json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion})
        });
        self.frame.chunk(self.index, &text, pieces, None, usage)
    }

    fn end(&self, reason: Reason) -> String {
        let (prompt, completion) = self.generation.usage();
        self.usage.prompt.fetch_add(prompt, Ordering::Relaxed);
        self.usage.completion.fetch_add(completion, Ordering::Relaxed);
        self.frame.chunk(self.index, "", &[], Some(reason), None)
    }
}

/// The end of a stream.
struct Closing {
    frame: Arc<Frame>,
    usage: Arc<Usage>,
}

impl Closing {
    fn events(&self) -> impl Stream<Item = Result<String, Option<ApiError>>> + use<> {
        let usage = self.frame.include_usage.then(|| {
            let mut chunk = self.frame.envelope(true, Vec::new());
            chunk["usage"] = self.usage.json();
            Ok(chunk.to_string())
        });
        stream::iter(usage.into_iter().chain([Err(None)]))
    }
}
