//! Token-Deposit: tokens made early wait and are written one per interval, so that earliness becomes slack (OrbitFlow 3.2;
//! the exact rule is DESIGN 7). A deposit counts tokens; which ones they are is the caller's queue, first in first out.
//!
//! The first token is written at once. A later one is written when produced if the deposit is empty and at least one
//! interval has passed since the last write, else it joins the deposit. While the deposit is not empty one token is written
//! per interval, counted from the last write. At completion the rest is written at once.

use crate::ids::Nanos;

/// How a stream is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pacing {
    /// At most one token per interval (the tenant's TBT SLO), nanoseconds.
    Paced {
        /// The interval, nanoseconds.
        interval_ns: u64,
    },
    /// Every token as soon as it is produced: answers that are not streamed, tenants without a TBT SLO.
    Immediate,
}

/// Tokens of one request that are generated and not yet written.
///
/// Call [`TokenDeposit::due`] after every [`TokenDeposit::on_token`] and at the time that [`TokenDeposit::next_due`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenDeposit {
    pacing: Pacing,
    buffered_tokens: u32,
    last_write: Option<Nanos>,
    finished: bool,
}

impl TokenDeposit {
    /// An empty deposit.
    pub const fn new(pacing: Pacing) -> TokenDeposit {
        TokenDeposit { pacing, buffered_tokens: 0, last_write: None, finished: false }
    }

    /// `count` tokens were produced. They are in the deposit until [`TokenDeposit::due`] lets them go, perhaps at this moment.
    ///
    /// # Panics
    /// After [`TokenDeposit::finish`]: a finished request produces nothing.
    pub fn on_token(&mut self, count: u32) {
        assert!(!self.finished, "a finished request produces no tokens");
        self.buffered_tokens += count;
    }

    /// Takes out the tokens to write at `now`: 0 or 1 when paced, all of them when immediate. A late call counts the next
    /// interval from `now`, never from when it should have been, so two writes are never closer than an interval.
    pub fn due(&mut self, now: Nanos) -> u32 {
        let count = match (self.pacing, self.next_due()) {
            (_, None) => 0,
            (Pacing::Immediate, _) => self.buffered_tokens,
            (Pacing::Paced { .. }, Some(at)) => u32::from(at <= now),
        };
        self.write(now, count)
    }

    /// The request is complete: takes out all the rest, to be written at once.
    pub fn finish(&mut self, now: Nanos) -> u32 {
        self.finished = true;
        self.write(now, self.buffered_tokens)
    }

    /// When [`TokenDeposit::due`] has something to write: none while the deposit is empty, a moment in the past for "at once".
    pub fn next_due(&self) -> Option<Nanos> {
        let paced_at = |last: Nanos| match self.pacing {
            Pacing::Paced { interval_ns } => last.plus(interval_ns),
            Pacing::Immediate => Nanos(0),
        };
        (self.buffered_tokens > 0).then(|| self.last_write.map_or(Nanos(0), paced_at))
    }

    /// Tokens in the deposit.
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
