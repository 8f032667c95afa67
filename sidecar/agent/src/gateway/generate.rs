//! One answer: tokens from the scheduler become pieces of text, written at the pace of the tenant's SLO.

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

use super::answer::Kind;
use super::detok::{Detokenizer, Shown, StopFilter};
use super::error::ApiError;
use crate::metrics::{AwaitedToken, Metrics};
use crate::service::{Ticket, Update};

/// Updates taken at one time, so that a fast engine never keeps an answer from being written.
const BURST_MAX: usize = 64;

/// A token as it is shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// Text that it completes; may be empty.
    pub text: String,
    /// Characters of the answer before it.
    pub offset: u32,
    /// Token id.
    pub token: u32,
    /// When asked for.
    pub logprobs: Option<TokenLogprobs>,
}

/// Why an answer ended, in OpenAI's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A stop token or a stop string.
    Stop,
    /// The token limit.
    Length,
}

impl Reason {
    /// `finish_reason`.
    pub const fn label(self) -> &'static str {
        match self {
            Reason::Stop => "stop",
            Reason::Length => "length",
        }
    }
}

/// What comes next.
#[derive(Clone, Debug, PartialEq)]
pub enum Emission {
    /// Tokens to write now.
    Pieces(Vec<Piece>),
    /// The end.
    End(Reason),
}

/// An answer under way. Dropping it frees its memory within one step.
#[derive(Debug)]
pub struct Generation {
    kind: Kind,
    ticket: Option<Ticket>,
    detokenizer: Detokenizer,
    stops: StopFilter,
    /// Tokens that end the answer and are not shown.
    stop_tokens: Vec<u32>,
    min_tokens: u32,
    deposit: TokenDeposit,
    waiting: VecDeque<Piece>,
    /// Rings when the deposit has something due; made when an answer waits for the first time.
    alarm: Option<Pin<Box<Sleep>>>,
    /// How it ended; said once everything in the deposit is written.
    ended: Option<Result<Reason, ApiError>>,
    prompt_tokens: u32,
    tokens: u32,
    characters: u32,
    started: Instant,
    last_token: Option<Instant>,
    /// `None` = it has ended.
    awaited: Option<AwaitedToken>,
    /// How it ended has been counted.
    counted: bool,
    metrics: Arc<Metrics>,
}

/// What an answer is made of.
#[derive(Debug)]
pub struct Setup {
    /// Which endpoint answers.
    pub kind: Kind,
    /// The request.
    pub ticket: Ticket,
    /// Text.
    pub detokenizer: Detokenizer,
    /// Stop strings.
    pub stops: StopFilter,
    /// Tokens that end the answer and are not shown.
    pub stop_tokens: Vec<u32>,
    /// Tokens before a stop string may end the answer; the scheduler holds back stop tokens so long.
    pub min_tokens: u32,
    /// Pace.
    pub pacing: Pacing,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// When the request arrived.
    pub arrived: Instant,
    /// Its first token, awaited since then.
    pub awaited: AwaitedToken,
    /// Where figures go.
    pub metrics: Arc<Metrics>,
}

impl Generation {
    /// An answer of which nothing has come yet.
    pub fn new(setup: Setup) -> Self {
        Generation {
            kind: setup.kind,
            ticket: Some(setup.ticket),
            detokenizer: setup.detokenizer,
            stops: setup.stops,
            stop_tokens: setup.stop_tokens,
            min_tokens: setup.min_tokens,
            deposit: TokenDeposit::new(setup.pacing),
            waiting: VecDeque::new(),
            alarm: None,
            ended: None,
            prompt_tokens: setup.prompt_tokens,
            tokens: 0,
            characters: 0,
            started: setup.arrived,
            last_token: None,
            awaited: Some(setup.awaited),
            counted: false,
            metrics: setup.metrics,
        }
    }

    /// Tokens of the prompt and of the answer so far.
    pub fn usage(&self) -> (u32, u32) {
        (self.prompt_tokens, self.tokens)
    }

    /// Waits for the next thing to write.
    ///
    /// # Errors
    /// As [`Generation::poll_next`].
    pub async fn next(&mut self) -> Result<Emission, ApiError> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The next thing to write, or word to `cx` when there is one.
    ///
    /// # Errors
    /// The request was refused or failed; every token that came before has been given out, and nothing follows.
    ///
    /// # Panics
    /// Broken invariant: the request is gone and the answer has not ended.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Emission, ApiError>> {
        loop {
            if let Some(pieces) = self.due() {
                return Poll::Ready(Ok(Emission::Pieces(pieces)));
            }
            if let Some(outcome) = self.ended.clone() {
                self.await_no_more(&outcome);
                self.count_end(outcome.as_ref().map_or("error", |reason| reason.label()));
                return Poll::Ready(outcome.map(Emission::End));
            }
            let ticket = self.ticket.as_mut().expect("an answer that has not ended has its request");
            match ticket.poll_next(cx) {
                Poll::Ready(update) => {
                    self.take(update);
                    self.take_rest();
                }
                Poll::Pending => {
                    self.awaited.iter_mut().for_each(AwaitedToken::nothing_there);
                    ready!(self.poll_alarm(cx));
                }
            }
        }
    }

    /// Waits until the deposit has something due. One timer serves the whole answer: it is not touched when a token only
    /// joins the deposit, which is what most tokens of a paced stream do.
    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(due) = self.deposit.next_due() else { return Poll::Pending };
        let due = tokio::time::Instant::from(self.started + Duration::from_nanos(due.0));
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
        if alarm.deadline() != due {
            alarm.as_mut().reset(due);
        }
        alarm.as_mut().poll(cx)
    }

    /// Whatever else has come meanwhile.
    fn take_rest(&mut self) {
        for _ in 0..BURST_MAX {
            let Some(update) = self.ticket.as_mut().and_then(Ticket::try_next) else { break };
            self.take(Some(update));
        }
    }

    fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn due(&mut self) -> Option<Vec<Piece>> {
        let now = self.now();
        let due_at = self.deposit.next_due();
        let count = if self.ended.is_some() { self.deposit.finish(now) } else { self.deposit.due(now) };
        if count == 0 {
            return None;
        }
        self.metrics.deposits.add(-i64::from(count));
        if let (Some(due_at), None) = (due_at.filter(|at| at.0 > 0), &self.ended) {
            self.metrics.write_lateness(now.since(due_at));
        }
        self.awaited.iter_mut().for_each(|awaited| awaited.written(count));
        Some(self.waiting.drain(..count as usize).collect())
    }

    /// Whatever ended it, nothing follows; what the server has failed to make is a miss.
    fn await_no_more(&mut self, outcome: &Result<Reason, ApiError>) {
        let Some(awaited) = self.awaited.take() else { return };
        if outcome.as_ref().is_err_and(ApiError::is_failure) {
            awaited.failed();
        }
    }

    fn take(&mut self, update: Option<Update>) {
        match update {
            Some(Update::Token { token, logprobs, at }) => self.token(token, logprobs, at),
            Some(Update::Finished(Finish::Stop)) => self.end(Ok(Reason::Stop)),
            Some(Update::Finished(Finish::Length)) => self.end(Ok(Reason::Length)),
            Some(Update::Finished(Finish::Failed(message))) => self.end(Err(ApiError::engine(message))),
            Some(Update::Finished(Finish::Unavailable(outage))) => self.end(Err(ApiError::outage(&outage))),
            // Nobody but a server that ends cancels what its client still waits for.
            Some(Update::Finished(Finish::Cancelled)) | None => {
                self.end(Err(ApiError::outage(&UnavailableReason::ShuttingDown)));
            }
            Some(Update::Refused(refusal)) => self.end(Err(ApiError::refused(self.kind, refusal))),
        }
    }

    fn count_end(&mut self, reason: &'static str) {
        if std::mem::replace(&mut self.counted, true) {
            return;
        }
        let elapsed = self.started.elapsed();
        self.metrics.request_ended(reason, elapsed);
        let (prompt_tokens, tokens, seconds) = (self.prompt_tokens, self.tokens, elapsed.as_secs_f64());
        tracing::info!(reason, prompt_tokens, tokens, seconds, "request ended");
    }

    fn token(&mut self, token: u32, logprobs: Option<TokenLogprobs>, at: Instant) {
        if self.ended.is_some() {
            return;
        }
        self.tokens += 1;
        let gap = self.last_token.replace(at).map(|before| at.saturating_duration_since(before));
        if gap.is_none() {
            self.metrics.prompt(self.prompt_tokens);
        }
        self.metrics.generated(gap);
        if self.stop_tokens.contains(&token) {
            self.hold(String::new(), token, logprobs);
            return;
        }
        let text = self.detokenizer.push(token);
        let shown = self.filter(&text);
        self.hold(shown.text, token, logprobs);
        if shown.stopped {
            self.ended = Some(Ok(Reason::Stop));
            // Nobody wants the rest: its memory is freed within one step.
            self.ticket = None;
        }
    }

    /// As in vLLM, stop strings count in what follows the first `min_tokens` tokens.
    fn filter(&mut self, text: &str) -> Shown {
        if self.tokens > self.min_tokens {
            return self.stops.push(text);
        }
        Shown { text: self.stops.pass(text), stopped: false }
    }

    fn hold(&mut self, text: String, token: u32, logprobs: Option<TokenLogprobs>) {
        let offset = self.characters;
        self.characters += text.chars().count() as u32;
        self.waiting.push_back(Piece { text, offset, token, logprobs });
        self.deposit.on_token(1);
        self.metrics.deposits.add(1);
    }

    /// What is held back of the text goes with the last token that waits, however the answer ended.
    fn end(&mut self, outcome: Result<Reason, ApiError>) {
        if self.ended.is_some() {
            return;
        }
        let last = self.detokenizer.finish();
        let last = self.filter(&last);
        self.ended = Some(outcome.map(|reason| if last.stopped { Reason::Stop } else { reason }));
        let rest = last.text + &self.stops.finish();
        match self.waiting.back_mut() {
            Some(piece) => piece.text.push_str(&rest),
            // The last token is written already; what was held back of its text goes with no token of its own.
            None if !rest.is_empty() => self.hold(rest, 0, None),
            None => {}
        }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.count_end("abort");
        self.metrics.deposits.add(-i64::from(self.deposit.held()));
    }
}
