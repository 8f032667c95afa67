//! Token-Deposit: holds tokens generated early and writes one per interval, so that the lead becomes slack (OrbitFlow
//! 3.2). A deposit counts tokens; the caller keeps the tokens themselves in a FIFO
//! queue.
//!
//! The first token is written at once. A later token is written when it is generated if the deposit is empty and at
//! least one interval has passed since the last write; otherwise it joins the deposit. While the deposit is not empty,
//! one token is written per interval after the last write. At completion the rest is written at once.

use crate::ids::Nanos;

/// How a stream is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pacing {
    /// At most one token per interval (the tenant's TBT SLO), nanoseconds.
    Paced {
        /// The interval, nanoseconds.
        interval_ns: u64,
    },
    /// Every token as soon as it is generated: answers without streaming, tenants without a TBT SLO.
    Immediate,
}

/// Generated tokens of one request that are not written yet.
///
/// Call [`TokenDeposit::due`] after every [`TokenDeposit::on_token`] and at the time of [`TokenDeposit::next_due`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenDeposit {
    pacing: Pacing,
    buffered_tokens: u32,
    last_write: Option<Nanos>,
    finished: bool,
}

impl TokenDeposit {
    /// Returns an empty deposit.
    pub const fn new(pacing: Pacing) -> TokenDeposit {
        TokenDeposit { pacing, buffered_tokens: 0, last_write: None, finished: false }
    }

    /// Adds `count` generated tokens. They stay in the deposit until [`TokenDeposit::due`] returns them, possibly at
    /// once.
    ///
    /// # Panics
    /// After [`TokenDeposit::finish`]: a finished request produces nothing.
    pub fn on_token(&mut self, count: u32) {
        assert!(!self.finished, "a finished request produces no tokens");
        self.buffered_tokens += count;
    }

    /// Returns the tokens to write at `now`: 0 or 1 if paced, all if immediate. After a late call the next interval
    /// counts from `now`, so two writes are never closer than an interval.
    pub fn due(&mut self, now: Nanos) -> u32 {
        let count = match (self.pacing, self.next_due()) {
            (_, None) => 0,
            (Pacing::Immediate, _) => self.buffered_tokens,
            (Pacing::Paced { .. }, Some(at)) => u32::from(at <= now),
        };
        self.write(now, count)
    }

    /// Completes the request: returns all remaining tokens, to be written at once.
    pub fn finish(&mut self, now: Nanos) -> u32 {
        self.finished = true;
        self.write(now, self.buffered_tokens)
    }

    /// Returns when [`TokenDeposit::due`] has a token to write: `None` if the deposit is empty, a past time for "at
    /// once".
    pub fn next_due(&self) -> Option<Nanos> {
        let paced_at = |last: Nanos| match self.pacing {
            Pacing::Paced { interval_ns } => last.plus(interval_ns),
            Pacing::Immediate => Nanos(0),
        };
        (self.buffered_tokens > 0).then(|| self.last_write.map_or(Nanos(0), paced_at))
    }

    /// Returns the number of tokens in the deposit.
    pub const fn held(&self) -> u32 {
        self.buffered_tokens
    }

    fn write(&mut self, now: Nanos, count: u32) -> u32 {
        if count > 0 {
            self.last_write = Some(now);
            self.buffered_tokens -= count;
        }
        count
    }
}
