//! `/v1/completions` and `/v1/chat/completions`: from a body to answers under way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value};
use sluice_policy::token_deposit::Pacing;
use sluice_scheduler::UnavailableReason;

use super::Gateway;
use super::answer::{self, Frame, Kind};
use super::body::JsonBody;
use super::detok::{Detokenizer, StopFilter};
use super::error::{ApiError, RETRY_SOON_SECONDS};
use super::generate::{Generation, Setup};
use super::messages;
use super::params::{Common, StreamOptions, parse};
use super::prompt::{Prompt, PromptRules, Prompts};
use crate::metrics::AwaitedToken;
use crate::service::{Status, Submission};

/// Most alternatives reported with a token.
const TOP_LOGPROBS_MAX: u32 = 20;
/// OpenAI's default for completions.
const COMPLETION_TOKENS_DEFAULT: u32 = 16;

#[derive(Deserialize)]
struct Completion {
    prompt: Prompts,
    logprobs: Option<u32>,
}

#[derive(Deserialize)]
struct Chat {
    messages: Vec<Map<String, Value>>,
    #[serde(default)]
    logprobs: bool,
    top_logprobs: Option<u32>,
    add_generation_prompt: Option<bool>,
}

/// What both endpoints come to.
struct Order {
    kind: Kind,
    common: Common,
    prompts: Vec<Prompt>,
    logprobs: Option<u8>,
}

/// An order found good.
struct Accepted {
    model: String,
    options: StreamOptions,
    stops: Vec<String>,
    submissions: Vec<Submission>,
}

/// `POST /v1/completions`
pub async fn completions(State(gateway): State<Arc<Gateway>>, body: JsonBody) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let (bytes, reader) = (body.bytes().len(), gateway.clone());
    let order = gateway.open.parse(bytes, move || reader.completion(body.bytes())).await?;
    gateway.answer(order, arrived).await
}

/// `POST /v1/chat/completions`
pub async fn chat(State(gateway): State<Arc<Gateway>>, body: JsonBody) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let (bytes, reader) = (body.bytes().len(), gateway.clone());
    let order = gateway.open.parse(bytes, move || reader.chat(body.bytes())).await?;
    gateway.answer(order, arrived).await
}

fn bounded(name: &str, wanted: Option<u32>) -> Result<Option<u8>, ApiError> {
    match wanted {
        Some(n) if n > TOP_LOGPROBS_MAX => Err(ApiError::param(
            name,
            format!("`{name}` must be an integer from 0 to {TOP_LOGPROBS_MAX}, not {n}"),
        )),
        wanted => Ok(wanted.map(|n| n as u8)),
    }
}

impl Gateway {
    fn completion(&self, body: &[u8]) -> Result<Order, ApiError> {
        let (common, completion): (_, Completion) = parse(body, &["prompt", "logprobs"])?;
        let prompts = self.prompt_rules(Kind::Completion).prompts(completion.prompt)?;
        let logprobs = bounded("logprobs", completion.logprobs)?;
        Ok(Order { kind: Kind::Completion, common, prompts, logprobs })
    }

    fn chat(&self, body: &[u8]) -> Result<Order, ApiError> {
        let own = ["messages", "logprobs", "top_logprobs", "add_generation_prompt"];
        let (common, chat): (_, Chat) = parse(body, &own)?;
        if chat.top_logprobs.is_some() && !chat.logprobs {
            return Err(ApiError::param("top_logprobs", "`top_logprobs` needs `logprobs: true`"));
        }
        let top = bounded("top_logprobs", chat.top_logprobs)?.unwrap_or(0);
        let messages = messages::read(body, &chat.messages)?;
        let rendered = self.text.render(&messages, chat.add_generation_prompt.unwrap_or(true));
        let rendered = rendered.map_err(|message| ApiError::param("messages", message))?;
        let prompt = self.prompt_rules(Kind::Chat).rendered(&rendered)?;
        Ok(Order { kind: Kind::Chat, common, prompts: vec![prompt], logprobs: chat.logprobs.then_some(top) })
    }

    fn prompt_rules(&self, kind: Kind) -> PromptRules<'_> {
        PromptRules {
            text: &self.text,
            kind,
            vocab: self.vocab,
            context_tokens: self.max_model_tokens,
            limit_tokens: self.limits.max_prompt_tokens,
        }
    }

    async fn answer(&self, order: Order, arrived: Instant) -> Result<Response, ApiError> {
        // All that can be refused is refused before it takes a place or waits for the tenant.
        let Accepted { model, options, stops, submissions } = self.accept(&order)?;
        let open = self.open.enter(submissions.len() as u32)?;
        // Awaited from here on: also while the tenant loads, or its engine is being replaced.
        let awaited: Vec<_> = submissions.iter().map(|_| self.metrics.await_first(arrived)).collect();
        if let Err(error) = self.serving().await {
            awaited.into_iter().for_each(AwaitedToken::failed);
            return Err(error);
        }
        let Order { kind, common, prompts, logprobs } = order;
        let generations = submissions.into_iter().zip(awaited);
        let generations = generations.map(|each| self.generation(kind, each, &stops, &common, arrived));
        let generations = generations.collect();
        let frame = Frame {
            kind,
            id: self.next_id(kind),
            created: Gateway::unix_seconds(),
            model,
            logprobs: logprobs.is_some(),
            text: self.text.clone(),
            prompt_tokens: prompts.iter().map(Prompt::count).sum(),
            include_usage: options.include_usage,
            continuous_usage: options.continuous_usage_stats,
            open,
        };
        match common.stream {
            true => answer::streamed(frame, generations).await,
            false => answer::whole(frame, generations).await,
        }
    }

    fn accept(&self, order: &Order) -> Result<Accepted, ApiError> {
        let common = &order.common;
        let model = self.model_name(common.model.as_deref())?;
        if common.stream_options.is_some() && !common.stream {
            return Err(ApiError::param("stream_options", "`stream_options` needs `stream: true`"));
        }
        let options = common.stream_options.unwrap_or_default();
        Ok(Accepted { model, options, stops: common.stop_strings()?, submissions: self.submissions(order)? })
    }

    fn generation(
        &self,
        kind: Kind,
        (submission, awaited): (Submission, AwaitedToken),
        stops: &[String],
        common: &Common,
        arrived: Instant,
    ) -> Generation {
        let sampling = &submission.sampling;
        let stop_tokens = if sampling.ignore_stop { Vec::new() } else { sampling.stop_tokens.clone() };
        let min_tokens = sampling.min_tokens;
        let prompt_tokens = submission.prompt.len() as u32;
        let detokenizer = Detokenizer::new(self.text.clone(), common.show(), &submission.prompt);
        Generation::new(Setup {
            kind,
            ticket: self.service.submit(submission),
            detokenizer,
            stops: StopFilter::new(stops.to_vec()),
            stop_tokens,
            min_tokens,
            pacing: self.pacing(common.stream),
            prompt_tokens,
            arrived,
            awaited,
            metrics: self.metrics.clone(),
        })
    }

    fn model_name(&self, asked: Option<&str>) -> Result<String, ApiError> {
        match asked {
            None => Ok(self.names[0].clone()),
            Some(name) if self.names.iter().any(|n| n == name) => Ok(name.to_owned()),
            Some(name) => Err(ApiError::no_model(name)),
        }
    }

    /// Holds the request while the tenant loads or its engine restarts.
    async fn serving(&self) -> Result<(), ApiError> {
        let mut status = self.service.status();
        let hold = Duration::from_secs(u64::from(self.limits.hold_seconds));
        let settled = status.wait_for(|s| matches!(s, Status::Serving | Status::Failed(_)));
        let state = match tokio::time::timeout(hold, settled).await {
            Ok(Ok(state)) => state.clone(),
            Ok(Err(_)) => return Err(ApiError::outage(&UnavailableReason::ShuttingDown)),
            Err(_) => return Err(ApiError::unavailable("the model is not ready yet", RETRY_SOON_SECONDS)),
        };
        match state {
            Status::Failed(why) => Err(ApiError::outage(&UnavailableReason::Device(why))),
            _ => Ok(()),
        }
    }

    fn submissions(&self, order: &Order) -> Result<Vec<Submission>, ApiError> {
        let (common, choices) = (&order.common, order.common.choices()?);
        let sampling = common.sampling(&self.text, self.vocab, order.logprobs)?;
        let paced = matches!(self.pacing(common.stream), Pacing::Paced { .. });
        let mut submissions = Vec::new();
        for prompt in &order.prompts {
            let max_tokens = self.max_tokens(order, prompt)?;
            for choice in 0..choices {
                let mut sampling = sampling.clone();
                sampling.seed = sampling.seed.wrapping_add(u64::from(choice));
                let (prompt, priority, salt) = (prompt.tokens().to_vec(), common.priority, common.salt());
                submissions.push(Submission { prompt, max_tokens, sampling, priority, salt, paced });
            }
        }
        Ok(submissions)
    }

    /// Tokens to generate at most; what the context leaves, or OpenAI's 16 for completions, when the request names none.
    fn max_tokens(&self, order: &Order, prompt: &Prompt) -> Result<u32, ApiError> {
        let (kind, prompt_tokens, context) = (order.kind, prompt.count(), self.max_model_tokens);
        let left = context.saturating_sub(prompt_tokens).max(1);
        let default = match kind {
            Kind::Completion => COMPLETION_TOKENS_DEFAULT.min(left),
            Kind::Chat => left,
        };
        let max_tokens = order.common.token_limit()?.unwrap_or(default);
        if prompt_tokens.saturating_add(max_tokens) > context {
            let param = order.common.limit_param();
            return Err(ApiError::context_exceeded(kind, param, prompt_tokens, max_tokens, context));
        }
        if order.common.min_tokens() > max_tokens {
            return Err(ApiError::param(
                "min_tokens",
                format!("`min_tokens` is above max_tokens ({max_tokens})"),
            ));
        }
        Ok(max_tokens)
    }
}
