//! The OpenAI API of a tenant whose engine is proxied: who may ask, what is held, what is sent again.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::Value;
use sluice_policy::token_deposit::Pacing;
use sluice_scheduler::UnavailableReason;
use sluice_wire::config::LimitsConfig;
use tokio::sync::watch;

use super::engine::{Engine, Trouble};
use super::headers::{for_client, for_engine};
use super::lobby::Lobby;
use super::paced::{Account, Manner, Paced};
use super::request::{Asked, Lengths};
use super::sse::Usage;
use crate::gateway::Keys;
use crate::gateway::body::{JsonBody, TakesBodies};
use crate::gateway::error::ApiError;
use crate::gateway::open::OpenRequests;
use crate::gateway::scrape::Scrape;
use crate::metrics::Metrics;

/// How often a request is sent at most: one that ends its engine every time must not do so for ever.
const SENDS_MAX: u32 = 3;
/// Most bytes of an answer that is not streamed.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// What the gateway is made of.
#[derive(Debug)]
pub struct Gateway {
    /// The engine.
    pub engine: Engine,
    /// Where requests wait for it.
    pub lobby: Lobby,
    /// Figures.
    pub metrics: Arc<Metrics>,
    /// Names of the model.
    pub names: Vec<String>,
    /// Limits on clients.
    pub limits: LimitsConfig,
    /// Pace of streams.
    pub stream_pacing: Pacing,
    /// Requests open now.
    pub open: OpenRequests,
    /// Says true when whatever is still open is to end.
    pub cut: watch::Receiver<bool>,
}

impl TakesBodies for Gateway {
    fn max_body_bytes(&self) -> u64 {
        self.limits.max_body_bytes
    }

    fn open(&self) -> &OpenRequests {
        &self.open
    }
}

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
const MODELS: &str = "/v1/models";

impl Gateway {
    /// The routes of `:8000`.
    pub fn router(self: Arc<Self>, keys: Keys, scrape: Scrape) -> Router {
        let api = Router::new()
            .route(COMPLETIONS, post(completions))
            .route(CHAT, post(chat))
            .route(MODELS, get(models))
            .route("/v1/models/{*id}", get(model))
            .with_state(self);
        crate::gateway::front(api, keys, scrape)
    }
}

type Shared = State<Arc<Gateway>>;

async fn completions(
    State(gateway): Shared,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Response, ApiError> {
    gateway.answer(COMPLETIONS, &headers, body).await
}

async fn chat(State(gateway): Shared, headers: HeaderMap, body: JsonBody) -> Result<Response, ApiError> {
    gateway.answer(CHAT, &headers, body).await
}

async fn models(State(gateway): Shared) -> Result<Response, ApiError> {
    let (status, headers, text) = gateway.listed().await?;
    Ok((status, for_client(&headers), text).into_response())
}

async fn model(State(gateway): Shared, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    let (_, _, text) = gateway.listed().await?;
    let list: Value = serde_json::from_slice(&text).unwrap_or_default();
    let found = list["data"].as_array().and_then(|data| data.iter().find(|model| model["id"] == id.as_str()));
    found.cloned().map(Json).ok_or_else(|| ApiError::no_model(&id))
}

/// What is sent.
struct Sent<'a> {
    path: &'a str,
    headers: HeaderMap,
    body: Bytes,
    /// The event that brings the usage is for us alone.
    keep_usage: bool,
}

/// A request without an answer.
struct Missed {
    account: Box<Account>,
    why: Miss,
}

/// Why a request has no answer.
enum Miss {
    /// Nothing of one has come: it may be sent again.
    Again(Trouble),
    /// Its client is told.
    Told(ApiError),
}

impl Missed {
    fn again(account: Box<Account>, trouble: Trouble) -> Missed {
        Missed { account, why: Miss::Again(trouble) }
    }

    fn told(account: Box<Account>, error: ApiError) -> Missed {
        Missed { account, why: Miss::Told(error) }
    }
}

impl Gateway {
    fn hold(&self) -> Duration {
        Duration::from_secs(u64::from(self.limits.hold_seconds))
    }

    /// The models, as the engine lists them. It need not be awake for that, and is not woken.
    async fn listed(&self) -> Result<(StatusCode, HeaderMap, Vec<u8>), ApiError> {
        self.lobby.there(self.hold()).await?;
        self.engine.get(MODELS).await.map_err(|trouble| ApiError::engine(trouble.to_string()))
    }

    async fn answer(
        self: &Arc<Self>,
        path: &str,
        headers: &HeaderMap,
        body: JsonBody,
    ) -> Result<Response, ApiError> {
        let arrived = Instant::now();
        // All that can be refused is refused before it takes a place or wakes the engine.
        let (bytes, gateway) = (body.bytes().len(), self.clone());
        let read = move || {
            let asked = Asked::read(body.bytes(), &gateway.names)?;
            let questions = gateway.questions(body.bytes())?;
            Ok::<_, ApiError>((asked, questions, body))
        };
        let (asked, questions, body) = self.open.parse(bytes, read).await?;
        let open = self.open.enter(asked.choices)?;
        let place = self.lobby.enter(self.limits.max_queued_requests, self.hold())?;
        let account = Box::new(Account::new(place, open, arrived, self.metrics.clone(), asked.stream));
        // The body may have to be sent again: its bytes count until the answer has begun.
        let (body, _room) = body.into_parts();
        let body = asked.sent(body);
        let sent = Sent { path, headers: for_engine(headers), body, keep_usage: asked.usage_is_ours };
        let mut cut = self.cut.clone();
        tokio::select! {
            answer = self.send(&sent, questions, account) => answer,
            // A sender that has gone cannot say it any more.
            _ = cut.wait_for(|cut| *cut) => Err(ApiError::outage(&UnavailableReason::ShuttingDown)),
        }
    }

    /// Sends a request until it has an answer, or its time or its turns are over.
    async fn send(
        &self,
        sent: &Sent<'_>,
        mut questions: Vec<Vec<u8>>,
        mut account: Box<Account>,
    ) -> Result<Response, ApiError> {
        let mut sends = 0;
        loop {
            let Missed { account: missed, why } = match self.once(sent, &mut questions, account).await {
                Ok(answer) => return Ok(answer),
                Err(missed) => missed,
            };
            account = missed;
            account.anew();
            let error = match why {
                Miss::Told(error) => Some(error),
                Miss::Again(trouble) => {
                    tracing::debug!(%trouble, "a request has no answer");
                    sends += u32::from(!matches!(trouble, Trouble::Unreachable(_)));
                    self.metrics.resent();
                    let over = (sends >= SENDS_MAX).then(|| ApiError::engine(trouble.to_string()));
                    match over {
                        Some(error) => Some(error),
                        None => account.place.looked_at().await.err(),
                    }
                }
            };
            if let Some(error) = error {
                account.told(&error);
                return Err(error);
            }
        }
    }

    async fn once(
        &self,
        sent: &Sent<'_>,
        questions: &mut Vec<Vec<u8>>,
        mut account: Box<Account>,
    ) -> Result<Response, Missed> {
        if let Err(error) = account.place.awake().await {
            return Err(Missed::told(account, error));
        }
        if let Err(why) = self.short_enough(sent.path, questions).await {
            return Err(Missed { account, why });
        }
        let (headers, body) = (sent.headers.clone(), sent.body.clone());
        let response = match self.engine.post(sent.path, headers, body).await {
            Ok(response) => response,
            Err(trouble) => return Err(Missed::again(account, trouble)),
        };
        let status = response.status();
        if status.is_server_error() && self.engine.health().await.is_err() {
            // It is the engine that is broken, not the request.
            return Err(Missed::again(account, Trouble::Status(status.as_u16())));
        }
        if status.is_success() && is_stream(response.headers()) {
            return self.streamed(sent.keep_usage, response, account).await;
        }
        whole(response, account).await
    }

    async fn streamed(
        &self,
        keep_usage: bool,
        response: reqwest::Response,
        account: Box<Account>,
    ) -> Result<Response, Missed> {
        let (status, headers) = (response.status(), for_client(response.headers()));
        let upstream = response.bytes_stream().map(|come| come.map_err(Trouble::from)).boxed();
        let mut cut = self.cut.clone();
        let cut = async move { drop(cut.wait_for(|cut| *cut).await) };
        let manner = Manner { pacing: self.stream_pacing, keep_usage };
        match Paced::new(upstream, cut, manner, account).begun().await {
            Ok(paced) => {
                let body = Body::from_stream(paced.map(Ok::<Bytes, Infallible>));
                Ok((status, headers, body).into_response())
            }
            Err(account) => Err(Missed::again(account, Trouble::Broken("its stream did not begin".into()))),
        }
    }

    /// What must be asked of the engine to know how long the prompts in `body` are.
    fn questions(&self, body: &[u8]) -> Result<Vec<Vec<u8>>, ApiError> {
        let Some(limit) = self.limits.max_prompt_tokens else { return Ok(Vec::new()) };
        let Lengths { known, to_ask } = Lengths::of(body, limit)?;
        self.within(known, "prompt").map(|()| to_ask)
    }

    fn within(&self, tokens: usize, param: &str) -> Result<(), ApiError> {
        match self.limits.max_prompt_tokens {
            Some(limit) if tokens > limit as usize => {
                Err(ApiError::param(param, format!("the prompt has {tokens} tokens, the limit is {limit}")))
            }
            _ => Ok(()),
        }
    }

    /// Has the engine count what only it can count. One that does not count sets no limit.
    async fn short_enough(&self, path: &str, questions: &mut Vec<Vec<u8>>) -> Result<(), Miss> {
        let param = if path == CHAT { "messages" } else { "prompt" };
        while let Some(question) = questions.last() {
            let tokens = self.engine.tokens_of(question.clone()).await.map_err(Miss::Again)?;
            self.within(tokens.unwrap_or(0) as usize, param).map_err(Miss::Told)?;
            questions.pop();
        }
        Ok(())
    }
}

fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("text/event-stream")
}

/// What is read of an answer that is not streamed.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Whole {
    usage: Option<Usage>,
    choices: Vec<Ended>,
}

#[derive(Deserialize)]
struct Ended {
    #[serde(default)]
    finish_reason: Option<String>,
}

/// An answer in one piece. It is passed on when all of it has come, so that one that breaks off can be asked for again.
async fn whole(mut response: reqwest::Response, mut account: Box<Account>) -> Result<Response, Missed> {
    let (status, headers) = (response.status(), for_client(response.headers()));
    let mut text = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(piece)) => text.extend_from_slice(&piece),
            Ok(None) => break,
            Err(error) => return Err(Missed::again(account, error.into())),
        }
        if text.len() > MAX_ANSWER_BYTES {
            let error = ApiError::engine(format!("the answer has more than {MAX_ANSWER_BYTES} bytes"));
            return Err(Missed::told(account, error));
        }
    }
    let read: Whole = serde_json::from_slice(&text).unwrap_or_default();
    let end = read.choices.iter().find_map(|choice| choice.finish_reason.clone());
    account.usage = read.usage;
    account.ended(if status.is_success() { end.as_deref().unwrap_or("stop") } else { "error" });
    account.failed = status.is_server_error();
    Ok((status, headers, text).into_response())
}
