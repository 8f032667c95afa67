//! How the tenant's objectives are met: shares of tokens in time, with those that are overdue at this moment.
//!
//! Every open answer awaits one token at a time, its first or its next. A token that is later than its objective counts
//! as missed from that moment on. When it comes, or when its answer ends without it, the miss is recorded and the token
//! is awaited no more: it counts once, and no share jumps.

use std::time::{Duration, Instant};

use slab::Slab;
use sluice_wire::config::SloConfig;
use sluice_wire::state::{TBT_TOLERANCE_PERCENT, TokenCounts};

use super::window::{Tokens, Window};

/// How one objective is met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attainment {
    /// Share of tokens of the window that were in time, permille, rounded down; `None` = there was none.
    pub permille: Option<u32>,
    /// Tokens that are overdue now. They count as missed in every other figure.
    pub overdue: u32,
    /// Tokens since the start; never falls.
    pub tokens: u64,
    /// Of these, those that were not in time; never falls.
    pub missed: u64,
    /// Tokens of the window, those that are overdue now among them.
    pub window: TokenCounts,
}

/// How long a written token took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenLatency {
    /// From the arrival of its request.
    First(Duration),
    /// From the write before it.
    Next(Duration),
}

/// How an answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// It is complete, or its client left. What is overdue then stays a miss: the end came late too.
    Closed,
    /// The server failed it: the token never comes, a miss.
    Failed,
}

#[derive(Debug)]
struct Objective {
    limit: Duration,
    recent: Window,
    tokens: u64,
    missed: u64,
}

impl Objective {
    fn new(now: Instant, limit: Duration, window: Duration) -> Self {
        Objective { limit, recent: Window::new(now, window), tokens: 0, missed: 0 }
    }

    fn record(&mut self, now: Instant, tokens: Tokens) {
        self.recent.record(now, tokens);
        self.tokens += tokens.counts.tokens;
        self.missed += tokens.counts.tokens - tokens.in_time;
    }

    /// With the tokens that are `overdue` now.
    fn attainment(&mut self, now: Instant, overdue: Tokens) -> Attainment {
        let mut recent = self.recent.sum(now);
        recent += overdue;
        let late = overdue.counts.tokens;
        Attainment {
            permille: recent.permille(),
            overdue: u32::try_from(late).unwrap_or(u32::MAX),
            tokens: self.tokens + late,
            missed: self.missed + late,
            window: recent.counts,
        }
    }
}

/// The token that an answer awaits.
#[derive(Clone, Copy, Debug)]
struct PendingState {
    since: Instant,
    is_first: bool,
    /// Nothing is there to be written. Otherwise it is the client that does not read, and no token is overdue.
    is_buffer_empty: bool,
    /// The tenant sleeps by order, or did so while this was awaited.
    asleep: bool,
}

/// Both objectives of a tenant, and the tokens that are awaited.
#[derive(Debug)]
pub struct Objectives {
    ttft: Objective,
    tbt: Objective,
    pending: Slab<PendingState>,
    /// The tenant sleeps by order.
    asleep: bool,
}

impl Objectives {
    /// Nothing recorded, nothing awaited.
    pub fn new(now: Instant, slo: &SloConfig) -> Self {
        let window = Duration::from_secs(u64::from(slo.window_seconds));
        let milliseconds = |ms: u32| Duration::from_millis(u64::from(ms));
        let tbt = milliseconds(slo.tbt_milliseconds) * (100 + TBT_TOLERANCE_PERCENT) / 100;
        Objectives {
            ttft: Objective::new(now, milliseconds(slo.ttft_milliseconds), window),
            tbt: Objective::new(now, tbt, window),
            pending: Slab::new(),
            asleep: false,
        }
    }

    /// Whether the tenant sleeps by order: tokens that are late during the sleep are counted as `asleep`.
    pub fn set_asleep(&mut self, asleep: bool) {
        if asleep && !self.asleep {
            self.pending.iter_mut().for_each(|(_, awaited)| awaited.asleep = true);
        }
        self.asleep = asleep;
    }

    /// An answer awaits its first token; its request arrived at `since`. Returns its key.
    pub fn track_first(&mut self, since: Instant) -> usize {
        self.pending.insert(PendingState {
            since,
            is_first: true,
            is_buffer_empty: true,
            asleep: self.asleep,
        })
    }

    /// An answer whose first token is not measured was written at `since`, and awaits its next one. Returns its key.
    pub fn track_next(&mut self, since: Instant) -> usize {
        self.pending.insert(PendingState {
            since,
            is_first: false,
            is_buffer_empty: false,
            asleep: self.asleep,
        })
    }

    /// All that has come is written: from now on it is the token that keeps its client waiting.
    pub fn on_buffer_empty(&mut self, key: usize) {
        self.pending[key].is_buffer_empty = true;
    }

    /// `count` tokens were written together: the first was awaited, the rest did not wait. The next one is awaited.
    pub fn on_written(&mut self, key: usize, now: Instant, count: u32) -> TokenLatency {
        let next = PendingState { since: now, is_first: false, is_buffer_empty: false, asleep: self.asleep };
        let was = std::mem::replace(&mut self.pending[key], next);
        let took = now.saturating_duration_since(was.since);
        let rest = if was.is_first { 0 } else { u64::from(count.saturating_sub(1)) };
        let objective = self.objective_mut(was.is_first);
        let in_time = took <= objective.limit;
        objective.record(now, if in_time { Tokens::in_time(1) } else { Tokens::missed(false, was.asleep) });
        objective.record(now, Tokens::in_time(rest));
        if was.is_first { TokenLatency::First(took) } else { TokenLatency::Next(took) }
    }

    /// An answer ends; nothing of it is awaited any more.
    pub fn end(&mut self, key: usize, now: Instant, end: StreamEnd) {
        let was = self.pending.remove(key);
        if end == StreamEnd::Failed || self.is_overdue(&was, now) {
            self.objective_mut(was.is_first).record(now, Tokens::missed(true, was.asleep));
        }
    }

    /// How the objectives for first tokens and for later ones are met.
    pub fn attainments(&mut self, now: Instant) -> (Attainment, Attainment) {
        let count = |first: bool| {
            let late =
                self.pending.iter().filter(|(_, one)| one.is_first == first && self.is_overdue(one, now));
            let mut tokens = Tokens::default();
            late.for_each(|(_, one)| tokens += Tokens::missed(false, one.asleep));
            tokens
        };
        let (ttft, tbt) = (count(true), count(false));
        (self.ttft.attainment(now, ttft), self.tbt.attainment(now, tbt))
    }

    fn objective_mut(&mut self, first: bool) -> &mut Objective {
        if first { &mut self.ttft } else { &mut self.tbt }
    }

    fn is_overdue(&self, awaited: &PendingState, now: Instant) -> bool {
        let limit = if awaited.is_first { self.ttft.limit } else { self.tbt.limit };
        awaited.is_buffer_empty && now.saturating_duration_since(awaited.since) > limit
    }
}

#[cfg(test)]
mod tests;
