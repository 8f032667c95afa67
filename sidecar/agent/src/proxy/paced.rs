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

use super::engine::Trouble;
use super::lobby::Place;
use super::sse::{Said, Splitter, Usage};
use crate::gateway::error::ApiError;
use crate::gateway::open::OpenRequest;
use crate::metrics::{AwaitedToken, Metrics};

/// Bytes of a stream that wait here; while there are more, the engine is not read.
const HELD_BYTES_MAX: usize = 256 << 10;

/// What every answer keeps until it has ended: its place, and its account.
#[derive(Debug)]
pub struct Account {
    /// Among the requests of the engine.
    pub place: Place,
    /// Among the open ones.
    pub open: OpenRequest,
    /// When the request arrived.
    pub arrived: Instant,
    /// Figures.
    pub metrics: Arc<Metrics>,
    /// The first token of a stream, until it has been written.
    pub awaited: Option<AwaitedToken>,
    /// How it ended; `None` = it has not.
    pub end: Option<&'static str>,
    /// The server fails it: its first token, if that is still awaited, never comes.
    pub failed: bool,
    /// As the engine counted.
    pub usage: Option<Usage>,
    /// Chunks with text.
    pub chunks: u32,
    /// Of these, those that have not been written.
    pub waiting: u32,
}

impl Account {
    /// Of a request that has just been let in. Only streams have tokens that are measured.
    pub fn new(
        place: Place,
        open: OpenRequest,
        arrived: Instant,
        metrics: Arc<Metrics>,
        stream: bool,
    ) -> Account {
        let awaited = stream.then(|| metrics.await_first(arrived));
        let (end, failed, usage, chunks, waiting) = (None, false, None, 0, 0);
        Account { place, open, arrived, metrics, awaited, end, failed, usage, chunks, waiting }
    }

    /// It ends with an error that its client is told.
    pub fn told(&mut self, error: &ApiError) {
        (self.end, self.failed) = (Some("error"), error.is_failure());
    }

    /// Nothing has come after all: the request is sent again.
    pub fn anew(&mut self) {
        (self.end, self.failed, self.usage, self.chunks) = (None, false, None, 0);
    }

    /// A choice has ended, in the engine's words.
    pub fn ended(&mut self, reason: &str) {
        self.end = Some(match reason {
            "length" => "length",
            "abort" => "abort",
            "error" => "error",
            // Tool calls, content filters: the model's own end.
            _ => "stop",
        });
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let counted = Usage { prompt_tokens: 0, completion_tokens: self.chunks };
        let usage = self.usage.unwrap_or(counted);
        let (reason, elapsed) = (self.end.unwrap_or("abort"), self.arrived.elapsed());
        self.awaited.take().filter(|_| self.failed).into_iter().for_each(AwaitedToken::failed);
        self.metrics.deposits.add(-i64::from(self.waiting));
        self.metrics.used(usage.prompt_tokens, usage.completion_tokens);
        self.metrics.request_ended(reason, elapsed);
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
    free: u32,
    finished: bool,
    /// The server failed it: the token after those that wait never comes.
    failed: bool,
    last_arrived: Option<Instant>,
    /// Tokens that came and have not been written.
    waiting: u32,
    /// The next token, once one has been written and until nothing more comes.
    awaited: Option<AwaitedToken>,
}

impl Lane {
    fn new(pacing: Pacing) -> Lane {
        let deposit = TokenDeposit::new(pacing);
        let (finished, failed) = (false, false);
        Lane { deposit, free: 0, finished, failed, last_arrived: None, waiting: 0, awaited: None }
    }

    fn finish(&mut self, now: Nanos) {
        self.finished = true;
        self.free += self.deposit.finish(now);
        self.await_no_more();
    }

    /// Once all has come and is written.
    fn await_no_more(&mut self) {
        if self.finished && self.waiting == 0 {
            self.awaited.take().filter(|_| self.failed).into_iter().for_each(AwaitedToken::failed);
        }
    }

    /// A token is written. `first` is the request's first one, while that is awaited.
    fn written(&mut self, first: Option<AwaitedToken>, metrics: &Arc<Metrics>) {
        self.waiting -= 1;
        match self.awaited.as_mut() {
            Some(awaited) => awaited.written(1),
            None => {
                let mut first = first;
                first.iter_mut().for_each(|first| first.written(1));
                self.awaited = first.or_else(|| Some(metrics.await_next()));
            }
        }
        self.await_no_more();
    }
}

/// How a stream is written.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// Its pace.
    pub pacing: Pacing,
    /// The event that brings the usage is for us alone.
    pub keep_usage: bool,
}

/// A stream under way. Dropping it ends the engine's work on it.
pub struct Paced {
    upstream: BoxStream<'static, Result<Bytes, Trouble>>,
    /// Rings when streams that are still open are to end.
    cut: Pin<Box<dyn Future<Output = ()> + Send>>,
    splitter: Splitter,
    queue: VecDeque<Event>,
    queued_bytes: usize,
    lanes: BTreeMap<u32, Lane>,
    manner: Manner,
    /// Nothing more comes from the engine; an error is told after everything that came.
    ended: Option<Result<(), ApiError>>,
    /// The engine has said that nothing follows.
    done: bool,
    alarm: Option<Pin<Box<Sleep>>>,
    account: Box<Account>,
}

impl std::fmt::Debug for Paced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Paced").field("queue", &self.queue.len()).finish_non_exhaustive()
    }
}

impl Paced {
    /// A stream of which nothing has come yet.
    pub fn new(
        upstream: BoxStream<'static, Result<Bytes, Trouble>>,
        cut: impl Future<Output = ()> + Send + 'static,
        manner: Manner,
        account: Box<Account>,
    ) -> Paced {
        Paced {
            upstream,
            cut: Box::pin(cut),
            splitter: Splitter::default(),
            queue: VecDeque::new(),
            queued_bytes: 0,
            lanes: BTreeMap::new(),
            manner,
            ended: None,
            done: false,
            alarm: None,
            account,
        }
    }

    /// Waits for the first event. `Err` = there is none: the request can be sent again, by its account.
    pub async fn begun(mut self) -> Result<Paced, Box<Account>> {
        std::future::poll_fn(|cx| self.poll_begun(cx)).await;
        if self.queue.is_empty() { Err(self.account) } else { Ok(self) }
    }

    fn poll_begun(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.queue.is_empty() && self.ended.is_none() {
            if self.poll_engine(cx).is_pending() {
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }

    fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.account.arrived.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Takes what the engine has, unless enough waits already.
    fn poll_engine(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.ended.is_some() {
            return Poll::Pending;
        }
        if self.cut.as_mut().poll(cx).is_ready() {
            self.end(Err(ApiError::outage(&UnavailableReason::ShuttingDown)));
            return Poll::Ready(());
        }
        if self.queued_bytes >= HELD_BYTES_MAX {
            return Poll::Pending;
        }
        self.upstream.poll_next_unpin(cx).map(|come| match come {
            Some(Ok(bytes)) => self.take(&bytes),
            Some(Err(trouble)) => self.end(Err(ApiError::engine(trouble.to_string()))),
            None => self.no_more(),
        })
    }

    fn take(&mut self, bytes: &[u8]) {
        let pushed = self.splitter.push(bytes);
        while let Some(event) = self.splitter.next_event() {
            self.event(event);
        }
        if let Err(too_long) = pushed {
            self.end(Err(ApiError::engine(too_long.to_string())));
        }
    }

    fn no_more(&mut self) {
        if let Some(event) = self.splitter.rest() {
            self.event(event);
        }
        let cut = || ApiError::engine("the engine broke off: its stream has no end");
        self.end(if self.done { Ok(()) } else { Err(cut()) });
    }

    fn event(&mut self, bytes: Bytes) {
        let said = Said::by(&bytes);
        self.account.usage = said.usage.or(self.account.usage);
        self.done |= said.done;
        if said.failed {
            self.failed();
        }
        if said.only_usage && self.manner.keep_usage {
            return;
        }
        let lane = said.lane.filter(|lane| self.token(*lane));
        self.queued_bytes += bytes.len();
        self.queue.push_back(Event { bytes, lane });
        for (lane, reason) in said.ends {
            self.account.ended(&reason);
            self.finish(lane);
        }
    }

    /// A token of a choice has come. False = that choice had ended: what follows is not paced.
    fn token(&mut self, lane: u32) -> bool {
        let pacing = self.manner.pacing;
        let lane = self.lanes.entry(lane).or_insert_with(|| Lane::new(pacing));
        if lane.finished {
            return false;
        }
        let now = Instant::now();
        if let Some(before) = lane.last_arrived.replace(now) {
            self.account.metrics.arrived(now - before);
        }
        lane.deposit.on_token(1);
        lane.waiting += 1;
        (self.account.chunks, self.account.waiting) = (self.account.chunks + 1, self.account.waiting + 1);
        self.account.metrics.deposits.add(1);
        true
    }

    fn finish(&mut self, lane: u32) {
        let now = self.now();
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.finish(now);
        }
    }

    fn end(&mut self, how: Result<(), ApiError>) {
        let now = self.now();
        if how.is_err() {
            self.failed();
        }
        self.lanes.values_mut().filter(|lane| !lane.finished).for_each(|lane| lane.finish(now));
        if how.is_ok() && self.account.end.is_none() {
            self.account.end = Some("stop");
        }
        self.ended = Some(how);
        // The engine need not go on.
        self.upstream = futures_util::stream::empty().boxed();
    }

    /// The server fails the stream: of its choices, those that have not ended.
    fn failed(&mut self) {
        (self.account.end, self.account.failed) = (Some("error"), true);
        self.lanes.values_mut().filter(|lane| !lane.finished).for_each(|lane| lane.failed = true);
    }

    /// The front event, if it may go.
    fn due(&mut self) -> Option<Bytes> {
        let now = self.now();
        if let Some(index) = self.queue.front()?.lane {
            let lane = self.lanes.get_mut(&index).expect("a token's choice has a lane");
            if lane.free == 0 {
                let due_at = lane.deposit.next_due();
                lane.free = lane.deposit.due(now);
                let late = due_at.filter(|at| at.0 > 0 && lane.free > 0);
                late.into_iter().for_each(|at| self.account.metrics.write_lateness(now.since(at)));
            }
            lane.free = lane.free.checked_sub(1)?;
            let first = self.account.awaited.take();
            lane.written(first, &self.account.metrics);
            self.account.waiting -= 1;
            self.account.metrics.deposits.add(-1);
        }
        let event = self.queue.pop_front().expect("it was looked at");
        self.queued_bytes -= event.bytes.len();
        Some(event.bytes)
    }

    /// All that may be written is written, and the client waits.
    fn nothing_there(&mut self) {
        let open = self.lanes.values_mut().filter(|lane| !lane.finished);
        open.filter_map(|lane| lane.awaited.as_mut()).for_each(AwaitedToken::nothing_there);
    }

    /// Waits until the front event may go.
    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let front = self.queue.front().and_then(|event| event.lane);
        let due = front.and_then(|lane| self.lanes.get(&lane)?.deposit.next_due());
        let Some(due) = due else { return Poll::Pending };
        let due = tokio::time::Instant::from(self.account.arrived + Duration::from_nanos(due.0));
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
        if alarm.deadline() != due {
            alarm.as_mut().reset(due);
        }
        alarm.as_mut().poll(cx)
    }

    /// What is said after everything that came; `None` = nothing any more.
    fn last_word(&mut self) -> Option<Bytes> {
        let error = std::mem::replace(self.ended.as_mut()?, Ok(())).err()?;
        Some(format!("data: {}\n\ndata: [DONE]\n\n", error.body()).into())
    }
}

impl Stream for Paced {
    type Item = Bytes;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let paced = self.get_mut();
        loop {
            // The engine is read first: what it has may end the answer, and then nothing waits any longer.
            let engine = paced.poll_engine(cx);
            if let Some(bytes) = paced.due() {
                return Poll::Ready(Some(bytes));
            }
            if paced.ended.is_some() && paced.queue.is_empty() {
                return Poll::Ready(paced.last_word());
            }
            if engine.is_pending() && paced.poll_alarm(cx).is_pending() {
                paced.nothing_there();
                return Poll::Pending;
            }
        }
    }
}
