//! Tracks one request from its arrival to its end.

use sluice_policy::geometry::Geometry;
use sluice_policy::ids::{Nanos, RequestId, RowId};
use sluice_policy::params::Slo;

use crate::event::{Finish, Request};

/// A request and its computed state.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// The request as submitted.
    pub request: Request,
    /// Prompt, then generated tokens.
    pub tokens: Vec<u32>,
    /// Tokens whose KV is written.
    pub computed_tokens: u32,
    /// Largest number of tokens whose KV was ever written; computing below it is recomputation.
    pub computed_before: u32,
    /// Row of the shared tables while it runs.
    pub row: Option<RowId>,
    /// Position in the order of first admissions.
    pub admission: Option<u64>,
    /// The last step that included it, initially the last step before its admission; the sequence that waits longest is
    /// scheduled first.
    pub last_step: u64,
    /// Arrival time.
    pub arrived: Nanos,
    /// Time of the first token.
    pub first_token: Option<Nanos>,
    /// When its client has read all tokens, at one per `tbt_ns`; `None` before the first token and if it is not paced.
    pub read_until: Option<Nanos>,
    /// Whether it was admitted at least once.
    pub started: bool,
    /// Whether the engine does not know its row yet.
    pub row_is_new: bool,
    /// Whether it ends at the next boundary.
    pub cancelled: bool,
    /// Whether it waits with the KV of its computed tokens.
    pub kv_suspended: bool,
    /// Whether it reached the pause limit and resumes next.
    pub is_overdue: bool,
    /// Whether its prompt's KV is offloaded to the host tier during prefill (eLLM).
    pub prefill_offloaded: bool,
    /// Whether its prompt's KV was offloaded and it waits until the KV fits on the device.
    pub waiting_offloaded: bool,
    /// Extension of a first-token deadline that could not be met, nanoseconds; 0 if it was not extended.
    pub deferred_ns: u64,
}

impl Sequence {
    /// Returns a sequence that arrived at `arrived`.
    pub fn new(request: Request, arrived: Nanos) -> Self {
        let tokens = request.prompt.clone();
        Sequence {
            request,
            tokens,
            computed_tokens: 0,
            computed_before: 0,
            row: None,
            admission: None,
            last_step: 0,
            arrived,
            first_token: None,
            read_until: None,
            started: false,
            row_is_new: false,
            cancelled: false,
            kv_suspended: false,
            is_overdue: false,
            prefill_offloaded: false,
            waiting_offloaded: false,
            deferred_ns: 0,
        }
    }

    /// Returns the request's id.
    pub fn id(&self) -> RequestId {
        self.request.id
    }

    /// Returns the number of known tokens.
    pub fn len(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// Always false: requests without tokens are rejected.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Returns the known tokens whose KV is not written. 1 means that it decodes.
    pub fn pending(&self) -> u32 {
        self.len() - self.computed_tokens
    }

    /// Returns the number of generated tokens.
    pub fn generated(&self) -> u32 {
        self.len() - self.request.prompt.len() as u32
    }

    /// Returns the tokens left to compute, the key of shortest-remaining order.
    pub fn remaining(&self) -> u32 {
        self.pending() + self.request.max_tokens - self.generated()
    }

    /// Returns the KV blocks that it must hold at admission: all known tokens and capacity for one more block.
    pub fn admission_kv_blocks(&self) -> u32 {
        let last = self.request.prompt.len() as u32 + self.request.max_tokens;
        Geometry::kv_blocks_for((self.len() + sluice_policy::geometry::BLOCK_TOKENS).min(last))
    }

    /// Returns the tokens not yet delivered to a client that reads one every `tbt_ns` (Token-Deposit); 0 without an
    /// objective or if it is not paced.
    pub fn deposit(&self, now: Nanos, tbt_ns: u64) -> u32 {
        let first = self.first_token.filter(|_| self.request.paced);
        let read = first.and_then(|first| now.since(first).checked_div(tbt_ns));
        read.map_or(0, |read| u64::from(self.generated()).saturating_sub(read.saturating_add(1)) as u32)
    }

    /// Returns when its next token is due: the first by its objective, a later one when the client has read all
    /// generated tokens. An unpaced request has no buffer and keeps its first deadline.
    pub fn deadline(&self, slo: &Slo) -> Nanos {
        let first = self.arrived.plus(slo.ttft_ns.saturating_add(self.deferred_ns));
        self.read_until.unwrap_or(first)
    }

    /// Whether its first token comes after its deadline, if its prompt were computed now. A request that was deferred
    /// already is not late.
    pub fn is_late(&self, now: Nanos, prefill_token_ns: u64, slo: &Slo) -> bool {
        let ready = now.plus(prefill_token_ns.saturating_mul(u64::from(self.pending())));
        self.first_token.is_none() && self.deferred_ns == 0 && ready > self.deadline(slo)
    }

    /// Returns until when its client has tokens to read, at least `now`.
    pub fn buffered_until(&self, now: Nanos) -> Nanos {
        self.read_until.map_or(now, |until| until.max(now))
    }

    /// Records a new token. A client that waited for it continues to read at `now`.
    pub fn record_token(&mut self, now: Nanos, tbt_ns: u64) {
        self.first_token.get_or_insert(now);
        if self.request.paced && tbt_ns > 0 {
            self.read_until = Some(self.buffered_until(now).plus(tbt_ns));
        }
    }

    /// Appends a sampled token; returns how the request ends, if it does.
    pub fn accept(&mut self, token: u32) -> Option<Finish> {
        self.tokens.push(token);
        let sampling = &self.request.sampling;
        let stops = !sampling.ignore_stop && sampling.stop_tokens.contains(&token);
        if stops && self.generated() > sampling.min_tokens {
            return Some(Finish::Stop);
        }
        (self.generated() >= self.request.max_tokens).then_some(Finish::Length)
    }

    /// Drops its memory so that all tokens are recomputed. Returns the number of tokens dropped.
    pub fn preempt(&mut self) -> u32 {
        let dropped = self.computed_tokens;
        self.computed_before = self.computed_before.max(dropped);
        self.computed_tokens = 0;
        self.row = None;
        (self.kv_suspended, self.prefill_offloaded, self.waiting_offloaded) = (false, false, false);
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a sequence with ten tokens, the first of them at 100 ns.
    fn generated_count(paced: bool) -> Sequence {
        let (id, prompt) = (RequestId(1), vec![1; 3]);
        let sampling = std::sync::Arc::default();
        let request = Request { id, prompt, max_tokens: 20, sampling, priority: 0, salt: 0, paced };
        let mut sequence = Sequence::new(request, Nanos(0));
        sequence.first_token = Some(Nanos(100));
        (0..10).for_each(|token| assert_eq!(sequence.accept(token), None));
        sequence
    }

    #[test]
    fn next_token_deadline_follows_client_reads() {
        let slo = Slo { ttft_ns: 1000, tbt_ns: 50, allowed_miss_permille: 0 };
        let mut sequence = Sequence { first_token: None, ..generated_count(true) };
        assert_eq!((sequence.deadline(&slo), sequence.buffered_until(Nanos(7))), (Nanos(1000), Nanos(7)));
        sequence.deferred_ns = 500;
        assert_eq!(sequence.deadline(&slo), Nanos(1500));
        [100, 110, 120].into_iter().for_each(|at| sequence.record_token(Nanos(at), slo.tbt_ns));
        assert_eq!(sequence.deadline(&slo), Nanos(250), "three tokens from 100 on");
        sequence.record_token(Nanos(900), slo.tbt_ns);
        assert_eq!(sequence.deadline(&slo), Nanos(950), "650 ns late, and no longer behind");
        let mut at_once = generated_count(false);
        at_once.record_token(Nanos(100), slo.tbt_ns);
        assert_eq!((at_once.deadline(&slo), at_once.buffered_until(Nanos(300))), (Nanos(1000), Nanos(300)));
    }

    #[test]
    fn unread_paced_tokens_are_buffered() {
        let at = |now| generated_count(true).deposit(Nanos(now), 50);
        assert_eq!([at(100), at(149), at(150), at(500), at(550), at(9999)], [9, 9, 8, 1, 0, 0]);
        assert_eq!(generated_count(true).deposit(Nanos(100), 0), 0, "without an objective nothing is due");
        assert_eq!(generated_count(false).deposit(Nanos(100), 50), 0, "each was written as it was made");
    }
}
