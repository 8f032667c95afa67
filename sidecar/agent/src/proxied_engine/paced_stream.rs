//! Forwards a stream of the engine to a client: its events, unchanged and in order, at the pace of the tenant's SLO.
//!
//! The pacing rule is that of native streams ([`TokenDeposit`]); each chunk with text counts as one token. Choices of
//! one response are paced separately and keep the engine's order.

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

/// Most buffered bytes of a stream; above this the engine is not read.
const BUFFERED_BYTES_MAX: usize = 256 << 10;

/// Permits and metrics of a request until it has ended.
#[derive(Debug)]
pub struct RequestAccounting {
    /// Guard of the engine's request gate.
    pub guard: RequestGuard,
    /// Permit of the open request.
    pub permit: RequestPermit,
    /// Arrival of the request.
    pub arrived: Instant,
    /// Metrics to record to.
    pub metrics: Arc<Metrics>,
    /// Pending first token of a stream, until it is written.
    pub awaited: Option<PendingToken>,
    /// Finish reason; `None` = not finished.
    pub finish_reason: Option<&'static str>,
    /// Whether the server failed the request; then a pending first token never arrives.
    pub is_failed: bool,
    /// Usage as counted by the engine.
    pub usage: Option<Usage>,
    /// Received chunks with text.
    pub chunks: u32,
    /// Chunks with text that are not written yet.
    pub pending: u32,
}

impl RequestAccounting {
    /// Accounting of a request that was admitted. Only streams have measured tokens.
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

    /// Records that the request ends with an error response.
    pub fn on_error(&mut self, error: &ApiError) {
        (self.finish_reason, self.is_failed) = (Some("error"), error.is_server_error());
    }

    /// Resets the results, because the request is sent again.
    pub fn reset(&mut self) {
        (self.finish_reason, self.is_failed, self.usage, self.chunks) = (None, false, None, 0);
    }

    /// Records the end of a choice, with the engine's finish reason.
    pub fn on_choice_end(&mut self, reason: &str) {
        self.finish_reason = Some(match reason {
            "length" => "length",
            "abort" => "abort",
            "error" => "error",
            // Tool calls and content filters count as the model's own stop.
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

/// A buffered event.
#[derive(Debug)]
struct Event {
    bytes: Bytes,
    lane: Option<u32>,
}

/// Pacing of one choice.
#[derive(Debug)]
struct Lane {
    deposit: TokenDeposit,
    /// Tokens that the deposit has released and that wait behind earlier events.
    released: u32,
    is_finished: bool,
    /// Whether the server failed the choice; then the token after the buffered ones never arrives.
    is_failed: bool,
    last_arrived: Option<Instant>,
    /// Received tokens that are not written yet.
    pending: u32,
    /// Pending next token, from the first write until the end.
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

    /// Ends the pending token, once all tokens have arrived and are written.
    fn stop_awaiting(&mut self) {
        if self.is_finished && self.pending == 0 {
            self.awaited.take().filter(|_| self.is_failed).into_iter().for_each(PendingToken::fail);
        }
    }

    /// Records a written token. `first` is the request's first token, if it is still pending.
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

/// How a stream is forwarded.
#[derive(Clone, Copy, Debug)]
pub struct StreamMode {
    /// Pacing of the stream.
    pub pacing: Pacing,
    /// Whether the usage event is removed, because only the sidecar requested it.
    pub should_strip_usage: bool,
}

/// A running stream. Dropping it cancels the request in the engine.
pub struct PacedStream {
    upstream: BoxStream<'static, Result<Bytes, EngineError>>,
    /// Completes when open streams must end.
    shutdown: Pin<Box<dyn Future<Output = ()> + Send>>,
    decoder: SseDecoder,
    queue: VecDeque<Event>,
    queued_bytes: usize,
    lanes: BTreeMap<u32, Lane>,
    mode: StreamMode,
    /// Result of the engine's stream; an error is sent after all received events.
    outcome: Option<Result<(), ApiError>>,
    /// Whether the engine has sent `[DONE]`.
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
    /// Creates a stream without events.
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

    /// Waits for the first event. `Err` = there is none, and the request can be sent again with the returned
    /// accounting.
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

    /// Reads from the engine, unless the buffer is full.
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
        let cut = || ApiError::engine_failed("the stream of the engine ended without [DONE]");
        self.on_stream_end(if self.is_done { Ok(()) } else { Err(cut()) });
    }

    fn on_event(&mut self, bytes: Bytes) {
        let info = SseInfo::parse(&bytes);
        self.accounting.usage = info.usage.or(self.accounting.usage);
        self.is_done |= info.is_done;
        if info.is_failed {
            self.mark_failed();
        }
        if info.is_usage_only && self.mode.should_strip_usage {
            return;
        }
        let lane = info.lane.filter(|lane| self.on_token(*lane));
        self.queued_bytes += bytes.len();
        self.queue.push_back(Event { bytes, lane });
        for (lane, reason) in info.finish_reasons {
            self.accounting.on_choice_end(&reason);
            self.finish(lane);
        }
    }

    /// Records a token of a choice. Returns `false` if the choice had already ended; then the event is not paced.
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
        // Cancels the request in the engine.
        self.upstream = futures_util::stream::empty().boxed();
    }

    /// Marks the stream and its unfinished choices as failed by the server.
    fn mark_failed(&mut self) {
        (self.accounting.finish_reason, self.accounting.is_failed) = (Some("error"), true);
        self.lanes.values_mut().filter(|lane| !lane.is_finished).for_each(|lane| lane.is_failed = true);
    }

    /// Returns the front event, if it is due.
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

    /// Records that all due events are written and the client waits.
    fn on_client_waiting(&mut self) {
        let open = self.lanes.values_mut().filter(|lane| !lane.is_finished);
        open.filter_map(|lane| lane.awaited.as_mut()).for_each(PendingToken::on_buffer_empty);
    }

    /// Waits until the front event is due.
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

    /// Returns the error event that follows all received events; `None` if there is none or it was sent.
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
            // Reads the engine first, because its data may end the response, and then no token waits any longer.
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
