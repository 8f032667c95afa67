//! Builds the batch of one step: which running sequences take part, and with how many tokens.

use sluice_policy::geometry::StepShape;
use sluice_policy::ids::RequestId;
use sluice_policy::memory_manager::{Admission, StepNeed};

use crate::step_request::StepRequest;

/// One sequence's share of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduledTokens {
    /// The sequence's request.
    pub request: RequestId,
    /// Tokens that the step computes.
    pub tokens: u32,
    /// KV blocks that the sequence must hold for these tokens.
    pub kv_blocks: u32,
    /// Whether the last known token is included, so that the step samples a new one.
    pub samples: bool,
    /// Whether the KV of its prompt goes to the host tier.
    pub prefill_offloaded: bool,
}

/// The scheduled sequences of a step, in admission order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The scheduled sequences; each has at least one token.
    pub scheduled: Vec<ScheduledTokens>,
}

impl Batch {
    /// Plans decodes first, then prefill chunks, within `max_tokens`. Within each kind, sequences with the oldest
    /// `last_step` come first, ties by admission. The sequence with the oldest `last_step` of all always gets a token,
    /// also if decodes would take all of them, so none of n running sequences is skipped n times in a row. `requests`
    /// are in admission order.
    pub fn plan<'a>(requests: impl Iterator<Item = StepRequest<'a>>, max_tokens: u32) -> Batch {
        let mut running: Vec<_> = requests.enumerate().filter(|(_, s)| s.pending() > 0).collect();
        running.sort_by_key(|(_, request)| request.last_step);
        let decodes = running.iter().filter(|(_, s)| s.pending() == 1).count() as u32;
        let for_longest = u32::from(running.first().is_some_and(|(_, longest)| longest.pending() > 1));
        let mut decode_budget = decodes.min(max_tokens.saturating_sub(for_longest));
        let mut prefill_budget = max_tokens - decode_budget;
        let mut parts = Vec::new();
        for (place, request) in running {
            let budget = if request.pending() == 1 { &mut decode_budget } else { &mut prefill_budget };
            let tokens = if *budget > 0 { request.whole_kv_blocks(*budget) } else { 0 };
            *budget = budget.saturating_sub(tokens);
            if tokens > 0 {
                parts.push((place, ScheduledTokens::of(&request, tokens)));
            }
        }
        parts.sort_by_key(|(place, _)| *place);
        Batch { scheduled: parts.into_iter().map(|(_, part)| part).collect() }
    }

    /// Returns the shape of the step.
    pub fn shape(&self) -> StepShape {
        StepShape {
            tokens: self.scheduled.iter().map(|p| p.tokens).sum(),
            sequences: self.scheduled.len() as u32,
            logit_rows: self.scheduled.iter().filter(|p| p.samples).count() as u32,
        }
    }

    /// Returns what the step needs from memory, given the requests that it admits and the KV blocks that each sequence
    /// holds then.
    pub fn need(&self, admit: Vec<Admission>, held: impl Fn(RequestId) -> u32) -> StepNeed {
        let kv_blocks = self.scheduled.iter().filter_map(|part| {
            let missing = part.kv_blocks.saturating_sub(held(part.request));
            (missing > 0).then_some((part.request, missing))
        });
        let without_offloaded_prefills = !self.scheduled.iter().any(|part| part.prefill_offloaded);
        StepNeed { admit, kv_blocks: kv_blocks.collect(), shape: self.shape(), without_offloaded_prefills }
    }

    /// Returns the batch without the `excluded` requests.
    pub fn without(&self, excluded: impl Fn(RequestId) -> bool) -> Batch {
        Batch { scheduled: self.scheduled.iter().filter(|part| !excluded(part.request)).copied().collect() }
    }

    /// Returns the entry of `request`.
    pub fn scheduled_tokens(&self, request: RequestId) -> Option<&ScheduledTokens> {
        self.scheduled.iter().find(|p| p.request == request)
    }
}

impl ScheduledTokens {
    fn of(request: &StepRequest<'_>, tokens: u32) -> ScheduledTokens {
        ScheduledTokens {
            request: request.id(),
            tokens,
            kv_blocks: request.kv_blocks_for(tokens),
            samples: request.computed_tokens + tokens == request.len(),
            prefill_offloaded: request.prefill_offloaded,
        }
    }
}

#[cfg(test)]
mod tests;
