//! One request while it is known.

use sluice_policy::geometry::Geometry;
use sluice_policy::ids::{Nanos, RequestId, RowId};
use sluice_policy::params::Slo;

use crate::event::{Finish, Request};

/// A request and what has been computed of it.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// As it came.
    pub request: Request,
    /// Prompt, then generated tokens.
    pub tokens: Vec<u32>,
    /// Tokens whose KV is written.
    pub committed: u32,
    /// Tokens whose KV was once written: what lies below is recomputed work.
    pub computed_before: u32,
    /// Row of the shared tables while it runs.
    pub row: Option<RowId>,
    /// Place in the order of admission, of the first admission.
    pub admission: Option<u64>,
    /// The last step that it had a part in, at first the one before its admission: who waits longest is served first.
    pub last_step: u64,
    /// When it came.
    pub arrived: Nanos,
    /// When its first token was made.
    pub first_token: Option<Nanos>,
    /// When its client has read all that was made, one token every `tbt_ns`; none before the first, and where it is not paced.
    pub read_until: Option<Nanos>,
    /// It has been admitted at least once.
    pub started: bool,
    /// Its row has not been written yet.
    pub row_is_new: bool,
    /// It is to be dropped at the next boundary.
    pub cancelled: bool,
    /// It waits with the KV of its committed tokens.
    pub kv_suspended: bool,
    /// It was paused for as long as a request may be, and goes on next.
    pub is_overdue: bool,
    /// Its prompt's KV goes to the host tier while it is computed (eLLM).
    pub prefill_offloaded: bool,
    /// Its prompt's KV went there, and it waits until there is room for it.
    pub waiting_offloaded: bool,
    /// What was added to the deadline of its first token when that could not be kept; 0 = nothing yet.
    pub deferred_ns: u64,
}

impl Sequence {
    /// A request that has just arrived.
    pub fn new(request: Request, arrived: Nanos) -> Self {
        let tokens = request.prompt.clone();
        Sequence {
            request,
            tokens,
            committed: 0,
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

    /// Its name.
    pub fn id(&self) -> RequestId {
        self.request.id
    }

    /// Tokens known.
    pub fn len(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// Never: a request without tokens is refused.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Tokens known whose KV is not written. 1 = it decodes.
    pub fn pending(&self) -> u32 {
        self.len() - self.committed
    }

    /// Tokens generated so far.
    pub fn generated(&self) -> u32 {
        self.len() - self.request.prompt.len() as u32
    }

    /// Tokens still to compute: the key of shortest-remaining order.
    pub fn remaining(&self) -> u32 {
        self.pending() + self.request.max_tokens - self.generated()
    }

    /// Columns it must hold when it is admitted: all known tokens and room to grow by one column.
    pub fn admission_columns(&self) -> u32 {
        let last = self.request.prompt.len() as u32 + self.request.max_tokens;
        Geometry::columns_for((self.len() + sluice_policy::geometry::BLOCK_TOKENS).min(last))
    }

    /// Columns that it holds when its next step begins. One that computes its known tokens holds room for all of them from its
    /// admission on, so that a prefill is never cut off half way by its own later chunks.
    pub fn next_columns(&self) -> u32 {
        if self.pending() > 1 { self.admission_columns() } else { Geometry::columns_for(self.len()) }
    }

    /// Columns that it holds when a step begins that computes so many of its tokens. Where its KV goes to the host tier, those of
    /// these tokens and the ones before.
    pub fn columns_for(&self, tokens: u32) -> u32 {
        if self.prefill_offloaded {
            Geometry::columns_for(self.committed + tokens)
        } else {
            self.next_columns()
        }
    }

    /// Of `tokens` that a step has room for those that it computes of this sequence: where its KV goes to the host tier no column is
    /// left unfinished but the prompt's last one, and one is computed at least.
    pub fn whole_columns(&self, tokens: u32) -> u32 {
        if !self.prefill_offloaded || tokens >= self.pending() {
            return tokens.min(self.pending());
        }
        let column = sluice_policy::geometry::BLOCK_TOKENS;
        (tokens - tokens % column).max(column).min(self.pending())
    }

    /// Tokens that a client which reads one every `tbt_ns` has not been given yet (Token-Deposit); 0 without an objective, and
    /// where tokens are written as they are made.
    pub fn deposit(&self, now: Nanos, tbt_ns: u64) -> u32 {
        let first = self.first_token.filter(|_| self.request.paced);
        let read = first.and_then(|first| now.since(first).checked_div(tbt_ns));
        read.map_or(0, |read| u64::from(self.generated()).saturating_sub(read.saturating_add(1)) as u32)
    }

    /// When its next token is due: the first one by the objective for it, later ones when a client that reads one every `tbt_ns`
    /// has read all that were made. An answer that is not paced has nothing in store, and keeps its first deadline.
    pub fn deadline(&self, slo: &Slo) -> Nanos {
        let first = self.arrived.plus(slo.ttft_ns.saturating_add(self.deferred_ns));
        self.read_until.unwrap_or(first)
    }

    /// Until when its client has something to read; `now` at the least.
    pub fn buffered_until(&self, now: Nanos) -> Nanos {
        self.read_until.map_or(now, |until| until.max(now))
    }

    /// A token was made. A client that waited for it reads on from now.
    pub fn record_token(&mut self, now: Nanos, tbt_ns: u64) {
        self.first_token.get_or_insert(now);
        if self.request.paced && tbt_ns > 0 {
            self.read_until = Some(self.buffered_until(now).plus(tbt_ns));
        }
    }

    /// Takes a sampled token; says how the request ends with it, if it does.
    pub fn accept(&mut self, token: u32) -> Option<Finish> {
        self.tokens.push(token);
        let sampling = &self.request.sampling;
        let stops = !sampling.ignore_stop && sampling.stop_tokens.contains(&token);
        if stops && self.generated() > sampling.min_tokens {
            return Some(Finish::Stop);
        }
        (self.generated() >= self.request.max_tokens).then_some(Finish::Length)
    }

    /// Its memory was taken: everything is to be computed again. Returns the tokens dropped.
    pub fn preempt(&mut self) -> u32 {
        let dropped = self.committed;
        self.computed_before = self.computed_before.max(dropped);
        self.committed = 0;
        self.row = None;
        (self.kv_suspended, self.prefill_offloaded, self.waiting_offloaded) = (false, false, false);
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten tokens, the first of them at 100 ns.
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
