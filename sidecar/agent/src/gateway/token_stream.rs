//! One choice of a response: turns tokens from the scheduler into text, released at the pace of the tenant's SLO.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use sluice_policy::ids::Nanos;
use sluice_policy::token_deposit::{Pacing, TokenDeposit};
use sluice_ports::sampling::TokenLogprobs;
use sluice_scheduler::{Finish, UnavailableReason};
use tokio::time::Sleep;

use super::detok::{Detokenizer, FilteredText, StopFilter};
use super::endpoint::Endpoint;
use super::error::ApiError;
use crate::metrics::{Metrics, PendingToken};
use crate::scheduler_handle::{RequestHandle, RequestUpdate};

/// Most updates taken at once, so that a fast engine cannot delay writing.
const BURST_MAX: usize = 64;

/// A token with its text.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenText {
    /// Text that the token completes; may be empty.
    pub text: String,
    /// Characters of the response before it.
    pub offset: u32,
    /// Token id.
    pub token: u32,
    /// Log-probabilities, if requested.
    pub logprobs: Option<TokenLogprobs>,
}

/// Why a response ended, in OpenAI's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token or a stop string was generated.
    Stop,
    /// The token limit was reached.
    Length,
}

impl FinishReason {
    /// Returns the value of `finish_reason`.
    pub const fn label(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
        }
    }
}

/// Next item of a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamItem {
    /// Tokens to write now.
    Tokens(Vec<TokenText>),
    /// The end of the stream.
    End(FinishReason),
}

/// A running response. Dropping it frees its memory within one step.
#[derive(Debug)]
pub struct TokenStream {
    endpoint: Endpoint,
    handle: Option<RequestHandle>,
    detokenizer: Detokenizer,
    stops: StopFilter,
    /// Tokens that end the response and are not shown.
    stop_tokens: Vec<u32>,
    min_tokens: u32,
    deposit: TokenDeposit,
    pending: VecDeque<TokenText>,
    /// Timer for the next due token of the deposit; created at the first wait.
    timer: Option<Pin<Box<Sleep>>>,
    /// Final result; returned after the deposit is empty.
    outcome: Option<Result<FinishReason, ApiError>>,
    prompt_tokens: u32,
    completion_tokens: u32,
    characters: u32,
    started: Instant,
    last_token: Option<Instant>,
    /// Pending token for the metrics; `None` after the end.
    awaited: Option<PendingToken>,
    /// Whether the end is recorded in the metrics.
    is_recorded: bool,
    metrics: Arc<Metrics>,
}

/// Parts of a token stream.
#[derive(Debug)]
pub struct TokenStreamConfig {
    /// Endpoint of the request.
    pub endpoint: Endpoint,
    /// Handle to the request in the scheduler.
    pub handle: RequestHandle,
    /// Decoder of the tokens.
    pub detokenizer: Detokenizer,
    /// Stop strings.
    pub stops: StopFilter,
    /// Tokens that end the response and are not shown.
    pub stop_tokens: Vec<u32>,
    /// Fewest tokens before a stop string can end the response. The scheduler applies the same limit to stop tokens.
    pub min_tokens: u32,
    /// Pacing of the stream.
    pub pacing: Pacing,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Arrival of the request.
    pub arrived: Instant,
    /// Its pending first token, counted since the arrival.
    pub awaited: PendingToken,
    /// Metrics to record to.
    pub metrics: Arc<Metrics>,
}

impl TokenStream {
    /// Creates a stream without tokens.
    pub fn new(setup: TokenStreamConfig) -> Self {
        TokenStream {
            endpoint: setup.endpoint,
            handle: Some(setup.handle),
            detokenizer: setup.detokenizer,
            stops: setup.stops,
            stop_tokens: setup.stop_tokens,
            min_tokens: setup.min_tokens,
            deposit: TokenDeposit::new(setup.pacing),
            pending: VecDeque::new(),
            timer: None,
            outcome: None,
            prompt_tokens: setup.prompt_tokens,
            completion_tokens: 0,
            characters: 0,
            started: setup.arrived,
            last_token: None,
            awaited: Some(setup.awaited),
            is_recorded: false,
            metrics: setup.metrics,
        }
    }

    /// Returns the tokens of the prompt and of the response so far.
    pub fn usage(&self) -> (u32, u32) {
        (self.prompt_tokens, self.completion_tokens)
    }

    /// Waits for the next item.
    ///
    /// # Errors
    /// As [`TokenStream::poll_next`].
    pub async fn next(&mut self) -> Result<StreamItem, ApiError> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Returns the next item, or registers `cx` to be woken when there is one.
    ///
    /// # Errors
    /// The request was refused or failed. All earlier tokens have been returned, and no item follows.
    ///
    /// # Panics
    /// Broken invariant: the request's handle is gone before the stream has ended.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<StreamItem, ApiError>> {
        loop {
            if let Some(pieces) = self.take_due() {
                return Poll::Ready(Ok(StreamItem::Tokens(pieces)));
            }
            if let Some(outcome) = self.outcome.clone() {
                self.stop_awaiting(&outcome);
                self.record_end(outcome.as_ref().map_or("error", |reason| reason.label()));
                return Poll::Ready(outcome.map(StreamItem::End));
            }
            let ticket = self.handle.as_mut().expect("an answer that has not ended has its request");
            match ticket.poll_next(cx) {
                Poll::Ready(update) => {
                    self.on_update(update);
                    self.drain_updates();
                }
                Poll::Pending => {
                    self.awaited.iter_mut().for_each(PendingToken::on_buffer_empty);
                    ready!(self.poll_timer(cx));
                }
            }
        }
    }

    /// Waits until a token of the deposit is due. One timer serves the whole response and is reset only if the due time
    /// changes; most tokens of a paced stream do not change it.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(due) = self.deposit.next_due() else { return Poll::Pending };
        let due = tokio::time::Instant::from(self.started + Duration::from_nanos(due.0));
        let alarm = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
        if alarm.deadline() != due {
            alarm.as_mut().reset(due);
        }
        alarm.as_mut().poll(cx)
    }

    /// Takes the further updates that are already available.
    fn drain_updates(&mut self) {
        for _ in 0..BURST_MAX {
            let Some(update) = self.handle.as_mut().and_then(RequestHandle::try_next) else { break };
            self.on_update(Some(update));
        }
    }

    fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn take_due(&mut self) -> Option<Vec<TokenText>> {
        let now = self.now();
        let due_at = self.deposit.next_due();
        let count = if self.outcome.is_some() { self.deposit.finish(now) } else { self.deposit.due(now) };
        if count == 0 {
            return None;
        }
        self.metrics.deposits.add(-i64::from(count));
        if let (Some(due_at), None) = (due_at.filter(|at| at.0 > 0), &self.outcome) {
            self.metrics.record_write_lateness(now.since(due_at));
        }
        self.awaited.iter_mut().for_each(|awaited| awaited.on_written(count));
        Some(self.pending.drain(..count as usize).collect())
    }

    /// Ends the pending token; a failure of the server counts as a miss.
    fn stop_awaiting(&mut self, outcome: &Result<FinishReason, ApiError>) {
        let Some(awaited) = self.awaited.take() else { return };
        if outcome.as_ref().is_err_and(ApiError::is_server_error) {
            awaited.fail();
        }
    }

    fn on_update(&mut self, update: Option<RequestUpdate>) {
        match update {
            Some(RequestUpdate::Token { token, logprobs, at }) => self.on_token(token, logprobs, at),
            Some(RequestUpdate::Finished(Finish::Stop)) => self.on_end(Ok(FinishReason::Stop)),
            Some(RequestUpdate::Finished(Finish::Length)) => self.on_end(Ok(FinishReason::Length)),
            Some(RequestUpdate::Finished(Finish::Failed(message))) => {
                self.on_end(Err(ApiError::engine_failed(message)))
            }
            Some(RequestUpdate::Finished(Finish::Unavailable(outage))) => {
                self.on_end(Err(ApiError::from_unavailable(&outage)))
            }
            // Only a server that shuts down cancels a request whose client still waits.
            Some(RequestUpdate::Finished(Finish::Cancelled)) | None => {
                self.on_end(Err(ApiError::from_unavailable(&UnavailableReason::ShuttingDown)));
            }
            Some(RequestUpdate::Refused(refusal)) => {
                self.on_end(Err(ApiError::from_refusal(self.endpoint, refusal)))
            }
        }
    }

    fn record_end(&mut self, reason: &'static str) {
        if std::mem::replace(&mut self.is_recorded, true) {
            return;
        }
        let elapsed = self.started.elapsed();
        self.metrics.on_request_ended(reason, elapsed);
        let (prompt_tokens, tokens, seconds) =
            (self.prompt_tokens, self.completion_tokens, elapsed.as_secs_f64());
        tracing::info!(reason, prompt_tokens, tokens, seconds, "request ended");
    }

    fn on_token(&mut self, token: u32, logprobs: Option<TokenLogprobs>, at: Instant) {
        if self.outcome.is_some() {
            return;
        }
        self.completion_tokens += 1;
        let gap = self.last_token.replace(at).map(|before| at.saturating_duration_since(before));
        if gap.is_none() {
            self.metrics.record_prompt(self.prompt_tokens);
        }
        self.metrics.record_generated_token(gap);
        if self.stop_tokens.contains(&token) {
            self.enqueue(String::new(), token, logprobs);
            return;
        }
        let text = self.detokenizer.push(token);
        let shown = self.filter_stops(&text);
        self.enqueue(shown.text, token, logprobs);
        if shown.is_stopped {
            self.outcome = Some(Ok(FinishReason::Stop));
            // Dropping the handle cancels the request and frees its memory within one step.
            self.handle = None;
        }
    }

    /// Filters stop strings. As in vLLM, they can end only after the first `min_tokens` tokens.
    fn filter_stops(&mut self, text: &str) -> FilteredText {
        if self.completion_tokens > self.min_tokens {
            return self.stops.push(text);
        }
        FilteredText { text: self.stops.push_without_stop(text), is_stopped: false }
    }

    fn enqueue(&mut self, text: String, token: u32, logprobs: Option<TokenLogprobs>) {
        let offset = self.characters;
        self.characters += text.chars().count() as u32;
        self.pending.push_back(TokenText { text, offset, token, logprobs });
        self.deposit.on_token(1);
        self.metrics.deposits.add(1);
    }

    /// Records the end. Held back text is appended to the last pending token.
    fn on_end(&mut self, outcome: Result<FinishReason, ApiError>) {
        if self.outcome.is_some() {
            return;
        }
        let last = self.detokenizer.finish();
        let last = self.filter_stops(&last);
        self.outcome = Some(outcome.map(|reason| if last.is_stopped { FinishReason::Stop } else { reason }));
        let rest = last.text + &self.stops.finish();
        match self.pending.back_mut() {
            Some(piece) => piece.text.push_str(&rest),
            // The last token is already written, so the held back text gets an entry without a token of its own.
            None if !rest.is_empty() => self.enqueue(rest, 0, None),
            None => {}
        }
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        self.record_end("abort");
        self.metrics.deposits.add(-i64::from(self.deposit.held()));
    }
}
