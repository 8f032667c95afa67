//! A request as the next step sees it: it runs, or the step admits it.

use std::ops::Deref;

use sluice_policy::geometry::{BLOCK_TOKENS, Geometry};

use crate::sequence::Sequence;

/// A request of the next step. One that the step admits still waits in the queue.
#[derive(Clone, Copy, Debug)]
pub struct StepRequest<'a> {
    sequence: &'a Sequence,
    /// Tokens whose KV is written when the step begins.
    pub computed_tokens: u32,
    /// The last step that included it.
    pub last_step: u64,
    /// Whether its prompt's KV is offloaded during prefill.
    pub prefill_offloaded: bool,
    /// Whether the step admits it.
    pub is_admitted: bool,
}

impl<'a> StepRequest<'a> {
    /// Returns a request that runs.
    pub fn running(sequence: &'a Sequence) -> Self {
        StepRequest {
            sequence,
            computed_tokens: sequence.computed_tokens,
            last_step: sequence.last_step,
            prefill_offloaded: sequence.prefill_offloaded,
            is_admitted: false,
        }
    }

    /// Returns a request that step `step` admits.
    pub fn admitted(
        sequence: &'a Sequence,
        computed_tokens: u32,
        prefill_offloaded: bool,
        step: u64,
    ) -> Self {
        StepRequest { sequence, computed_tokens, last_step: step, prefill_offloaded, is_admitted: true }
    }

    /// Returns the sequence.
    pub fn sequence(&self) -> &'a Sequence {
        self.sequence
    }

    /// Returns the cached KV blocks that it begins with; 0 if it runs already.
    pub fn cached_kv_blocks(&self) -> u32 {
        if self.is_admitted { self.computed_tokens / BLOCK_TOKENS } else { 0 }
    }

    /// Returns the known tokens whose KV is not written. 1 means that it decodes.
    pub fn pending(&self) -> u32 {
        self.len() - self.computed_tokens
    }

    /// Returns the KV blocks that it holds when its next step begins. During prefill it holds the capacity for all
    /// known tokens from admission, so that later chunks of the same prefill cannot run out of memory.
    pub fn next_kv_blocks(&self) -> u32 {
        if self.pending() > 1 { self.admission_kv_blocks() } else { Geometry::kv_blocks_for(self.len()) }
    }

    /// Returns the KV blocks that it holds when a step computes `tokens` of its tokens. With an offloaded prefill these
    /// are only the KV blocks of these tokens and the tokens before.
    pub fn kv_blocks_for(&self, tokens: u32) -> u32 {
        if self.prefill_offloaded {
            Geometry::kv_blocks_for(self.computed_tokens + tokens)
        } else {
            self.next_kv_blocks()
        }
    }

    /// Returns how many of `tokens` a step computes for this request. An offloaded prefill ends at a KV block boundary,
    /// except at the end of the prompt, and computes at least one KV block.
    pub fn whole_kv_blocks(&self, tokens: u32) -> u32 {
        if !self.prefill_offloaded || tokens >= self.pending() {
            return tokens.min(self.pending());
        }
        (tokens - tokens % BLOCK_TOKENS).max(BLOCK_TOKENS).min(self.pending())
    }
}

impl Deref for StepRequest<'_> {
    type Target = Sequence;

    fn deref(&self) -> &Sequence {
        self.sequence
    }
}

/// Returns the number of requests that decode.
pub fn decodes(requests: &[StepRequest<'_>]) -> u32 {
    requests.iter().filter(|one| one.pending() == 1).count() as u32
}
