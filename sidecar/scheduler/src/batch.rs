//! One step's batch: which running sequences take part, with how many tokens.

use sluice_policy::geometry::StepShape;
use sluice_policy::ids::RequestId;
use sluice_policy::memory_manager::StepNeed;

use crate::sequence::Sequence;

/// A sequence's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduledTokens {
    /// Which.
    pub request: RequestId,
    /// Tokens fed.
    pub tokens: u32,
    /// Columns that the sequence must hold for it.
    pub columns: u32,
    /// The last known token is among them, so a new one is sampled.
    pub samples: bool,
}

/// Parts in the order of admission.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The parts, none empty.
    pub scheduled: Vec<ScheduledTokens>,
}

impl Batch {
    /// Decodes first, then prefill chunks, within `max_tokens`; of each kind those first that were served longest ago, by
    /// admission where that is equal. Whoever was served longest ago of all gets a token even when others could use all of
    /// them, so with n running sequences nobody is passed over n times in a row. `running` comes in order of admission.
    pub fn plan<'a>(running: impl Iterator<Item = &'a Sequence>, max_tokens: u32) -> Batch {
        let mut running: Vec<_> = running.enumerate().filter(|(_, s)| s.pending() > 0).collect();
        running.sort_by_key(|(_, sequence)| sequence.last_step);
        let decodes = running.iter().filter(|(_, s)| s.pending() == 1).count() as u32;
        let kept = u32::from(running.first().is_some_and(|(_, longest)| longest.pending() > 1));
        let mut decode_budget = decodes.min(max_tokens.saturating_sub(kept));
        let mut prefill_budget = max_tokens - decode_budget;
        let mut parts = Vec::new();
        for (place, sequence) in running {
            let budget = if sequence.pending() == 1 { &mut decode_budget } else { &mut prefill_budget };
            let tokens = if *budget > 0 { sequence.whole_columns(*budget) } else { 0 };
            *budget = budget.saturating_sub(tokens);
            if tokens > 0 {
                parts.push((place, ScheduledTokens::of(sequence, tokens)));
            }
        }
        parts.sort_by_key(|(place, _)| *place);
        Batch { scheduled: parts.into_iter().map(|(_, part)| part).collect() }
    }

    /// Shape of the step.
    pub fn shape(&self) -> StepShape {
        StepShape {
            tokens: self.scheduled.iter().map(|p| p.tokens).sum(),
            sequences: self.scheduled.len() as u32,
            logit_rows: self.scheduled.iter().filter(|p| p.samples).count() as u32,
        }
    }

    /// What the step asks of memory, given the columns that each sequence holds now.
    pub fn need(&self, held: impl Fn(RequestId) -> u32) -> StepNeed {
        let columns = self.scheduled.iter().filter_map(|part| {
            let missing = part.columns.saturating_sub(held(part.request));
            (missing > 0).then_some((part.request, missing))
        });
        StepNeed { columns: columns.collect(), shape: self.shape() }
    }

    /// The batch without the parts of `left_out` requests.
    pub fn without(&self, left_out: impl Fn(RequestId) -> bool) -> Batch {
        Batch { scheduled: self.scheduled.iter().filter(|part| !left_out(part.request)).copied().collect() }
    }

    /// The part of `request`.
    pub fn scheduled_tokens(&self, request: RequestId) -> Option<&ScheduledTokens> {
        self.scheduled.iter().find(|p| p.request == request)
    }
}

impl ScheduledTokens {
    fn of(sequence: &Sequence, tokens: u32) -> ScheduledTokens {
        let end = sequence.committed + tokens;
        ScheduledTokens {
            request: sequence.id(),
            tokens,
            columns: sequence.columns_for(tokens),
            samples: end == sequence.len(),
        }
    }
}

#[cfg(test)]
mod tests;
