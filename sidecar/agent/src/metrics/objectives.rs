//! Attainment of the tenant's objectives: the share of tokens in time, including those that are overdue now.
//!
//! Every open response awaits one token at a time, its first or its next. A token that exceeds its objective counts as
//! missed from that moment on. When the token arrives, or its response ends without it, the miss is recorded and the
//! token is no longer awaited. So it counts once, and no share jumps.

use std::time::{Duration, Instant};

use slab::Slab;
use sluice_wire::config::SloConfig;
use sluice_wire::state::{TBT_TOLERANCE_PERCENT, TokenCounts};

use super::window::{Tokens, Window};

/// Attainment of one objective.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attainment {
    /// Share of the window's tokens that were in time, permille, rounded down. `None` if there were no tokens.
    pub permille: Option<u32>,
    /// Tokens that are overdue now. They count as missed in every other figure.
    pub overdue: u32,
    /// Tokens since the start. Never falls.
    pub tokens: u64,
    /// Tokens since the start that were not in time. Never falls.
    pub missed: u64,
    /// Tokens of the window, including those that are overdue now.
    pub window: TokenCounts,
}

/// Latency of a written token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenLatency {
    /// Time since the arrival of its request.
    First(Duration),
    /// Time since the previous write.
    Next(Duration),
}

/// End of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// The response is complete, or its client disconnected. A token that is overdue then stays a miss, because the end
    /// is late too.
    Closed,
    /// The server failed the response. The token never arrives and is a miss.
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

    /// Returns the attainment including the tokens that are `overdue` now.
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

/// Token that a response awaits.
#[derive(Clone, Copy, Debug)]
struct PendingState {
    since: Instant,
    is_first: bool,
    /// No token is ready to be written. Otherwise the client does not read, and no token is overdue.
    is_buffer_empty: bool,
    /// The tenant sleeps by command, or did so while this token was awaited.
    asleep: bool,
}

/// Both objectives of a tenant, and the awaited tokens.
#[derive(Debug)]
pub struct Objectives {
    ttft: Objective,
    tbt: Objective,
    pending: Slab<PendingState>,
    /// The tenant sleeps by command.
    asleep: bool,
}

impl Objectives {
    /// Creates objectives without tokens.
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

    /// Sets whether the tenant sleeps by command. Tokens that are late during the sleep count as `asleep`.
    pub fn set_asleep(&mut self, asleep: bool) {
        if asleep && !self.asleep {
            self.pending.iter_mut().for_each(|(_, awaited)| awaited.asleep = true);
        }
        self.asleep = asleep;
    }

    /// Tracks a response that awaits its first token, whose request arrived at `since`. Returns its key.
    pub fn track_first(&mut self, since: Instant) -> usize {
        self.pending.insert(PendingState {
            since,
            is_first: true,
            is_buffer_empty: true,
            asleep: self.asleep,
        })
    }

    /// Tracks a response that was written at `since` and awaits its next token, and whose first token is not measured.
    /// Returns its key.
    pub fn track_next(&mut self, since: Instant) -> usize {
        self.pending.insert(PendingState {
            since,
            is_first: false,
            is_buffer_empty: false,
            asleep: self.asleep,
        })
    }

    /// Records that all tokens are written: from now on, the client waits for the awaited token.
    pub fn on_buffer_empty(&mut self, key: usize) {
        self.pending[key].is_buffer_empty = true;
    }

    /// Records `count` tokens written together: the first one was awaited, the others did not wait. The next token is
    /// awaited.
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

    /// Ends a response. Its token is no longer awaited.
    pub fn end(&mut self, key: usize, now: Instant, end: StreamEnd) {
        let was = self.pending.remove(key);
        if end == StreamEnd::Failed || self.is_overdue(&was, now) {
            self.objective_mut(was.is_first).record(now, Tokens::missed(true, was.asleep));
        }
    }

    /// Returns the attainment of first tokens and of later ones.
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
