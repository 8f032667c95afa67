//! `/v1/completions` and `/v1/chat/completions`: parse and validate a body, then start its response.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value};
use sluice_policy::token_deposit::Pacing;
use sluice_scheduler::UnavailableReason;

use super::body::JsonBody;
use super::context::Gateway;
use super::detok::{Detokenizer, StopFilter};
use super::endpoint::Endpoint;
use super::error::{ApiError, RETRY_SOON_SECONDS};
use super::messages;
use super::params::{CommonParams, StreamOptions, parse};
use super::prompt::{Prompt, PromptEncoder, Prompts};
use super::response::{self, ResponseMeta};
use super::token_stream::{TokenStream, TokenStreamConfig};
use crate::metrics::PendingToken;
use crate::model::text::ChatMessage;
use crate::scheduler_handle::{Status, Submission};

/// Most alternatives per token in log-probabilities.
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

/// A parsed request of either endpoint.
struct ParsedRequest {
    endpoint: Endpoint,
    params: CommonParams,
    prompts: Vec<Prompt>,
    logprobs: Option<u8>,
}

/// A request that passed all checks.
struct ValidatedRequest {
    model: String,
    options: StreamOptions,
    stops: Vec<String>,
    submissions: Vec<Submission>,
}

/// `POST /v1/completions`
pub async fn completions(State(gateway): State<Arc<Gateway>>, body: JsonBody) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let (bytes, reader) = (body.bytes().len(), gateway.clone());
    let order = gateway.limiter.parse(bytes, move || reader.completion(body.bytes())).await?;
    gateway.respond(order, arrived).await
}

/// `POST /v1/chat/completions`
pub async fn chat(State(gateway): State<Arc<Gateway>>, body: JsonBody) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let (bytes, reader) = (body.bytes().len(), gateway.clone());
    let order = gateway.limiter.parse(bytes, move || reader.chat(body.bytes())).await?;
    gateway.respond(order, arrived).await
}

fn check_top_logprobs(name: &str, wanted: Option<u32>) -> Result<Option<u8>, ApiError> {
    match wanted {
        Some(n) if n > TOP_LOGPROBS_MAX => Err(ApiError::invalid_param(
            name,
            format!("`{name}` must be an integer from 0 to {TOP_LOGPROBS_MAX}, not {n}"),
        )),
        wanted => Ok(wanted.map(|n| n as u8)),
    }
}

fn parse_completion(body: &[u8]) -> Result<(CommonParams, Completion), ApiError> {
    parse(body, &["prompt", "logprobs"])
}

/// Also returns the messages for the template and the alternatives per token.
fn parse_chat(body: &[u8]) -> Result<(CommonParams, Chat, Vec<ChatMessage>, u8), ApiError> {
    let own = ["messages", "logprobs", "top_logprobs", "add_generation_prompt"];
    let (common, chat): (_, Chat) = parse(body, &own)?;
    if chat.top_logprobs.is_some() && !chat.logprobs {
        return Err(ApiError::invalid_param("top_logprobs", "`top_logprobs` needs `logprobs: true`"));
    }
    let top = check_top_logprobs("top_logprobs", chat.top_logprobs)?.unwrap_or(0);
    let messages = messages::parse_messages(body, &chat.messages)?;
    Ok((common, chat, messages, top))
}

/// Reads `body` as a request of each endpoint, as far as this needs no model. Returns the refusals.
pub(crate) fn refusals(body: &[u8]) -> Vec<ApiError> {
    let completion = parse_completion(body).and_then(|(common, completion)| {
        check_top_logprobs("logprobs", completion.logprobs)?;
        common.check_without_model()
    });
    let chat = parse_chat(body).and_then(|(common, ..)| common.check_without_model());
    [completion.err(), chat.err()].into_iter().flatten().collect()
}

impl Gateway {
    fn completion(&self, body: &[u8]) -> Result<ParsedRequest, ApiError> {
        let (common, completion) = parse_completion(body)?;
        let prompts = self.prompt_encoder(Endpoint::Completion).encode_prompts(completion.prompt)?;
        let logprobs = check_top_logprobs("logprobs", completion.logprobs)?;
        Ok(ParsedRequest { endpoint: Endpoint::Completion, params: common, prompts, logprobs })
    }

    fn chat(&self, body: &[u8]) -> Result<ParsedRequest, ApiError> {
        let (common, chat, messages, top) = parse_chat(body)?;
        let rendered = self.text.render(&messages, chat.add_generation_prompt.unwrap_or(true));
        let rendered = rendered.map_err(|message| ApiError::invalid_param("messages", message))?;
        let prompt = self.prompt_encoder(Endpoint::Chat).encode_chat(&rendered)?;
        Ok(ParsedRequest {
            endpoint: Endpoint::Chat,
            params: common,
            prompts: vec![prompt],
            logprobs: chat.logprobs.then_some(top),
        })
    }

    fn prompt_encoder(&self, kind: Endpoint) -> PromptEncoder<'_> {
        PromptEncoder {
            text: &self.text,
            endpoint: kind,
            vocab: self.vocab,
            context_tokens: self.max_model_tokens,
            limit_tokens: self.limits.max_prompt_tokens,
        }
    }

    async fn respond(&self, order: ParsedRequest, arrived: Instant) -> Result<Response, ApiError> {
        // Every check runs before the request takes a permit or waits for the tenant.
        let ValidatedRequest { model, options, stops, submissions } = self.validate(&order)?;
        let open = self.limiter.acquire(submissions.len() as u32)?;
        // Counts as waiting from here, also while the tenant loads or its engine restarts.
        let awaited: Vec<_> = submissions.iter().map(|_| self.metrics.track_first_token(arrived)).collect();
        if let Err(error) = self.wait_until_serving().await {
            awaited.into_iter().for_each(PendingToken::fail);
            return Err(error);
        }
        let ParsedRequest { endpoint: kind, params: common, prompts, logprobs } = order;
        let generations = submissions.into_iter().zip(awaited);
        let generations = generations.map(|each| self.token_stream(kind, each, &stops, &common, arrived));
        let generations = generations.collect();
        let frame = ResponseMeta {
            endpoint: kind,
            id: self.next_id(kind),
            created: Gateway::unix_seconds(),
            model,
            logprobs: logprobs.is_some(),
            text: self.text.clone(),
            prompt_tokens: prompts.iter().map(Prompt::count).sum(),
            include_usage: options.include_usage,
            continuous_usage: options.continuous_usage_stats,
            permit: open,
        };
        match common.stream {
            true => response::stream_response(frame, generations).await,
            false => response::full_response(frame, generations).await,
        }
    }

    fn validate(&self, order: &ParsedRequest) -> Result<ValidatedRequest, ApiError> {
        let common = &order.params;
        let model = self.model_name(common.model.as_deref())?;
        if common.stream_options.is_some() && !common.stream {
            return Err(ApiError::invalid_param("stream_options", "`stream_options` needs `stream: true`"));
        }
        let options = common.stream_options.unwrap_or_default();
        Ok(ValidatedRequest {
            model,
            options,
            stops: common.stop_strings()?,
            submissions: self.submissions(order)?,
        })
    }

    fn token_stream(
        &self,
        kind: Endpoint,
        (submission, awaited): (Submission, PendingToken),
        stops: &[String],
        common: &CommonParams,
        arrived: Instant,
    ) -> TokenStream {
        let sampling = &submission.sampling;
        let stop_tokens = if sampling.ignore_stop { Vec::new() } else { sampling.stop_tokens.clone() };
        let min_tokens = sampling.min_tokens;
        let prompt_tokens = submission.prompt.len() as u32;
        let detokenizer = Detokenizer::new(self.text.clone(), common.decode_options(), &submission.prompt);
        TokenStream::new(TokenStreamConfig {
            endpoint: kind,
            handle: self.service.submit(submission),
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
            None => Ok(self.served_names[0].clone()),
            Some(name) if self.served_names.iter().any(|n| n == name) => Ok(name.to_owned()),
            Some(name) => Err(ApiError::model_not_found(name)),
        }
    }

    /// Holds the request while the tenant loads or its engine restarts.
    async fn wait_until_serving(&self) -> Result<(), ApiError> {
        let mut status = self.service.status();
        let hold = Duration::from_secs(u64::from(self.limits.hold_seconds));
        let settled = status.wait_for(|s| matches!(s, Status::Serving | Status::Failed(_)));
        let state = match tokio::time::timeout(hold, settled).await {
            Ok(Ok(state)) => state.clone(),
            Ok(Err(_)) => return Err(ApiError::from_unavailable(&UnavailableReason::ShuttingDown)),
            Err(_) => return Err(ApiError::unavailable("the model is not ready yet", RETRY_SOON_SECONDS)),
        };
        match state {
            Status::Failed(why) => Err(ApiError::from_unavailable(&UnavailableReason::Device(why))),
            _ => Ok(()),
        }
    }

    fn submissions(&self, order: &ParsedRequest) -> Result<Vec<Submission>, ApiError> {
        let (common, choices) = (&order.params, order.params.choice_count()?);
        let sampling = common.sampling(&self.text, self.vocab, order.logprobs)?;
        let paced = matches!(self.pacing(common.stream), Pacing::Paced { .. });
        let mut submissions = Vec::new();
        for prompt in &order.prompts {
            let max_tokens = self.max_tokens(order, prompt)?;
            for choice in 0..choices {
                let mut sampling = sampling.clone();
                sampling.seed = sampling.seed.wrapping_add(u64::from(choice));
                let (prompt, priority, salt) =
                    (prompt.tokens().to_vec(), common.priority, common.cache_salt_hash());
                submissions.push(Submission { prompt, max_tokens, sampling, priority, salt, paced });
            }
        }
        Ok(submissions)
    }

    /// Returns the most tokens to generate. Without a limit in the request: the rest of the context, or OpenAI's
    /// default of 16 for completions.
    fn max_tokens(&self, order: &ParsedRequest, prompt: &Prompt) -> Result<u32, ApiError> {
        let (kind, prompt_tokens, context) = (order.endpoint, prompt.count(), self.max_model_tokens);
        let left = context.saturating_sub(prompt_tokens).max(1);
        let default = match kind {
            Endpoint::Completion => COMPLETION_TOKENS_DEFAULT.min(left),
            Endpoint::Chat => left,
        };
        let max_tokens = order.params.token_limit()?.unwrap_or(default);
        if prompt_tokens.saturating_add(max_tokens) > context {
            let param = order.params.limit_param();
            return Err(ApiError::context_exceeded(kind, param, prompt_tokens, max_tokens, context));
        }
        if order.params.min_tokens() > max_tokens {
            return Err(ApiError::invalid_param(
                "min_tokens",
                format!("`min_tokens` is above max_tokens ({max_tokens})"),
            ));
        }
        Ok(max_tokens)
    }
}
