//! A stream of the engine on its way to a client: its events, unchanged and in order, at the pace of the tenant's SLO.
//!
//! The rule is that of every other stream ([`TokenDeposit`]); a chunk that brings text counts as a token. Choices of one answer
//! are paced apart and stay in the engine's order.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use futures_util::stream::{BoxStream, Stream, StreamExt};
use sluice_policy::ids::Nanos;
use sluice_policy::token_deposit::{Pacing, TokenDeposit};
use sluice_scheduler::UnavailableReason;
use tokio::time::Sleep;

use super::engine::EngineError;
use super::request_gate::RequestGuard;
use super::sse::{SseDecoder, SseInfo, Usage};
use crate::gateway::error::ApiError;
use crate::gateway::limits::RequestPermit;
use crate::metrics::{Metrics, PendingToken};

/// Bytes of a stream that wait here; while there are more, the engine is not read.
const BUFFERED_BYTES_MAX: usize = 256 << 10;

/// What every answer keeps until it has ended: its place, and its account.
#[derive(Debug)]
pub struct RequestAccounting {
    /// Among the requests of the engine.
    pub guard: RequestGuard,
    /// Among the open ones.
    pub permit: RequestPermit,
    /// When the request arrived.
    pub arrived: Instant,
    /// Figures.
    pub metrics: Arc<Metrics>,
    /// The first token of a stream, until it has been written.
    pub awaited: Option<PendingToken>,
    /// How it ended; `None` = it has not.
    pub finish_reason: Option<&'static str>,
    /// The server fails it: its first token, if that is still awaited, never comes.
    pub is_failed: bool,
    /// As the engine counted.
    pub usage: Option<Usage>,
    /// Chunks with text.
    pub chunks: u32,
    /// Of these, those that have not been written.
    pub pending: u32,
}

impl RequestAccounting {
    /// Of a request that has just been let in. Only streams have tokens that are measured.
    pub fn new(
        place: RequestGuard,
        open: RequestPermit,
        arrived: Instant,
        metrics: Arc<Metrics>,
        stream: bool,
    ) -> RequestAccounting {
        let awaited = stream.then(|| metrics.track_first_token(arrived));
        let (end, failed, usage, chunks, waiting) = (None, false, None, 0, 0);
        RequestAccounting {
            guard: place,
            permit: open,
            arrived,
            metrics,
            awaited,
            finish_reason: end,
            is_failed: failed,
            usage,
            chunks,
            pending: waiting,
        }
    }

    /// It ends with an error that its client is told.
    pub fn on_error(&mut self, error: &ApiError) {
        (self.finish_reason, self.is_failed) = (Some("error"), error.is_server_error());
    }

    /// Nothing has come after all: the request is sent again.
    pub fn reset(&mut self) {
        (self.finish_reason, self.is_failed, self.usage, self.chunks) = (None, false, None, 0);
    }

    /// A choice has ended, in the engine's words.
    pub fn on_choice_end(&mut self, reason: &str) {
        self.finish_reason = Some(match reason {
            "length" => "length",
            "abort" => "abort",
            "error" => "error",
            // Tool calls, content filters: the model's own end.
            _ => "stop",
        });
    }
}

impl Drop for RequestAccounting {
    fn drop(&mut self) {
        let counted = Usage { prompt_tokens: 0, completion_tokens: self.chunks };
        let usage = self.usage.unwrap_or(counted);
        let (reason, elapsed) = (self.finish_reason.unwrap_or("abort"), self.arrived.elapsed());
        self.awaited.take().filter(|_| self.is_failed).into_iter().for_each(PendingToken::fail);
        self.metrics.deposits.add(-i64::from(self.pending));
        self.metrics.record_token_usage(usage.prompt_tokens, usage.completion_tokens);
        self.metrics.on_request_ended(reason, elapsed);
        let (prompt_tokens, tokens) = (usage.prompt_tokens, usage.completion_tokens);
        tracing::info!(reason, prompt_tokens, tokens, seconds = elapsed.as_secs_f64(), "request ended");
    }
}

/// An event that waits.
#[derive(Debug)]
struct Event {
    bytes: Bytes,
    lane: Option<u32>,
}

/// Pace of one choice.
#[derive(Debug)]
struct Lane {
    deposit: TokenDeposit,
    /// Tokens that the deposit has let go and that have not been written: others stand before them.
    released: u32,
    is_finished: bool,
    /// The server failed it: the token after those that wait never comes.
    is_failed: bool,
    last_arrived: Option<Instant>,
    /// Tokens that came and have not been written.
    pending: u32,
    /// The next token, once one has been written and until nothing more comes.
    awaited: Option<PendingToken>,
}

impl Lane {
    fn new(pacing: Pacing) -> Lane {
        let deposit = TokenDeposit::new(pacing);
        let (finished, failed) = (false, false);
        Lane {
            deposit,
            released: 0,
            is_finished: finished,
            is_failed: failed,
            last_arrived: None,
            pending: 0,
            awaited: None,
        }
    }

    fn finish(&mut self, now: Nanos) {
        self.is_finished = true;
        self.released += self.deposit.finish(now);
        self.stop_awaiting();
    }

    /// Once all has come and is written.
    fn stop_awaiting(&mut self) {
        if self.is_finished && self.pending == 0 {
            self.awaited.take().filter(|_| self.is_failed).into_iter().for_each(PendingToken::fail);
        }
    }

    /// A token is written. `first` is the request's first one, while that is awaited.
    fn on_written(&mut self, first: Option<PendingToken>, metrics: &Arc<Metrics>) {
        self.pending -= 1;
        match self.awaited.as_mut() {
            Some(awaited) => awaited.on_written(1),
            None => {
                let mut first = first;
                first.iter_mut().for_each(|first| first.on_written(1));
                self.awaited = first.or_else(|| Some(metrics.track_next_token()));
            }
        }
        self.stop_awaiting();
    }
}

/// How a stream is written.
#[derive(Clone, Copy, Debug)]
pub struct StreamMode {
    /// Its pace.
    pub pacing: Pacing,
    /// The event that brings the usage is for us alone.
    pub should_strip_usage: bool,
}

/// A stream under way. Dropping it ends the engine's work on it.
pub struct PacedStream {
    upstream: BoxStream<'static, Result<Bytes, EngineError>>,
    /// Rings when streams that are still open are to end.
    shutdown: Pin<Box<dyn Future<Output = ()> + Send>>,
    decoder: SseDecoder,
    queue: VecDeque<Event>,
    queued_bytes: usize,
    lanes: BTreeMap<u32, Lane>,
    mode: StreamMode,
    /// Nothing more comes from the engine; an error is told after everything that came.
    outcome: Option<Result<(), ApiError>>,
    /// The engine has said that nothing follows.
    is_done: bool,
    timer: Option<Pin<Box<Sleep>>>,
    accounting: Box<RequestAccounting>,
}

impl std::fmt::Debug for PacedStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Paced").field("queue", &self.queue.len()).finish_non_exhaustive()
    }
}

impl PacedStream {
    /// A stream of which nothing has come yet.
    pub fn new(
        upstream: BoxStream<'static, Result<Bytes, EngineError>>,
        cut: impl Future<Output = ()> + Send + 'static,
        manner: StreamMode,
        account: Box<RequestAccounting>,
    ) -> PacedStream {
        PacedStream {
            upstream,
            shutdown: Box::pin(cut),
            decoder: SseDecoder::default(),
            queue: VecDeque::new(),
            queued_bytes: 0,
            lanes: BTreeMap::new(),
            mode: manner,
            outcome: None,
            is_done: false,
            timer: None,
            accounting: account,
        }
    }

    /// Waits for the first event. `Err` = there is none: the request can be sent again, by its account.
    pub async fn wait_first_event(mut self) -> Result<PacedStream, Box<RequestAccounting>> {
        std::future::poll_fn(|cx| self.poll_first_event(cx)).await;
        if self.queue.is_empty() { Err(self.accounting) } else { Ok(self) }
    }

    fn poll_first_event(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.queue.is_empty() && self.outcome.is_none() {
            if self.poll_upstream(cx).is_pending() {
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }

    fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.accounting.arrived.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Takes what the engine has, unless enough waits already.
    fn poll_upstream(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.outcome.is_some() {
            return Poll::Pending;
        }
        if self.shutdown.as_mut().poll(cx).is_ready() {
            self.on_stream_end(Err(ApiError::from_unavailable(&UnavailableReason::ShuttingDown)));
            return Poll::Ready(());
        }
        if self.queued_bytes >= BUFFERED_BYTES_MAX {
            return Poll::Pending;
        }
        self.upstream.poll_next_unpin(cx).map(|come| match come {
            Some(Ok(bytes)) => self.on_bytes(&bytes),
            Some(Err(trouble)) => self.on_stream_end(Err(ApiError::engine_failed(trouble.to_string()))),
            None => self.on_upstream_end(),
        })
    }

    fn on_bytes(&mut self, bytes: &[u8]) {
        let pushed = self.decoder.push(bytes);
        while let Some(event) = self.decoder.next_event() {
            self.on_event(event);
        }
        if let Err(too_long) = pushed {
            self.on_stream_end(Err(ApiError::engine_failed(too_long.to_string())));
        }
    }

    fn on_upstream_end(&mut self) {
        if let Some(event) = self.decoder.take_remainder() {
            self.on_event(event);
        }
        let cut = || ApiError::engine_failed("the engine broke off: its stream has no end");
        self.on_stream_end(if self.is_done { Ok(()) } else { Err(cut()) });
    }

    fn on_event(&mut self, bytes: Bytes) {
        let said = SseInfo::parse(&bytes);
        self.accounting.usage = said.usage.or(self.accounting.usage);
        self.is_done |= said.is_done;
        if said.is_failed {
            self.mark_failed();
        }
        if said.is_usage_only && self.mode.should_strip_usage {
            return;
        }
        let lane = said.lane.filter(|lane| self.on_token(*lane));
        self.queued_bytes += bytes.len();
        self.queue.push_back(Event { bytes, lane });
        for (lane, reason) in said.finish_reasons {
            self.accounting.on_choice_end(&reason);
            self.finish(lane);
        }
    }

    /// A token of a choice has come. False = that choice had ended: what follows is not paced.
    fn on_token(&mut self, lane: u32) -> bool {
        let pacing = self.mode.pacing;
        let lane = self.lanes.entry(lane).or_insert_with(|| Lane::new(pacing));
        if lane.is_finished {
            return false;
        }
        let now = Instant::now();
        if let Some(before) = lane.last_arrived.replace(now) {
            self.accounting.metrics.record_token_gap(now - before);
        }
        lane.deposit.on_token(1);
        lane.pending += 1;
        (self.accounting.chunks, self.accounting.pending) =
            (self.accounting.chunks + 1, self.accounting.pending + 1);
        self.accounting.metrics.deposits.add(1);
        true
    }

    fn finish(&mut self, lane: u32) {
        let now = self.now();
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.finish(now);
        }
    }

    fn on_stream_end(&mut self, how: Result<(), ApiError>) {
        let now = self.now();
        if how.is_err() {
            self.mark_failed();
        }
        self.lanes.values_mut().filter(|lane| !lane.is_finished).for_each(|lane| lane.finish(now));
        if how.is_ok() && self.accounting.finish_reason.is_none() {
            self.accounting.finish_reason = Some("stop");
        }
        self.outcome = Some(how);
        // The engine need not go on.
        self.upstream = futures_util::stream::empty().boxed();
    }

    /// The server fails the stream: of its choices, those that have not ended.
    fn mark_failed(&mut self) {
        (self.accounting.finish_reason, self.accounting.is_failed) = (Some("error"), true);
        self.lanes.values_mut().filter(|lane| !lane.is_finished).for_each(|lane| lane.is_failed = true);
    }

    /// The front event, if it may go.
    fn take_due(&mut self) -> Option<Bytes> {
        let now = self.now();
        if let Some(index) = self.queue.front()?.lane {
            let lane = self.lanes.get_mut(&index).expect("a token's choice has a lane");
            if lane.released == 0 {
                let due_at = lane.deposit.next_due();
                lane.released = lane.deposit.due(now);
                let late = due_at.filter(|at| at.0 > 0 && lane.released > 0);
                late.into_iter().for_each(|at| self.accounting.metrics.record_write_lateness(now.since(at)));
            }
            lane.released = lane.released.checked_sub(1)?;
            let first = self.accounting.awaited.take();
            lane.on_written(first, &self.accounting.metrics);
            self.accounting.pending -= 1;
            self.accounting.metrics.deposits.add(-1);
        }
        let event = self.queue.pop_front().expect("it was looked at");
        self.queued_bytes -= event.bytes.len();
        Some(event.bytes)
    }

    /// All that may be written is written, and the client waits.
    fn on_client_waiting(&mut self) {
        let open = self.lanes.values_mut().filter(|lane| !lane.is_finished);
        open.filter_map(|lane| lane.awaited.as_mut()).for_each(PendingToken::on_buffer_empty);
    }

    /// Waits until the front event may go.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let front = self.queue.front().and_then(|event| event.lane);
        let due = front.and_then(|lane| self.lanes.get(&lane)?.deposit.next_due());
        let Some(due) = due else { return Poll::Pending };
        let due = tokio::time::Instant::from(self.accounting.arrived + Duration::from_nanos(due.0));
        let alarm = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
        if alarm.deadline() != due {
            alarm.as_mut().reset(due);
        }
        alarm.as_mut().poll(cx)
    }

    /// What is said after everything that came; `None` = nothing any more.
    fn final_error_event(&mut self) -> Option<Bytes> {
        let error = std::mem::replace(self.outcome.as_mut()?, Ok(())).err()?;
        Some(format!("data: {}\n\ndata: [DONE]\n\n", error.body()).into())
    }
}

impl Stream for PacedStream {
    type Item = Bytes;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let paced = self.get_mut();
        loop {
            // The engine is read first: what it has may end the answer, and then nothing waits any longer.
            let engine = paced.poll_upstream(cx);
            if let Some(bytes) = paced.take_due() {
                return Poll::Ready(Some(bytes));
            }
            if paced.outcome.is_some() && paced.queue.is_empty() {
                return Poll::Ready(paced.final_error_event());
            }
            if engine.is_pending() && paced.poll_timer(cx).is_pending() {
                paced.on_client_waiting();
                return Poll::Pending;
            }
        }
    }
}
