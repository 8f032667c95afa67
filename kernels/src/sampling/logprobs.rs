//! Log-probabilities of the chosen token and of the most likely tokens, from the raw logits.

/// Log-probabilities reported with one chosen token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenLogprobs {
    /// Log-probability of the chosen token.
    pub chosen: f32,
    /// The most likely tokens, most likely first, equals by lowest id.
    pub top: Vec<(u32, f32)>,
}

/// Data of the raw logits that is saved before they change in place.
pub(super) struct RawLogprobs {
    log_sum: f64,
    top: Vec<(u32, f32)>,
    /// Raw logits of the tokens whose logits may change.
    saved: Vec<(u32, f32)>,
}

impl RawLogprobs {
    pub(super) fn of(logits: &[f32], top: u8, changeable: impl Iterator<Item = u32>) -> RawLogprobs {
        RawLogprobs {
            log_sum: log_sum_exp(logits),
            top: most_likely(logits, usize::from(top)),
            saved: changeable.map(|token| (token, logits[token as usize])).collect(),
        }
    }

    /// Returns the log-probabilities for `token`. `logit` is its current logit, which is the raw one unless it was
    /// saved.
    pub(super) fn finish(self, token: u32, logit: f32) -> TokenLogprobs {
        let saved = self.saved.iter().find(|(id, _)| *id == token);
        let logprob = |logit: f32| (f64::from(logit) - self.log_sum) as f32;
        TokenLogprobs {
            chosen: logprob(saved.map_or(logit, |(_, raw)| *raw)),
            top: self.top.iter().map(|&(id, logit)| (id, logprob(logit))).collect(),
        }
    }
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum();
    largest + sum.ln()
}

/// Returns the `count` largest logits, largest first, equals by lowest id.
fn most_likely(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let mut top: Vec<(u32, f32)> = Vec::with_capacity(count + 1);
    for (id, &logit) in logits.iter().enumerate() {
        if top.len() < count || top.last().is_some_and(|(_, least)| logit > *least) {
            let place = top.partition_point(|(_, other)| *other >= logit);
            top.insert(place, (id as u32, logit));
            top.truncate(count);
        }
    }
    top
}
